//! Case 3: the tags of a device, taken by two groups of workers, one of them on the device's node.
//!
//! ```text
//!  node of the device              adjacent (near) or most distant (far) node
//!  worker worker worker worker     worker worker worker worker      a thread each, pinned, up to its share of the depth in flight
//!     │ take                          │ take                        Tags: the policy of the cell
//!     ▼                               ▼
//!  request of the tag, entries of the queues: memory of the device's node
//!     │ due after the device's service time
//!     ▼
//!  completed by the submitter, any worker or one on the device's node ─► put
//!
//! plan ────► scenarios    near-low, near-high, far-low, far-high, alone: cells that differ in the policy only
//! samples ─► findings     is one policy better than another in a scenario? (nearfar-statistics, paired by round)
//! CSV ─────► published    figures of others, and whether they rank the cells the same way
//! ```
//!
//! Here are what `nearfar bench tags` declares, which cells a run has, what a sample has, and the scenarios, named as the published
//! table names its rows:
//!
//! ```text
//! distance near, depth 248, 255 tags  ──► near-low         distance near, depth 512, 255 tags  ──► near-high
//! distance alone, one depth           ──► alone            completion varies as well           ──► near-low, any
//! ```

mod device;
pub mod findings;
mod groups;
mod measure;
pub mod published;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args as _;
use nearfar_experiment::{BoxError, Column, Experiment, LabHost, Resources, RunPlan};
use nearfar_machine::{CpuSet, Machine, NodeId, seconds};
use nearfar_runs::{Better, Cell, Detail, Histogram, Level, Metric};
use nearfar_tags::{Builder, Steals};
use serde::{Deserialize, Serialize};

use crate::node_buffers::Mapping;
use crate::probe::default_buffer_bytes;
use crate::registry::{
    Arguments, Context, Declaration, Entry, Made, RunError, SECONDS, Varied, node, number, size,
    within,
};
use device::{Allocator, Config, Device, on_node, topology};
use groups::{Distance, Nodes};
use measure::{Completion, LineTransfers, Measured, Spec, take};

pub use findings::{Findings, findings};
#[cfg(test)]
pub(crate) use groups::tests::machine as machine_of_four_nodes;
pub use groups::{Groups, groups};
pub use published::Published;

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "tags";

