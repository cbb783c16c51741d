//! The experiment as `nearfar bench tags` declares it, and how one is made of what was asked for.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_experiment::{
    BoxError, Cell, Experiment, Factor, LabHost, Level, Metric, Resources, Values,
};
use nearfar_machine::{CpuSet, Machine, NodeId};
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
use crate::registry::{Argument, Arguments, Context, Declaration, Kind, Made, RunError, Varied};

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
    arguments: &[
        Argument::new("tags", "Tags of the device", "255"),
        Argument::new(
            "workers",
            "Workers of each group, as many as its node has CPUs for",
            "4",
        ),
        Argument::seconds("seconds", "Seconds a sample takes", "0.5"),
        Argument::optional(
            "device-node",
            "The device's node [default: one with an adjacent and a most distant node]",
            Kind::Text,
        ),
        Argument::optional(
            "possible-cpus",
            "CPUs that the policy stock divides the tags by [default: the machine's possible CPUs]",
            Kind::Text,
        ),
        Argument::new(
            "service-us",
            "Microseconds for which an I/O holds its tag at least",
            "20",
        ),
        Argument::new(
            "iops",
            "I/Os per second that the device ends at most; 0 for no limit",
            "0",
        ),
        Argument {
            kind: Kind::OneOf(&["retry", "queue"]),
            ..Argument::new(
                "wait",
                "What a worker without a tag does: try again after its next completions, or queue at once",
                "retry",
            )
        },
        Argument::new(
            "batch",
            "I/Os that a worker completes at most before it submits again",
            "16",
        ),
        Argument {
            kind: Kind::Size,
            ..Argument::new(
                "request-bytes",
                "Memory of each tag's request, as struct request of Linux 3.14 with its driver's data",
                "384",
            )
        },
        Argument::optional(
            "queue-memory",
            "Memory of the device's queues, such as 32M [default: four last-level caches]",
            Kind::Size,
        ),
        Argument::optional(
            "peers",
            "Measure what programs use without nearfar as well: the policies mutex_vec and array_queue",
            Kind::Flag,
        ),
    ],
};

/// A key for each argument.
#[derive(Clone, Debug, Serialize)]
struct Parameters {
    tags: u32,
    workers: u32,
    seconds: f64,
    device_node: Option<NodeId>,
    possible_cpus: Option<u32>,
    service_us: f64,
    iops: u64,
    wait: String,
    batch: u32,
    request_bytes: u32,
    queue_memory: Option<u64>,
    peers: bool,
}

impl Parameters {
    fn read(arguments: &Arguments) -> Result<Self, RunError> {
        let device_node = arguments.within("device-node", 0..=u32::MAX)?;
        Ok(Self {
            tags: arguments.within_or_default("tags", 1..=Builder::MAX_TAGS)?,
            workers: arguments.within_or_default("workers", 1..=64)?,
            seconds: arguments.seconds_or_default("seconds", 0.001..=3600.0)?,
            device_node: device_node.map(NodeId),
            possible_cpus: arguments.within("possible-cpus", 1..=65535)?,
            service_us: arguments.within_or_default("service-us", 0.0..=1e6)?,
            iops: arguments.within_or_default("iops", 0..=1 << 40)?,
            wait: arguments.get("wait")?,
            batch: arguments.within_or_default("batch", 1..=u32::MAX)?,
            request_bytes: arguments.within_or_default("request-bytes", 32..=1 << 20)?,
            queue_memory: arguments.within("queue-memory", 1 << 12..=1 << 40)?,
            peers: arguments.has("peers")?,
        })
    }
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

pub(crate) fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<TagsExperiment<'a>>, RunError> {
    let Context { machine, .. } = context;
    let allowed = context.allowed_cpus();
    let parameters = Parameters::read(arguments)?;
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

    fn metrics(&self) -> Vec<Metric> {
        sample::metrics()
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

    fn values(sample: &Sample) -> Values {
        sample::values(sample)
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
            &DECLARATION.arguments(&[], &[], false, |_| None).unwrap(),
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
