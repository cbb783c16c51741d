//! `nearfar bench latency`: node-by-node latency and bandwidth, core-to-core transfers.

use std::sync::atomic::Ordering;

use clap::{Args, ValueEnum};
use nearfar_bench::options::{HugePages, ProbeError, ProbeOptions};
use nearfar_bench::survey::{self, Part, SurveyOptions};
use nearfar_change::lease::Presence;
use nearfar_machine::{Machine, NodeSet};
use nearfar_sources::Want;

use crate::args::{Colour, budget, one_of, read_live, seconds, size};
use crate::failure::{Failure, Outcome, refused};
use crate::output;
use crate::recorded::{RecordArgs, note_others, presence};
use crate::signals;

/// Measure memory latency and bandwidth from node to node, and cache line transfers from CPU to CPU
///
/// Latency: dependent loads over a buffer far beyond the caches. Bandwidth: all CPUs of a node read, write and copy. Loaded: both
/// at once. Interleaved: what interleaving memory brings all CPUs and costs one. These two only if they are asked for. Transfer: two CPUs hand a cache line to each other. Memory is bound to its node and verified to be there, threads are
/// pinned. Changes nothing. It measures the machine it runs on; nothing else can be measured.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar bench latency\n  nearfar bench latency --what latency --from 0 --to 0,2 \
                             --budget 3\n  nearfar bench latency --what transfer --all-cpus --format svg > cores.svg\n  \
                             nearfar bench latency --what loaded --from 0\n  \
                             nearfar bench latency --what interleaved\n  \
                             nearfar lab run --machine kunpeng --scale cpus=2,memory=512M --delay auto -- nearfar bench latency"
)]
pub struct Latency {
    /// What to measure
    #[arg(long, value_parser = one_of(PARTS), value_delimiter = ',', value_name = "PARTS",
          default_values = ["latency", "bandwidth", "transfer"])]
    what: Vec<Part>,
    /// Measure from the CPUs of these nodes only, such as 0-1,4
    #[arg(long, value_name = "NODES")]
    from: Option<NodeSet>,
    /// Measure the memory of these nodes only (for transfers: their CPUs)
    #[arg(long, value_name = "NODES")]
    to: Option<NodeSet>,
    /// Size of the buffer on each node, such as 256M; by default as the caches ask and the memory allows
    #[arg(long, value_name = "SIZE", value_parser = size)]
    buffer: Option<u64>,
    /// Which pages the buffers have
    #[arg(long, value_parser = one_of(PAGES), default_value = "auto", value_name = "PAGES")]
    huge: HugePages,
    /// Most threads of a node that move memory; by default one on each of its CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Measure transfers between all pairs of CPUs, not one pair for each thing that CPUs share
    #[arg(long)]
    all_cpus: bool,
    /// The time it may take [default: 12; on an emulated machine 30, in simulated time 1 of the guest's after preparation]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    budget: Option<f64>,
    /// The most samples that a pair gets
    #[arg(long, value_name = "N", default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,
    /// Add a line per pair to the tables: quartiles, confidence interval, number of samples
    #[arg(long)]
    details: bool,
    /// What to call the runs in the store
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    record: RecordArgs,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t = LatencyFormat::Table, value_name = "FORMAT")]
    format: LatencyFormat,
}

/// What can be measured.
const PARTS: &[(&str, &str, Part)] = &[
    (
        "latency",
        "Nanoseconds per load, node by node",
        Part::Latency,
    ),
    ("bandwidth", "GB/s, node by node", Part::Bandwidth),
    (
        "loaded",
        "Nanoseconds per load while the other CPUs of the node read, from few bytes per second to all they can",
        Part::Loaded,
    ),
    (
        "interleaved",
        "GB/s of all CPUs and nanoseconds per load of one, with all memory near, on one node, and interleaved",
        Part::Interleaved,
    ),
    (
        "transfer",
        "Nanoseconds per round trip of a cache line, CPU by CPU",
        Part::Transfer,
    ),
];

/// Which pages buffers can have.
const PAGES: &[(&str, &str, HugePages)] = &[
    (
        "auto",
        "The nodes' pools where they have enough free pages, else transparent huge pages, else base pages",
        HugePages::Auto,
    ),
    ("thp", "Transparent huge pages", HugePages::Transparent),
    ("hugetlb", "The nodes' pools", HugePages::Pool),
    ("off", "Base pages", HugePages::Off),
];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LatencyFormat {
    /// For people
    Table,
    /// For programs, with every sample
    Json,
    /// Heat maps and curves in one picture
    Svg,
}

impl Latency {
    /// Measures and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let machine = read_live(Want::topology())?;
        let options = self.options(&machine)?;
        let mut recorder = self.record.open()?;
        let presence = presence("nearfar bench latency");
        let others = presence.as_ref().map(Presence::others).unwrap_or_default();
        let mut measured = survey::measure(&machine, &options).map_err(|error| match error {
            ProbeError::NoSuchNode { .. }
            | ProbeError::NoCpus { .. }
            | ProbeError::NoMemory { .. }
            | ProbeError::BufferTooLarge { .. }
            | ProbeError::BufferTooSmall { .. } => Failure::input(error),
            _ => Failure::refused(error),
        })?;
        note_others(&mut measured, others, presence.as_ref());
        recorder.keep(&measured, &machine, self.label.as_deref());
        let survey = measured.answer;
        let printed = output::print(&match self.format {
            LatencyFormat::Table => {
                nearfar_report::latency::survey(&survey, &machine, self.details)
                    .to_text(&output::style(colour))
            }
            LatencyFormat::Json => output::json("bench-latency/1", Some(&machine.origin), &survey)?,
            LatencyFormat::Svg => {
                nearfar_report::latency::survey(&survey, &machine, false).to_svg()
            }
        });
        printed.and_then(|()| match options.probe.cancel.load(Ordering::Relaxed) {
            true => Err(refused!(
                "interrupted: this is what was measured until then"
            )),
            false => Ok(()),
        })
    }

    fn options(&self, machine: &Machine) -> Result<SurveyOptions, Failure> {
        let probe = ProbeOptions {
            budget: budget(self.budget, 12.0, machine),
            buffer_bytes: self.buffer,
            max_samples: self.samples as usize,
            from: self.from.clone(),
            to: self.to.clone(),
            huge_pages: self.huge,
            // A guest under emulation is slow enough to fill its budget, and what disturbs its host is not its own load.
            is_spread: machine.origin.emulation.is_none(),
            cancel: signals::cancel_flag(),
        };
        Ok(SurveyOptions {
            parts: self.what.clone(),
            threads: self.threads.map(|threads| threads as usize),
            all_cpus: self.all_cpus,
            probe,
        })
    }
}