/// The primary metric.
pub const OPERATIONS: &str = "operations_per_s";
/// CPU time of the workers through the operations.
pub const CPU_PER_OPERATION: &str = "cpu_ns_per_operation";
/// The share of the workers' CPU time that was the kernel's, 0 to 1.
pub const SYSTEM_SHARE: &str = "system_share";

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
        Varied::new(
            COMPLETION,
            &["submitter", "any", "device", "interrupt"],
            &["any"],
        ),
        Varied::new(POLICY, device::ALL, device::POLICIES),
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
    plan: RunPlan,
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
    let mut experiment = TagsExperiment {
        machine,
        plan: plan(arguments, &parameters),
        parameters,
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
            let count = self.plan.cells.len();
            self.plan.cells.retain(|cell| cell.text(DISTANCE) != level);
            if self.plan.cells.len() < count {
                notes.push(format!("not measured: distance={level}: {reason}"));
            }
        }
        if !notes.is_empty() && nodes.other(Distance::Near).is_err() {
            notes.push(GUEST_HINT.to_owned());
        }
        notes.extend(self.leave_out_interrupts(&nodes));
        match self.plan.cells.is_empty() {
            true => Err(RunError::Target(notes.join("\n").into())),
            false => Ok(notes),
        }
    }

    /// Leaves out the cells for whose interrupts the device's node has no CPU left.
    fn leave_out_interrupts(&mut self, nodes: &Nodes) -> Vec<String> {
        let (machine, allowed) = (self.machine, &self.allowed);
        let workers = self.parameters.workers as usize;
        let has_none = |level: &str| {
            let distance = Distance::of(level)?;
            let groups = nodes.groups(machine, allowed, distance, workers).ok()?;
            Some(groups.interrupt_cpu.is_none())
        };
        let mut notes = BTreeSet::new();
        self.plan.cells.retain(|cell| {
            let level = cell.text(DISTANCE);
            let is_left_out =
                cell.text(COMPLETION) == "interrupt" && has_none(&level) == Some(true);
            if is_left_out {
                notes.insert(format!(
                    "not measured: completion=interrupt, distance={level}: node {} has no CPU without a worker",
                    nodes.device
                ));
            }
            !is_left_out
        });
        notes.into_iter().collect()
    }

    fn allocator(&self, cell: &Cell) -> Result<Allocator, BoxError> {
        let (tags, possible_cpus) = (self.parameters.tags, self.parameters.possible_cpus);
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

    fn plan(&self) -> RunPlan {
        self.plan.clone()
    }

    fn columns() -> Vec<Column<Sample>> {
        columns()
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
            near_interrupts: groups.near_interrupts(self.machine),
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

/// The plan: with the peers where they are wanted, and one cell of a worker alone for each policy. It has tags to spare at
/// any depth, and one CPU completes its I/Os at any level of the completion. Cells that were asked for one by one stay as they are.
fn plan(arguments: &Arguments, parameters: &Parameters) -> RunPlan {
    let mut plan = arguments.plan(parameters);
    let mut factors = plan.factors.iter_mut();
    if parameters.peers
        && let Some(policy) = factors.find(|it| it.name == POLICY)
    {
        let peers = device::PEERS.iter().map(|&peer| Level::from(peer));
        let new: Vec<Level> = peers.filter(|it| !policy.levels.contains(it)).collect();
        policy.levels.extend(new);
    }
    if !arguments.named_cells().is_empty() {
        return plan;
    }
    let mut alone = Vec::new();
    plan.cells = Cell::all(&plan.factors);
    plan.cells.retain(|cell| {
        let policy = cell.text(POLICY);
        let is_alone = cell.text(DISTANCE) == ALONE;
        let is_repeated = is_alone && alone.contains(&policy);
        if is_alone && !is_repeated {
            alone.push(policy);
        }
        !is_repeated
    });
    plan
}

pub const POLICY: &str = "policy";
pub const DISTANCE: &str = "distance";
pub const DEPTH: &str = "depth";
/// The level of [`DISTANCE`] with one thread and tags to spare.
pub const ALONE: &str = "alone";

/// What [`Scenario::published_name`] can be.
const PUBLISHED_NAMES: [&str; 5] = ["near-low", "near-high", "far-low", "far-high", ALONE];

/// The number of tags of the published runs, for runs whose parameters do not say it.
const PUBLISHED_TAGS: i64 = 255;

/// Cells that differ in the policy only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// Unique in its run.
    pub name: String,
    /// Distance, and whether the depth is above the number of tags: `near-low`, `far-high`; `alone` without a depth.
    pub published_name: String,
    /// The levels of all factors but the policy.
    pub levels: Cell,
}

impl Scenario {
    pub fn is_alone(&self) -> bool {
        self.levels.text(DISTANCE) == ALONE
    }

    /// The cell of a policy.
    pub fn cell(&self, policy: &str) -> Cell {
        self.levels.clone().with(POLICY, policy)
    }

    /// The levels of the factors that published tables do not have.
    fn conditions(&self) -> Cell {
        self.levels
            .only(|factor| factor != DISTANCE && factor != DEPTH)
    }
}

/// The scenarios of a run, in the order of its plan.
pub fn scenarios(detail: &Detail) -> Vec<Scenario> {
    let tags = detail.parameters.get("tags");
    let tags = tags.and_then(|it| it.as_i64().or_else(|| it.as_str()?.parse().ok()));
    let tags = tags.unwrap_or(PUBLISHED_TAGS);
    let mut all: Vec<Cell> = Vec::new();
    for cell in &detail.plan {
        let levels = cell.only(|factor| factor != POLICY);
        if !all.contains(&levels) {
            all.push(levels);
        }
    }
    let name = |levels: &Cell| Scenario {
        name: name(levels, &all, tags),
        published_name: published_name(levels, tags),
        levels: levels.clone(),
    };
    all.iter().map(name).collect()
}

/// The policies of a run, in the order of its plan.
fn policies(detail: &Detail) -> Vec<String> {
    let mut all = Vec::new();
    for cell in &detail.plan {
        let policy = cell.text(POLICY);
        if !all.contains(&policy) {
            all.push(policy);
        }
    }
    all
}

fn published_name(levels: &Cell, tags: i64) -> String {
    let distance = levels.text(DISTANCE);
    match side(levels, tags) {
        Some(side) if distance != ALONE => format!("{distance}-{side}"),
        _ => distance,
    }
}

/// Whether the depth is above the number of tags; `None` without a depth.
fn side(levels: &Cell, tags: i64) -> Option<&'static str> {
    match levels.level(DEPTH)? {
        Level::Number(depth) if *depth > tags => Some("high"),
        Level::Number(_) => Some("low"),
        _ => None,
    }
}

