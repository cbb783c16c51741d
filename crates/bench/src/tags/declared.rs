//! The experiment as `nearfar bench tags` declares it, and how one is made of what was asked for.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args as _;
use nearfar_experiment::{BoxError, Cell, Column, Experiment, Factor, LabHost, Level, Resources};
use nearfar_machine::{CpuSet, Machine, NodeId, seconds};
use nearfar_tags::Builder;
use serde::Serialize;
use serde_json::Value;

use super::allocator::{self, Allocator};
use super::device::{Config, Device};
use super::groups::{Distance, Groups, Nodes};
use super::memory::on_node;
use super::plan::planned;
use super::sample::{self, Sample};
use super::take::{Completion, Spec, take};
use super::topology::topology;
use super::{ALONE, DEPTH, DISTANCE, EXPERIMENT, POLICY};
use crate::line_transfers::LineTransfers;
use crate::mapping::Mapping;
use crate::probe::default_buffer_bytes;
use crate::registry::{
    Arguments, Context, Declaration, Entry, Made, RunError, SECONDS, Varied, node, number, size,
    within,
};

/// What to do on a machine without a second node.
const GUEST_HINT: &str = "a guest of four nodes has them: --guest machine=kunpeng --guest arch=x86_64 --guest \
                          scale=cpus=1,memory=512M --guest delay=auto";

const COMPLETION: &str = "completion";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure allocators of a device's tags, near and far: policy x distance x depth\n\n\
            Two groups of workers submit I/O to a model of a device: one on the device's node, one on the adjacent node \
            (near) or the most distant one (far). Each I/O holds one of the device's tags. A depth above the number of tags \
            makes the workers wait for one. alone is one worker on the device's node, with tags to spare.",
    examples: &[
        "",
        "--factor policy=stock,limit_topology,auto --factor distance=far --samples 20",
        "--factor completion=submitter,any,device --device-node 1",
        "--resume",
    ],
    is_hidden: false,
    is_of_machine: false,
    needs_devices: false,
    is_simulated: true,
    samples: 12,
    factors: &[
        // The last one makes the columns of a page: the published table's variants.
        Varied::new(DISTANCE, &["near", "far", ALONE], &["near", "far", ALONE]),
        Varied::numbers(DEPTH, 1..=1 << 20, &[248, 512]),
        Varied::new(COMPLETION, &["submitter", "any", "device"], &["any"]),
        Varied::new(POLICY, allocator::ALL, allocator::POLICIES),
    ],
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(make),
};

/// Its own options, as they are stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct Parameters {
    /// Tags of the device
    #[arg(long, value_name = "N", default_value = "255", value_parser = within(1..=Builder::MAX_TAGS, number::<u32>))]
    tags: u32,
    /// Workers of each group, as many as its node has CPUs for
    #[arg(long, value_name = "N", default_value = "4", value_parser = within(1..=64, number::<u32>))]
    workers: u32,
    /// Seconds a sample takes
    #[arg(long, value_name = SECONDS, default_value = "0.5", value_parser = within(0.001..=3600.0, seconds::parse))]
    seconds: f64,
    /// The device's node [default: one with an adjacent and a most distant node]
    #[arg(long, value_name = "NODE", value_parser = node)]
    device_node: Option<NodeId>,
    /// CPUs that the policy stock divides the tags by [default: the machine's possible CPUs]
    #[arg(long, value_name = "N", value_parser = within(1..=65535, number::<u32>))]
    possible_cpus: Option<u32>,
    /// Microseconds for which an I/O holds its tag at least
    #[arg(long, value_name = "N", default_value = "20", value_parser = within(0.0..=1e6, number))]
    service_us: f64,
    /// I/Os per second that the device ends at most; 0 for no limit
    #[arg(long, value_name = "N", default_value = "0", value_parser = within(0..=1 << 40, number::<u64>))]
    iops: u64,
    /// What a worker without a tag does: try again after its next completions, or queue at once
    #[arg(long, value_name = "NAME", default_value = "retry", value_parser = ["retry", "queue"])]
    wait: String,
    /// I/Os that a worker completes at most before it submits again
    #[arg(long, value_name = "N", default_value = "16", value_parser = within(1..=u32::MAX, number::<u32>))]
    batch: u32,
    /// Memory of each tag's request, as struct request of Linux 3.14 with its driver's data
    #[arg(long, value_name = "SIZE", default_value = "384", value_parser = size(32..=1 << 20))]
    request_bytes: u64,
    /// Memory of the device's queues, such as 32M [default: four last-level caches]
    #[arg(long, value_name = "SIZE", value_parser = size(1 << 12..=1 << 40))]
    queue_memory: Option<u64>,
    /// Measure what programs use without nearfar as well: the policies mutex_vec and array_queue
    #[arg(long)]
    peers: bool,
}

