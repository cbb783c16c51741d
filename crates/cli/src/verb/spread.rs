//! `nearfar spread`: which CPU serves queue 0, 1, 2 ...

use clap::{Args, ValueEnum};
use nearfar_machine::{CpuSet, Machine, NodeId};
use nearfar_placement::spread::{self, Policy, SpreadRequest};
use nearfar_sources::Want;

use crate::args::{Colour, SourceArgs, one_of};
use crate::failure::{Failure, Outcome, input};
use crate::output;

/// Spread queues over CPUs, nearest first from a node
///
/// The order is that of the kernel's cpumask_local_spread() since 6.3: the node's own CPUs, then those of the other
/// nodes by distance, within equal distance by CPU number; it starts again when every usable CPU has a queue.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar spread --node 2 --count 8\n  nearfar spread --source kunpeng --node 2 \
                             --count 49 --policy kernel-pre-6.3\n  nearfar spread --node 1 --count 16 --cores-first \
                             --format mask"
)]
pub struct Spread {
    #[command(flatten)]
    source: SourceArgs,
    /// The node the device is on; without it the spread goes in CPU order
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Number of queues
    #[arg(long, value_name = "K", value_parser = queues)]
    count: usize,
    /// The rule
    #[arg(long, value_parser = one_of(POLICIES), default_value = "nearest-first", value_name = "POLICY")]
    policy: Policy,
    /// One queue per core before SMT siblings get one
    #[arg(long)]
    cores_first: bool,
    /// Only these CPUs, such as 0-15,32
    #[arg(long, value_name = "CPUS")]
    allowed: Option<CpuSet>,
    /// Also CPUs that isolcpus= or nohz_full= keep free
    #[arg(long)]
    isolated_too: bool,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t = SpreadFormat::Table, value_name = "FORMAT")]
    format: SpreadFormat,
}

/// The rules.
const POLICIES: &[(&str, &str, Policy)] = &[
    ("nearest-first", "By distance", Policy::NearestFirst),
    (
        "kernel-pre-6.3",
        "As cpumask_local_spread() did before Linux 6.3: the node's own CPUs, then all others from 0 up",
        Policy::KernelPre63,
    ),
];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SpreadFormat {
    /// For people
    Table,
    /// For programs
    Json,
    /// A line a queue: its number and its CPU
    List,
    /// A line a queue: its number and the mask for smp_affinity or xps_cpus
    Mask,
}

/// A number of queues.
fn queues(text: &str) -> Result<usize, String> {
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=spread::MOST_QUEUES).contains(count));
    count.ok_or_else(|| format!("a number of queues is 1 to {}", spread::MOST_QUEUES))
}

impl Spread {
    /// Fails where CPUs are asked for that the machine has not.
    fn check_allowed(&self, machine: &Machine) -> Outcome {
        let Some(allowed) = &self.allowed else {
            return Ok(());
        };
        let there: CpuSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
        let missing = allowed.difference(&there);
        if allowed.is_empty() {
            return Err(input!(
                "--allowed names no CPU; CPUs of this machine: {there}"
            ));
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(input!(
                "there is no CPU {missing}; CPUs of this machine: {there}"
            )),
        }
    }

    pub fn run(self, colour: Colour) -> Outcome {
        // Programs are not told of caches.
        let machine = self.source.read(match self.format {
            SpreadFormat::Table => Want::topology(),
            _ => Want::placement(),
        })?;
        self.check_allowed(&machine)?;
        let request = SpreadRequest {
            node: self.node.map(NodeId),
            count: self.count,
            policy: self.policy,
            cores_first: self.cores_first,
            allowed: self.allowed,
            isolated_too: self.isolated_too,
        };
        let slots = spread::spread(&machine, &request).map_err(Failure::input)?;
        // The old rule knew no distances.
        let start = match request.policy {
            Policy::NearestFirst => request.node.and_then(|node| spread::start(&machine, node)),
            Policy::KernelPre63 => None,
        };
        output::print(&match self.format {
            SpreadFormat::Table => {
                nearfar_report::spread::document(&machine, &slots, request.node, start)
                    .to_text(&output::style(colour))
            }
            SpreadFormat::Json => output::json(
                "spread/1",
                Some(&machine.origin),
                &Slots {
                    slots: &slots,
                    start,
                },
            )?,
            SpreadFormat::List => nearfar_report::spread::list(&slots),
            SpreadFormat::Mask => nearfar_report::spread::mask(&slots, machine.mask_width()),
        })
    }
}

#[derive(serde::Serialize)]
struct Slots<'a> {
    slots: &'a [spread::Slot],
    start: Option<NodeId>,
}