/// The published name, with what tells depths apart where it would name two, and the levels of other factors that vary.
fn name(levels: &Cell, all: &[Cell], tags: i64) -> String {
    let published = published_name(levels, tags);
    let with_this_name = all
        .iter()
        .filter(|it| published_name(it, tags) == published);
    let depths: BTreeSet<_> = with_this_name
        .map(|it| (it.text(DEPTH), side(it, tags)))
        .collect();
    let sides: BTreeSet<_> = depths.iter().map(|(_, side)| side).collect();
    let distance = levels.text(DISTANCE);
    let mut name = match side(levels, tags) {
        _ if depths.len() < 2 => published,
        Some(side) if sides.len() == depths.len() => format!("{distance}-{side}"),
        _ => format!("{distance}-{}", levels.text(DEPTH)),
    };
    for (factor, level) in levels.levels() {
        let varies = || all.iter().any(|it| it.level(factor) != Some(level));
        if factor != DISTANCE && factor != DEPTH && varies() {
            name += &format!(", {level}");
        }
    }
    name
}

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    operations_per_s: f64,
    /// CPU time of the workers.
    cpu_s: f64,
    /// The kernel's part of it, 0 to 1; `None` where no worker's is known.
    system_share: Option<f64>,
    /// `None` without an operation.
    cpu_ns_per_operation: Option<f64>,
    /// Of the workers' time, without a tag that they wanted.
    wait_share: f64,
    hand_over_ns: Histogram,
    /// `None` where the allocator counts none.
    steals: Option<StealCounts>,
    /// `None` where nothing counts them.
    line_transfers: Option<LineTransfers>,
    /// The slowest worker's operations over the fastest's; `None` if none made any.
    fairness: Option<f64>,
    /// Where the workers were.
    groups: Groups,
    /// What may be wrong with it, in sentences.
    warnings: Vec<String>,
}

/// What was counted outside the workers while they measured.
struct Meanwhile {
    groups: Groups,
    steals: Option<StealCounts>,
    line_transfers: Option<LineTransfers>,
    warnings: Vec<String>,
}

/// Steals by what both CPUs share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct StealCounts {
    core: u64,
    core_group: u64,
    llc: u64,
    node: u64,
    remote: u64,
    remote_distance: u64,
    tags: u64,
}

/// The distance within a node, as in ACPI's SLIT.
const LOCAL_DISTANCE: u64 = 10;

impl StealCounts {
    fn between(before: &Steals, after: &Steals) -> Self {
        Self {
            core: after.core - before.core,
            core_group: after.core_group - before.core_group,
            llc: after.llc - before.llc,
            node: after.node - before.node,
            remote: after.remote - before.remote,
            remote_distance: after.remote_distance - before.remote_distance,
            tags: after.tags - before.tags,
        }
    }

    fn local(&self) -> u64 {
        self.core + self.core_group + self.llc + self.node
    }

    /// The mean distance from the CPU that took tags to the one they were taken from; `None` without steals.
    fn mean_distance(&self) -> Option<f64> {
        self.mean(LOCAL_DISTANCE * self.local() + self.remote_distance)
    }

    /// The tags that one steal took, in the mean; `None` without steals.
    fn mean_tags(&self) -> Option<f64> {
        self.mean(self.tags)
    }