/// The experiment, on this machine or, with targets, on theirs.
pub(crate) struct TagsExperiment<'a> {
    machine: &'a Machine,
    parameters: Parameters,
    factors: Vec<Factor>,
    cells: Vec<Cell>,
    /// CPUs that this process may use.
    allowed: CpuSet,
    memory: Option<Mapping>,
    /// Where the memory is not as it should be; of every sample.
    memory_warnings: Vec<String>,
    counts: Option<LabHost>,
}

fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<TagsExperiment<'a>>, RunError> {
    let Context { machine, .. } = context;
    let allowed = context.allowed_cpus();
    let parameters: Parameters = arguments.parameters()?;
    let (factors, cells) = planned(arguments, parameters.peers);
    let mut experiment = TagsExperiment {
        machine,
        parameters,
        factors,
        cells,
        allowed,
        memory: None,
        memory_warnings: Vec::new(),
        counts: LineTransfers::host(machine),
    };
    let mut notes = Vec::new();
    if context.is_measured_here {
        notes = experiment.leave_out_cells()?;
    }
    let sample = Duration::from_secs_f64(1.25 * experiment.parameters.seconds);
    Ok(Made {
        experiment,
        warnings: Vec::new(),
        notes,
        sample: Some(sample),
    })
}

impl TagsExperiment<'_> {
    fn nodes(&self) -> Result<Nodes, RunError> {
        let chosen = Nodes::choose(self.machine, &self.allowed, self.parameters.device_node);
        chosen.map_err(|error| RunError::Target(format!("--device-node: {error}").into()))
    }

    /// Leaves out the cells that this machine has no node for. What was left out and why, in sentences.
    fn leave_out_cells(&mut self) -> Result<Vec<String>, RunError> {
        let nodes = self.nodes()?;
        let mut notes = Vec::new();
        for (level, distance) in [("near", Distance::Near), ("far", Distance::Far)] {
            let Err(reason) = nodes.other(distance) else {
                continue;
            };
            let count = self.cells.len();
            self.cells.retain(|cell| cell.text(DISTANCE) != level);
            if self.cells.len() < count {
                notes.push(format!("not measured: distance={level}: {reason}"));
            }
        }
        if !notes.is_empty() && nodes.other(Distance::Near).is_err() {
            notes.push(GUEST_HINT.to_owned());
        }
        match self.cells.is_empty() {
            true => Err(RunError::Target(notes.join("\n").into())),
            false => Ok(notes),
        }
    }

    fn allocator(&self, cell: &Cell) -> Result<Allocator, BoxError> {
        let Parameters {
            tags,
            possible_cpus,
            ..
        } = self.parameters;
        Allocator::new(&cell.text(POLICY), tags, |builder| {
            let builder = builder.topology(topology(self.machine));
            match possible_cpus {
                Some(cpus) => builder.possible_cpus(cpus),
                None => builder,
            }
        })
    }

    /// I/Os that each worker keeps in flight. One that is alone has the share that it has of two groups, and tags to spare.
    fn shares(&self, depth: u64, groups: &Groups) -> Vec<u64> {
        match groups.other_node {
            Some(_) => shares(depth, groups.workers().len() as u64),
            None => {
                let share = shares(depth, 2 * u64::from(self.parameters.workers))[0];
                vec![share.min(u64::from(self.parameters.tags / 2)).max(1)]
            }
        }
    }

    fn device(&self, workers: usize) -> Config {
        let Parameters {
            tags,
            request_bytes,
            service_us,
            iops,
            ..
        } = self.parameters;
        Config {
            tags,
            request_bytes: request_bytes as usize,
            service_ns: (service_us * 1e3) as u64,
            interval_ns: (1_000_000_000 * workers as u64)
                .checked_div(iops)
                .unwrap_or(0),
        }
    }
}

