//! The experiment as `nearfar bench tags` declares it, and how one is made of what was asked for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nearfar_experiment::{BoxError, Cell, Experiment, Factor, Level, Metric, Resources, Values};
use nearfar_machine::{CpuSet, Machine, NodeId};
use nearfar_proc::affinity;
use nearfar_tags::{Builder, Group, Policy, Tags};
use serde::Serialize;
use serde_json::Value;

use super::device::{Config, Device};
use super::groups::{Distance, Nodes};
use super::sample::{self, Sample};
use super::take::{Completion, Spec, take};
use super::topology::topology;
use super::{ALONE, DEPTH, DISTANCE, EXPERIMENT, POLICY};
use crate::lab_counts::LabCounts;
use crate::mapping::{Backing, Mapping};
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
    samples: 12,
    factors: &[
        // The last one makes the columns of a page: the published table's variants.
        Varied::new(DISTANCE, &["near", "far", ALONE], &["near", "far", ALONE]),
        Varied::numbers(DEPTH, 1..=1 << 20, &[248, 512]),
        Varied::new(COMPLETION, &["submitter", "any", "device"], &["any"]),
        Varied::new(POLICY, POLICIES, POLICIES),
    ],
    arguments: &[
        Argument::new("tags", "Tags of the device", "255"),
        Argument::new(
            "workers",
            "Workers of each group, as many as its node has CPUs for",
            "4",
        ),
        Argument::new("seconds", "Seconds a sample takes", "0.5"),
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
            "I/Os a second that the device ends at most; 0 for no limit",
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
    ],
};

const POLICIES: &[&str] = &[
    "stock",
    "limit",
    "limit_topology",
    "coarse_core",
    "coarse_llc",
    "coarse_node",
    "bitmap",
    "auto",
];

fn policy(level: &str) -> Option<Policy> {
    Some(match level {
        "stock" => Policy::Stock,
        "limit" => Policy::Limit,
        "limit_topology" => Policy::LimitTopology,
        "coarse_core" => Policy::Coarse(Group::Core),
        "coarse_llc" => Policy::Coarse(Group::Llc),
        "coarse_node" => Policy::Coarse(Group::Node),
        "bitmap" => Policy::Bitmap,
        "auto" => Policy::Auto,
        _ => return None,
    })
}

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
}

impl Parameters {
    fn read(arguments: &Arguments) -> Result<Self, RunError> {
        let device_node = arguments.within("device-node", 0..=u32::MAX)?;
        Ok(Self {
            tags: within(arguments, "tags", 1..=Builder::MAX_TAGS)?,
            workers: within(arguments, "workers", 1..=64)?,
            seconds: within(arguments, "seconds", 0.001..=3600.0)?,
            device_node: device_node.map(NodeId),
            possible_cpus: arguments.within("possible-cpus", 1..=65535)?,
            service_us: within(arguments, "service-us", 0.0..=1e6)?,
            iops: within(arguments, "iops", 0..=1 << 40)?,
            wait: arguments.get("wait")?,
            batch: within(arguments, "batch", 1..=u32::MAX)?,
            request_bytes: within(arguments, "request-bytes", 32..=1 << 20)?,
            queue_memory: arguments.within("queue-memory", 1 << 12..=1 << 40)?,
        })
    }
}

/// The value of an argument with a default.
fn within<T>(
    arguments: &Arguments,
    name: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, RunError>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let value = arguments.within(name, range)?;
    value.ok_or_else(|| arguments.wrong(name, "expected a value".to_owned()).into())
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
    counts: Option<LabCounts>,
}

pub(crate) fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<TagsExperiment<'a>>, RunError> {
    let Context { machine, .. } = context;
    let online = machine.cpu_states.online.clone();
    let allowed = affinity::get(0).map_or(online.clone(), |allowed| allowed.intersection(&online));
    let mut experiment = TagsExperiment {
        machine,
        parameters: Parameters::read(arguments)?,
        factors: arguments.factors(),
        cells: arguments.cells(),
        allowed,
        memory: None,
        counts: LabCounts::of(machine),
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

    fn tags(&self, cell: &Cell) -> Result<Tags, BoxError> {
        let level = cell.text(POLICY);
        let policy = policy(&level).ok_or_else(|| format!("{level} is no policy"))?;
        let mut builder = Tags::builder(self.parameters.tags)
            .policy(policy)
            .topology(topology(self.machine));
        if let Some(cpus) = self.parameters.possible_cpus {
            builder = builder.possible_cpus(cpus);
        }
        Ok(builder.build()?)
    }

    /// Has a CPU of the node touch each page first, for a process that may not bind memory.
    fn touch_on(&self, node: NodeId, words: &[AtomicU64]) -> Result<(), BoxError> {
        let cpus = self
            .machine
            .node(node)
            .map(|node| node.cpus.intersection(&self.allowed));
        let cpus = cpus.unwrap_or_default();
        let touch = || {
            let pages = words.chunks(rustix::param::page_size() / size_of::<u64>());
            pages.for_each(|page| page[0].store(0, Ordering::Relaxed));
        };
        std::thread::scope(|scope| {
            let touched = scope.spawn(|| affinity::run_on(&cpus).map(|()| touch()));
            touched.join().map_err(|_| "a thread panicked")
        })??;
        Ok(())
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
        format!("{tags} tags, {workers} workers a group")
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
        let mut memory = Mapping::new(bytes, Backing::Transparent)?;
        if self.machine.online_nodes().count() > 1 && memory.bind(node).is_err() {
            self.touch_on(node, memory.shared_words())?;
        } else {
            memory.touch(0..memory.bytes());
        }
        self.memory = Some(memory);
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
        let cpus = nodes.cpus(self.machine, &self.allowed, distance, workers)?;
        // A worker alone keeps the share that it has of two groups.
        let both = match distance {
            Distance::Alone => 2 * workers,
            Distance::Near | Distance::Far => cpus.len(),
        };
        let spec = Spec {
            cpus: &cpus,
            on_device_node: cpus.len().div_ceil(2),
            completion: completion.ok_or_else(|| unknown(COMPLETION))?,
            shares: shares(depth.unsigned_abs(), both as u64),
            batch: self.parameters.batch,
            is_queueing: self.parameters.wait == "queue",
            time: Duration::from_secs_f64(self.parameters.seconds),
            device: self.device(cpus.len()),
            counts: self.counts.as_ref(),
        };
        let memory = self
            .memory
            .as_ref()
            .ok_or("the memory of the device is missing")?;
        take(&spec, &self.tags(cell)?, memory.shared_words(), cancel)
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
    fn each_level_of_the_policy_is_one() {
        let policies: std::collections::HashSet<_> =
            POLICIES.iter().map(|it| policy(it).unwrap()).collect();
        assert_eq!(policies.len(), POLICIES.len());
    }
}