    fn mean(&self, sum: u64) -> Option<f64> {
        let count = self.local() + self.remote;
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

impl Sample {
    fn new(workers: &[Measured], meanwhile: Meanwhile) -> Self {
        let sum = |of: fn(&Measured) -> f64| workers.iter().map(of).sum::<f64>();
        let rates = || workers.iter().map(|it| it.operations as f64 / it.elapsed_s);
        let (least, most) = (
            rates().fold(f64::INFINITY, f64::min),
            rates().fold(0.0, f64::max),
        );
        let mut hand_over_ns = Histogram::new();
        workers
            .iter()
            .for_each(|it| hand_over_ns.merge(&it.hand_over_ns));
        let (cpu_s, operations) = (sum(|it| it.cpu_s), sum(|it| it.operations as f64));
        let mut warnings = meanwhile.warnings;
        warnings.extend(open_waits(workers, &hand_over_ns));
        Self {
            operations_per_s: rates().sum(),
            cpu_s,
            system_share: system_share(workers),
            cpu_ns_per_operation: (operations > 0.0).then(|| 1e9 * cpu_s / operations),
            wait_share: sum(|it| it.wait_s) / sum(|it| it.elapsed_s),
            hand_over_ns,
            steals: meanwhile.steals,
            line_transfers: meanwhile.line_transfers,
            fairness: (most > 0.0).then_some(least / most),
            groups: meanwhile.groups,
            warnings,
        }
    }
}

/// The kernel's share of the CPU time of those workers for which it is known.
fn system_share(workers: &[Measured]) -> Option<f64> {
    let known = workers
        .iter()
        .filter_map(|it| Some((it.cpu_s, it.cpu_s * it.system_share?)));
    let (cpu_s, system_s) = known.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    (cpu_s > 0.0).then(|| system_s / cpu_s)
}

/// A warning when a wait that had not ended had lasted longer than every wait that did: the histogram is without it.
fn open_waits(workers: &[Measured], hand_over_ns: &Histogram) -> Option<String> {
    let open_ns = workers.iter().filter_map(|it| it.open_wait_ns).max()?;
    let longest_ns = hand_over_ns.quantiles().map_or(0, |it| it.max);
    (open_ns > longest_ns).then(|| {
        format!(
            "a worker still waited for a tag at the end, for {:.3} ms so far: longer than every wait in hand_over_ns, \
             which has only waits that ended; wait_share has it",
            open_ns as f64 / 1e6
        )
    })
}

fn columns() -> Vec<Column<Sample>> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    let count = |name| Metric::integer(name, "", Better::Lower);
    let steals = |name, of: fn(&StealCounts) -> u64| {
        Column::new(count(name), move |it: &Sample| it.steals.as_ref().map(of))
    };
    let mean = |name, of: fn(&StealCounts) -> Option<f64>| {
        Column::new(lower(name, ""), move |it: &Sample| {
            it.steals.as_ref().and_then(of)
        })
    };
    let transfers = |name, of: fn(&LineTransfers) -> u64| {
        Column::new(count(name), move |it: &Sample| {
            it.line_transfers.as_ref().map(of)
        })
    };
    let system_s = |it: &Sample| Some(it.system_share? * it.cpu_s);
    vec![
        Column::new(
            Metric::real(OPERATIONS, "1/s", Better::Higher).primary(),
            |it: &Sample| Some(it.operations_per_s),
        ),
        Column::new(lower("system_s", "s"), system_s),
        Column::new(lower("user_s", "s"), move |it: &Sample| {
            Some(it.cpu_s - system_s(it)?)
        }),
        Column::new(lower(SYSTEM_SHARE, "1"), |it: &Sample| it.system_share),
        Column::new(lower(CPU_PER_OPERATION, "ns"), |it: &Sample| {
            it.cpu_ns_per_operation
        }),
        Column::new(lower("wait_share", "1"), |it: &Sample| Some(it.wait_share)),
        Column::new(
            Metric::histogram("hand_over_ns", "ns", Better::Lower),
            |it: &Sample| Some(it.hand_over_ns.clone()).filter(|it| it.count() > 0),
        ),
        steals("steals_core", |it| it.core),
        steals("steals_core_group", |it| it.core_group),
        steals("steals_llc", |it| it.llc),
        steals("steals_node", |it| it.node),
        steals("steals_remote", |it| it.remote),
        mean("steal_distance", StealCounts::mean_distance),
        mean("tags_per_steal", StealCounts::mean_tags),
        transfers("line_transfers", LineTransfers::all),
        transfers("line_transfers_remote", |it| it.other_node),
        Column::new(
            Metric::real("fairness", "1", Better::Higher),
            |it: &Sample| it.fairness,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use nearfar_experiment::{metrics, values};
    use nearfar_machine::{CpuId, NodeId};

    use nearfar_runs::{Better, Detail, Factor, Metric, Sample as StoredSample, Values};
    use serde_json::{Value, json};

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

    fn plan(words: &[&str], peers: bool) -> RunPlan {
        let factors: Vec<String> = words.iter().map(|&it| it.to_owned()).collect();
        let given = Vec::from_iter(peers.then(|| "--peers".into()));
        let arguments = DECLARATION.arguments(&factors, &[], false, given);
        let arguments = arguments.unwrap();
        super::plan(&arguments, &arguments.parameters().unwrap())
    }

    #[test]
    fn a_worker_alone_is_measured_once_for_each_policy() {
        let words = ["completion=any,device", "policy=stock,auto"];
        let cells = plan(&words, false).cells;
        let alone = cells.iter().filter(|cell| cell.text(DISTANCE) == ALONE);
        let policies: Vec<String> = alone.map(|cell| cell.text(POLICY)).collect();
        assert_eq!(policies, ["stock", "auto"]);
        assert_eq!(cells.len(), 2 * 2 * 2 * 2 + 2);
        assert_eq!(plan(&[], false).cells.len(), 40);
    }

    #[test]
    fn peers_are_further_policies() {
        let words = ["policy=auto,array_queue"];
        let RunPlan { factors, cells, .. } = plan(&words, true);
        let policy = factors.iter().find(|it| it.name == POLICY).unwrap();
        let expected = ["auto", "array_queue", "mutex_vec"].map(Level::from);
        assert_eq!(policy.levels, expected);
        assert_eq!(cells.len(), 3 * 5);
    }

    fn names(plan: &[Cell]) -> Vec<String> {
        let scenarios = scenarios(&detail(plan.to_vec()));
        scenarios.into_iter().map(|it| it.name).collect()
    }

    fn cell(distance: &str, depth: i64, completion: &str) -> Cell {
        let cell = Cell::new().with(POLICY, "stock").with(DISTANCE, distance);
        cell.with(DEPTH, depth).with("completion", completion)
    }

    #[test]
    fn scenarios_have_the_published_names() {
        let plan = [("near", 248), ("near", 512), ("far", 248), ("alone", 248)]
            .map(|(distance, depth)| cell(distance, depth, "any"));
        assert_eq!(names(&plan), ["near-low", "near-high", "far-low", "alone"]);
        let plan = [cell("alone", 248, "any"), cell("alone", 512, "any")];
        assert_eq!(names(&plan), ["alone-low", "alone-high"]);
    }

    #[test]
    fn what_else_varies_is_in_the_name() {
        let plan = [
            cell("near", 248, "any"),
            cell("near", 248, "device"),
            cell("alone", 248, "any"),
        ];
        assert_eq!(
            names(&plan),
            ["near-low, any", "near-low, device", "alone, any"]
        );
        let plan = [cell("near", 128, "any"), cell("near", 248, "any")];
        assert_eq!(names(&plan), ["near-128", "near-248"]);
    }

    fn measured(operations: u64) -> Measured {
        Measured {
            operations,
            elapsed_s: 0.5,
            cpu_s: 0.4,
            system_share: Some(0.25),
            wait_s: 0.25,
            hand_over_ns: Histogram::new(),
            open_wait_ns: None,
        }
    }

    fn sample(steals: Steals) -> Sample {
        let meanwhile = Meanwhile {
            groups: Groups::alone(NodeId(0), CpuId(0)),
            steals: Some(StealCounts::between(&Steals::default(), &steals)),
            line_transfers: None,
            warnings: Vec::new(),
        };
        Sample::new(&[measured(100), measured(400)], meanwhile)
    }

    #[test]
    fn a_sample_is_the_sum_of_its_workers() {
        let mut steals = Steals::default();
        steals.node = 1;
        steals.remote = 3;
        steals.remote_distance = 90;
        steals.tags = 10;
        let values = values(&columns(), &sample(steals));
        let of = |name: &str| values[name].number();
        assert_eq!(of("operations_per_s"), 1000.0);
        assert_eq!((of("wait_share"), of("fairness")), (0.5, 0.25));
        assert!((of("system_share") - 0.25).abs() < 1e-9);
        assert!((of("user_s") - 0.6).abs() < 1e-9 && (of("system_s") - 0.2).abs() < 1e-9);
        assert!((of("cpu_ns_per_operation") - 0.8e9 / 500.0).abs() < 1e-3);
        assert_eq!((of("steals_remote"), of("steal_distance")), (3.0, 25.0));
        assert_eq!(of("tags_per_steal"), 2.5);
    }

    #[test]
    fn an_allocator_that_counts_no_steals_has_no_figure_of_them() {
        let mut sample = sample(Steals::default());
        assert_eq!(values(&columns(), &sample)["steals_node"].number(), 0.0);
        sample.steals = None;
        let values = values(&columns(), &sample);
        assert!(values.keys().all(|name| !name.contains("steal")));
    }

    #[test]
    fn what_did_not_happen_has_no_distance_and_no_time() {
        let values = values(&columns(), &sample(Steals::default()));
        assert_eq!(values.get("steal_distance"), None);
        assert_eq!(values.get("hand_over_ns"), None);
        assert_eq!(values.get("line_transfers"), None);
        assert_eq!(
            nearfar_runs::check_values(&metrics(columns()), &values),
            Ok(())
        );
    }

    #[test]
    fn line_transfers_are_all_and_those_between_nodes() {
        let mut sample = sample(Steals::default());
        sample.line_transfers = Some(LineTransfers {
            same_node: 3,
            other_node: 40,
        });
        let values = values(&columns(), &sample);
        let of = |name: &str| values[name].number();
        assert_eq!(
            (of("line_transfers"), of("line_transfers_remote")),
            (43.0, 40.0)
        );
    }

    #[test]
    fn the_share_of_a_worker_without_one_is_not_0() {
        let without = Measured {
            system_share: None,
            ..measured(1)
        };
        let share = |workers: &[Measured]| system_share(workers);
        let known = share(&[measured(1), without.clone()]).unwrap();
        assert!((known - 0.25).abs() < 1e-9);
        assert_eq!(share(&[without]), None);
    }

    #[test]
    fn a_wait_without_end_is_a_warning_where_no_other_was_as_long() {
        let waiting = |open_wait_ns| Measured {
            open_wait_ns: Some(open_wait_ns),
            ..measured(1)
        };
        let mut ended = Histogram::new();
        ended.record(1000);
        assert_eq!(open_waits(&[waiting(900), measured(1)], &ended), None);
        let warning = open_waits(&[waiting(900), waiting(2_000_000)], &ended).unwrap();
        assert!(warning.contains("2.000 ms"), "{warning}");
    }

    pub(super) fn detail(plan: Vec<Cell>) -> Detail {
        Detail {
            parameters: json!({"tags": 255}),
            factors: Factor::of_cells(&plan),
            plan,
            metrics: vec![
                Metric::real(OPERATIONS, "1/s", Better::Higher).primary(),
                Metric::real(CPU_PER_OPERATION, "ns", Better::Lower),
            ],
            seed: 1,
            ..Detail::default()
        }
    }

    pub(super) fn policy_cell(policy: &str, distance: &str, depth: i64) -> Cell {
        let cell = Cell::new().with(POLICY, policy).with(DISTANCE, distance);
        cell.with(DEPTH, depth)
    }

    /// A run in which each cell has such a median; samples of a round share a drift, and have noise of 2 % of their own.
    pub(super) fn run(cells: &[(Cell, f64)], rounds: u32) -> (Detail, Vec<StoredSample>) {
        let mut random = fastrand::Rng::with_seed(7);
        let mut samples = Vec::new();
        for round in 1..=rounds {
            let drift = 1.0 + 0.3 * random.f64();
            for (cell, median) in cells {
                let noise = 1.0 + 0.02 * (random.f64() - 0.5);
                let value = median * drift * noise;
                let cpu_ns = 1e9 / value;
                let values: Values = [
                    (OPERATIONS.to_owned(), value.into()),
                    (CPU_PER_OPERATION.to_owned(), cpu_ns.into()),
                ]
                .into();
                samples.push(StoredSample {
                    number: samples.len() as u64 + 1,
                    round,
                    cell: cell.clone(),
                    started_at_s: 0.0,
                    took_s: 1.0,
                    values,
                    failed: None,
                    warnings: Vec::new(),
                    detail: Value::Null,
                });
            }
        }
        let plan = cells.iter().map(|(cell, _)| cell.clone()).collect();
        (detail(plan), samples)
    }
}