/// The depth in equal shares, the remainder one each to the first, at least one.
fn shares(depth: u64, workers: u64) -> Vec<u64> {
    let share = |worker| (depth / workers + u64::from(worker < depth % workers)).max(1);
    (0..workers).map(share).collect()
}

impl Experiment for TagsExperiment<'_> {
    type Sample = Sample;

    fn name(&self) -> &str {
        DECLARATION.name
    }

    fn title(&self) -> String {
        let Parameters { tags, workers, .. } = self.parameters;
        format!("{tags} tags, up to {workers} workers per group")
    }

    fn parameters(&self) -> Value {
        // Numbers always are JSON.
        serde_json::to_value(&self.parameters).unwrap_or_default()
    }

    fn factors(&self) -> Vec<Factor> {
        self.factors.clone()
    }

    fn cells(&self) -> Vec<Cell> {
        self.cells.clone()
    }

    fn columns() -> Vec<Column<Sample>> {
        sample::columns()
    }

    fn setup(&mut self, _: &mut Resources) -> Result<(), BoxError> {
        let node = self.nodes()?.device;
        let queues = self.parameters.queue_memory;
        let queues = queues.unwrap_or_else(|| default_buffer_bytes(self.machine, &[node]).0);
        let bytes = Device::request_memory(&self.device(1)) + queues as usize;
        let (memory, warnings) = on_node(self.machine, &self.allowed, node, bytes)?;
        self.memory = Some(memory);
        self.memory_warnings = warnings;
        Ok(())
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        let unknown = |name| format!("{} is no level of {name}", cell.text(name));
        let distance = Distance::of(&cell.text(DISTANCE)).ok_or_else(|| unknown(DISTANCE))?;
        let completion = Completion::of(&cell.text(COMPLETION));
        let Some(&Level::Number(depth)) = cell.level(DEPTH) else {
            return Err(unknown(DEPTH).into());
        };
        let (nodes, workers) = (self.nodes()?, self.parameters.workers as usize);
        let groups = nodes.groups(self.machine, &self.allowed, distance, workers)?;
        let spec = Spec {
            groups: &groups,
            completion: completion.ok_or_else(|| unknown(COMPLETION))?,
            shares: self.shares(depth.unsigned_abs(), &groups),
            batch: self.parameters.batch,
            is_queueing: self.parameters.wait == "queue",
            time: Duration::from_secs_f64(self.parameters.seconds),
            device: self.device(groups.workers().len()),
            counts: self.counts.as_ref(),
        };
        let memory = self
            .memory
            .as_ref()
            .ok_or("the memory of the device is missing")?;
        let mut sample = take(&spec, &self.allocator(cell)?, memory.shared_words(), cancel)?;
        sample.warnings.extend(self.memory_warnings.iter().cloned());
        Ok(sample)
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_depth_is_divided_among_the_workers() {
        assert_eq!(shares(10, 4), [3, 3, 2, 2]);
        assert_eq!(shares(248, 8), [31; 8]);
        assert_eq!(shares(1, 2), [1, 1]);
    }

    #[test]
    fn a_worker_alone_has_tags_to_spare() {
        let machine = crate::tags::groups::tests::machine();
        let context = Context {
            machine: &machine,
            cancel: &AtomicBool::new(false),
            is_measured_here: false,
        };
        let made = make(
            &DECLARATION.arguments(&[], &[], false, vec![]).unwrap(),
            context,
        )
        .unwrap();
        let mut experiment = made.experiment;
        let alone = Groups::alone(NodeId(0), nearfar_machine::CpuId(0));
        assert_eq!(experiment.shares(248, &alone), [31]);
        experiment.parameters.workers = 1;
        assert_eq!(experiment.shares(512, &alone), [127]);
        experiment.parameters.tags = 1;
        assert_eq!(experiment.shares(512, &alone), [1]);
    }
}
