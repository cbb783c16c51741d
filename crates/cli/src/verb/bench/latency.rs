//! `nearfar bench latency`: node-by-node latency and bandwidth, core-to-core transfers.

use std::sync::atomic::Ordering;

use clap::{Args, ValueEnum};
use nearfar_bench::options::ProbeError;
use nearfar_bench::survey::{self, SurveyOptions};
use nearfar_change::lease::Presence;
use nearfar_machine::Machine;
use nearfar_sources::Want;

use crate::args::{Colour, budget, read_live, seconds};
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
    #[command(flatten)]
    survey: SurveyOptions,
    /// The time it may take [default: 12; on an emulated machine 30, in simulated time 1 of the guest's after preparation]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    budget: Option<f64>,
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
        let options = self.options(&machine);
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

    fn options(&self, machine: &Machine) -> SurveyOptions {
        let mut options = self.survey.clone();
        options.probe.budget = budget(self.budget, 12.0, machine);
        // A guest under emulation is slow enough to fill its budget, and what disturbs its host is not its own load.
        options.probe.is_spread = machine.origin.emulation.is_none();
        options.probe.cancel = signals::cancel_flag();
        options
    }
}
