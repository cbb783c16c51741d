//! The matrix of the probe under load: preferred node x NUMA balancing x memory x CPUs.
//!
//! ```text
//! machine, selection ──► choose ──► cells ──► one run of the frame (nearfar_experiment)
//!                                               │  each sample: start the probe, keeper if a node is preferred,
//!                                               │  prepare, trace, go, collect
//!                                               ▼
//! Answer ◄── rows, findings, warnings ◄──────── samples         pure: a stored run gives the same answer again
//! ```
//!
//! Here are what `nearfar bench probe` declares, a cell and how it is written (`preferred_node=0,numa_balancing=1,memory_node=F,
//! cpu_node=0`), and a sample as it is stored.

mod choose;
mod findings;
mod measure;
mod published;

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args as _;
use nearfar_experiment::Column;
use nearfar_machine::{Known, MAX_NUMBER, NodeId, seconds};
use nearfar_runs::{Better, Cell, Factor, Level, Metric};
use nearfar_trace::migrations::ClassCounts;
use nearfar_trace::watch::Watched;
use serde::{Deserialize, Serialize};

use crate::probe::{ChildError, PagesByNode, ProbeResult, Where, default_buffer_bytes};
use crate::registry::{
    Arguments, Context, Declaration, Entry, Made, RunError, SECONDS, Varied, number, size, within,
};
use measure::Calibrated;

pub use choose::{Balancing, Chosen, LeftOut, NoCells, Places, Selection, choose};
pub use findings::{
    Answer, Contrast, Estimate, Explained, Findings, FirstTouch, KernelSetting, Migrated, NoAnswer,
    Parameters, Question, Ratio, Row, explain, findings, rows, stored_answer, warnings,
};
pub(crate) use measure::calibrate;
pub use measure::{Matrix, is_balancing, load_cpus, places};
pub use published::Published;

/// The program that children are started from: this one, also when its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// How long a run takes unless it is said.
const RUN_S: f64 = 5.0;

const ONE_NODE: &str = "this machine has one node: every cell is the same, and what running far costs stays unknown. A guest of \
                        two nodes answers:\n  \
                        nearfar lab run --machine two-node --delay auto -- nearfar bench probe --seconds 2 --samples 8\n\
                        --factor and --cell measure what there is here";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure what placement costs a task under load: preferred node x NUMA balancing x memory x CPUs\n\n\
            A probe reads and writes a large buffer while one process on each CPU burns a constant share of it, so that the \
            scheduler moves the probe. Each cell binds its memory and CPUs to a node or leaves them unbound (F), with NUMA \
            balancing off or on, with or without a preferred node. A preferred node is measured with NUMA balancing on, \
            unless --factor numa_balancing says otherwise.\n\n\
            Cells run in random order within each round. Settings are restored at the end, also after a crash. Ctrl-C keeps \
            what was measured; --resume continues it.",
    examples: &[
        "",
        "--seconds 2 --samples 8",
        "--factor preferred_node=-1 --factor memory_node=0 --factor cpu_node=0,F",
        "--cell preferred_node=0,numa_balancing=1,memory_node=0,cpu_node=F",
        "--resume",
    ],
    is_hidden: false,
    is_of_machine: true,
    needs_devices: false,
    is_simulated: false,
    samples: 64,
    factors: &[
        Varied::of_machine(
            PREFERRED_NODE,
            "a node with CPUs, or -1 for none",
            read_preferred,
        ),
        Varied::of_machine(NUMA_BALANCING, "0 (off) or 1 (on)", read_balancing),
        Varied::of_machine(
            MEMORY_NODE,
            "a node with memory, or F for unbound",
            read_place,
        ),
        Varied::of_machine(CPU_NODE, "a node with CPUs, or F for unbound", read_place),
    ],
    options: Given::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(make),
};

/// Its own options. A run stores what comes of them, [`Parameters`].
#[derive(clap::Args)]
struct Given {
    /// How the probe accesses its buffer
    #[arg(long, value_name = "NAME", default_value = "random-read-write", value_parser = [
        "random-read-write",
        "sequential-read-write",
        "random-read",
        "sequential-read",
        "random-write",
        "sequential-write",
        "chain",
    ])]
    pattern: String,
    /// Size of the buffer, such as 256M [default: four last-level caches]
    #[arg(long, value_name = "SIZE", value_parser = size(1..=u64::MAX))]
    bytes: Option<u64>,
    /// Rounds of the probe in one run
    #[arg(long, value_name = "N", default_value = "100", value_parser = within(1..=u32::MAX, number::<u32>))]
    counts: u32,
    /// Seconds a run takes; runs before the first sample find the number of accesses [default: 5]
    #[arg(long, value_name = SECONDS, value_parser = within(0.01..=86_400.0, seconds::parse))]
    seconds: Option<f64>,
    /// Accesses in each round, instead of --seconds
    #[arg(long, value_name = "N", value_parser = within(1..=u64::MAX, number::<u64>), conflicts_with = "seconds")]
    steps: Option<u64>,
    /// Use transparent huge pages
    #[arg(long)]
    huge: bool,
    /// From which node unbound memory is first touched if the CPUs are bound and no node is preferred [default: where the probe happens to be]
    #[arg(long, value_name = "NAME", value_parser = ["near", "far"])]
    first_touch: Option<String>,
    /// The share of each CPU that the load burns, in percent; 0 for no load
    #[arg(long, value_name = "PERCENT", default_value = "60", value_parser = within(0.0..=99.0, number))]
    load: f64,
    /// Milliseconds of a period of which the load burns that share
    #[arg(long, value_name = "N", default_value = "10", value_parser = within(1..=1000, number::<u32>))]
    load_period_ms: u32,
    /// Milliseconds between two scans of NUMA balancing at least (1000 in the kernel), for short runs
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX, number::<u32>))]
    scan_period_ms: Option<u32>,
    /// Milliseconds a process has run before its first scan [default: as --scan-period-ms]
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX, number::<u32>))]
    scan_delay_ms: Option<u32>,
    /// Nanoseconds for which the load balancer takes a task for cache-hot (500000 in the kernel)
    #[arg(long, value_name = "N", value_parser = within(0..=u64::MAX, number::<u64>))]
    migration_cost_ns: Option<u64>,
}

fn read_preferred(text: &str) -> Option<Level> {
    let level = Level::Number(text.parse().ok()?);
    preferred_of(&level).map(|_| level)
}

fn read_balancing(text: &str) -> Option<Level> {
    let level = Level::Number(text.parse().ok()?);
    balancing_of(&level).map(|_| level)
}

fn read_place(text: &str) -> Option<Level> {
    let place: Where = text.parse().ok()?;
    Some(place.to_string().into())
}

/// The matrix that was asked for: a new one, calibrated, or the one of a stored run.
fn make<'a>(arguments: &Arguments, context: Context<'a>) -> Result<Made<Matrix<'a>>, RunError> {
    let (machine, cancel) = (context.machine, context.cancel);
    if let Some((run, detail)) = arguments.continued() {
        let parameters = findings::stored_parameters(run, detail);
        let parameters = parameters.map_err(|error| RunError::Target(error.into()))?;
        return Ok(Matrix::new(machine, PathBuf::from(PROGRAM), parameters).into());
    }
    let places = places(machine);
    let selection = selection(arguments);
    let chosen = choose(&places, &measure::balancing(machine), &selection);
    let chosen = chosen.map_err(|error| RunError::Target(error.into()))?;
    let mut parameters = parameters(arguments, &places, chosen)?;
    // Minutes of samples that all say the same; who names cells has a reason.
    if selection == Selection::default() && places.memory.len() < 2 && places.cpus.len() < 2 {
        return Err(RunError::Target(ONE_NODE.into()));
    }
    let mut warnings = Vec::new();
    if parameters.bytes == 0 {
        let (bytes, found) = default_buffer_bytes(machine, &places.memory);
        parameters.bytes = bytes;
        warnings.extend(found.iter().map(ToString::to_string));
    }
    let mut sample = None;
    if let Some(seconds) = parameters.calibrated_to_s {
        let found = calibrate(machine, Path::new(PROGRAM), &parameters, seconds, cancel);
        let Calibrated { steps, preparing } = found.map_err(of_child)?;
        parameters.steps = steps;
        sample = Some(preparing + std::time::Duration::from_secs_f64(seconds));
    }
    let left_out = parameters.left_out.iter();
    let notes = left_out.map(|left| format!("not measured: {}: {}", left.what, left.reason));
    let notes = notes.collect();
    let matrix = Matrix::new(machine, PathBuf::from(PROGRAM), parameters);
    let untraced = matrix.not_traced_because();
    warnings.extend(untraced.map(|reason| format!("migrations are not traced: {reason}")));
    Ok(Made {
        experiment: matrix,
        warnings,
        notes,
        sample,
    })
}

fn of_child(error: ChildError) -> RunError {
    match error {
        ChildError::BadSpec { .. } => RunError::Target(error.into()),
        ChildError::Cancelled { .. } => RunError::Interrupted,
        error => RunError::Prepare(error.into()),
    }
}

/// The declared factors, whose levels were read before.
fn selection(arguments: &Arguments) -> Selection {
    let levels = |name| arguments.levels(name).iter();
    Selection {
        preferred_node: levels(PREFERRED_NODE).filter_map(preferred_of).collect(),
        numa_balancing: levels(NUMA_BALANCING).filter_map(balancing_of).collect(),
        memory_node: levels(MEMORY_NODE).filter_map(place_of).collect(),
        cpu_node: levels(CPU_NODE).filter_map(place_of).collect(),
        cells: arguments
            .named_cells()
            .iter()
            .filter_map(MatrixCell::of)
            .collect(),
    }
}

/// What is the same in all cells. `bytes` is 0 where no size was given, `steps` 1 where it has to be calibrated.
fn parameters(
    arguments: &Arguments,
    places: &Places,
    chosen: Chosen,
) -> Result<Parameters, RunError> {
    let given: Given = arguments.parameters()?;
    let settings = measure::kernel_settings(
        given.scan_delay_ms,
        given.scan_period_ms,
        given.migration_cost_ns,
    );
    // Names in options are those of JSON in kebab-case.
    let pattern = serde_json::from_value(given.pattern.replace('-', "_").into());
    let first_touch = serde_json::from_value(given.first_touch.into());
    let first_touch: Option<FirstTouch> =
        first_touch.map_err(|error| arguments.wrong("first_touch", error.to_string()))?;
    if first_touch == Some(FirstTouch::Far) && places.cpus.len() < 2 {
        return Err(RunError::Target(
            "--first-touch far: only one node has CPUs that can be used".into(),
        ));
    }
    let seconds = given.seconds.unwrap_or(RUN_S);
    Ok(Parameters {
        pattern: pattern.map_err(|error| arguments.wrong("pattern", error.to_string()))?,
        bytes: given.bytes.unwrap_or(0),
        counts: given.counts,
        steps: given.steps.unwrap_or(1),
        calibrated_to_s: given.steps.is_none().then_some(seconds),
        load_percent: given.load,
        load_period_s: f64::from(given.load_period_ms) / 1e3,
        huge_pages: given.huge,
        first_touch,
        settings: settings.map_err(|error| RunError::Prepare(error.into()))?,
        nodes: places.cpus.clone(),
        cells: chosen.cells,
        left_out: chosen.left_out,
    })
}

/// The name of the experiment in the store.
pub const EXPERIMENT: &str = "probe";

const PREFERRED_NODE: &str = "preferred_node";
const NUMA_BALANCING: &str = "numa_balancing";
const MEMORY_NODE: &str = "memory_node";
const CPU_NODE: &str = "cpu_node";

/// Metrics: migrations of the probe by what both CPUs share.
const CROSS_NODE: &str = "cross_node_migrations";
const SAME_NODE: &str = "same_node_migrations";
const SAME_CORE: &str = "same_core_migrations";

impl From<&MatrixCell> for Cell {
    /// Places are texts, since "F" is one.
    fn from(cell: &MatrixCell) -> Self {
        let balancing = i64::from(cell.policy.numa_balancing);
        let (memory, cpus) = (cell.memory_node.to_string(), cell.cpu_node.to_string());
        Self::new()
            .with(PREFERRED_NODE, cell.preferred_number())
            .with(NUMA_BALANCING, balancing)
            .with(MEMORY_NODE, memory)
            .with(CPU_NODE, cpus)
    }
}

impl MatrixCell {
    /// `None` for a cell that is not of this experiment.
    pub fn of(cell: &Cell) -> Option<Self> {
        let policy = Policy {
            preferred_node: preferred_of(cell.level(PREFERRED_NODE)?)?,
            numa_balancing: balancing_of(cell.level(NUMA_BALANCING)?)?,
        };
        Some(Self {
            policy,
            memory_node: place_of(cell.level(MEMORY_NODE)?)?,
            cpu_node: place_of(cell.level(CPU_NODE)?)?,
        })
    }
}

/// -1 is no preferred node.
fn preferred_of(level: &Level) -> Option<Option<NodeId>> {
    match level {
        Level::Number(-1) => Some(None),
        Level::Number(node) => {
            let node = u32::try_from(*node).ok();
            node.filter(|&node| node <= MAX_NUMBER)
                .map(|node| Some(NodeId(node)))
        }
        _ => None,
    }
}

fn balancing_of(level: &Level) -> Option<bool> {
    match level {
        Level::Number(0) => Some(false),
        Level::Number(1) => Some(true),
        _ => None,
    }
}

fn place_of(level: &Level) -> Option<Where> {
    level.to_string().parse().ok()
}

/// The factors, with the levels that these cells have.
fn factors(cells: &[MatrixCell]) -> Vec<Factor> {
    let levels = |factor: &str| {
        let mut levels: Vec<Level> = cells
            .iter()
            .filter_map(|cell| Cell::from(cell).level(factor).cloned())
            .collect();
        levels.sort_unstable();
        levels.dedup();
        Factor {
            name: factor.to_owned(),
            levels,
        }
    };
    [PREFERRED_NODE, NUMA_BALANCING, MEMORY_NODE, CPU_NODE]
        .map(levels)
        .into()
}

/// What a sample has. All but the run time need the trace, and are unknown without it.
fn columns() -> Vec<Column<Sample>> {
    vec![
        Column::new(Metric::elapsed().primary(), |it: &Sample| {
            Some(it.probe.seconds)
        }),
        Column::new(
            Metric::real("remote_access_share", "1", Better::Lower),
            |it: &Sample| it.far_share().get().copied(),
        ),
        moves(CROSS_NODE, |it| it.cross_node),
        moves(SAME_NODE, |it| it.same_cache + it.same_node),
        moves(SAME_CORE, |it| it.same_core),
    ]
}

fn moves(name: &str, of: fn(&ClassCounts) -> u64) -> Column<Sample> {
    let of = move |it: &Sample| Some(of(&it.trace.get()?.found.migrations));
    Column::new(Metric::integer(name, "", Better::Lower), of)
}

/// How the preferred node reaches the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// The node that the probe prefers to run on; `None` for none.
    pub preferred_node: Option<NodeId>,
    /// Whether automatic NUMA balancing is on.
    pub numa_balancing: bool,
}

/// One cell. Ordered as the published table's rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MatrixCell {
    /// The preferred node and NUMA balancing.
    #[serde(flatten)]
    pub policy: Policy,
    /// Where the memory is.
    pub memory_node: Where,
    /// Where the process may run.
    pub cpu_node: Where,
}

impl MatrixCell {
    /// Whether memory and CPUs are bound to one node.
    pub fn is_same_node(&self) -> bool {
        self.memory_node == self.cpu_node && self.memory_node != Where::Floating
    }

    /// Whether memory and CPUs are bound to different nodes.
    pub fn is_other_node(&self) -> bool {
        self.memory_node != self.cpu_node
            && self.memory_node != Where::Floating
            && self.cpu_node != Where::Floating
    }

    /// The preferred node's number, or -1 for none.
    pub fn preferred_number(&self) -> i64 {
        number_of(self.policy.preferred_node)
    }
}

/// A preferred node as a level: -1 for none.
fn number_of(preferred: Option<NodeId>) -> i64 {
    preferred.map_or(-1, |node| i64::from(node.0))
}

/// As `--cell` takes it: `preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F`.
impl fmt::Display for MatrixCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let balancing = u8::from(self.policy.numa_balancing);
        write!(
            f,
            "preferred_node={},numa_balancing={balancing},memory_node={},cpu_node={}",
            self.preferred_number(),
            self.memory_node,
            self.cpu_node
        )
    }
}

/// One run of the probe in one cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub probe: ProbeResult,
    /// Its migrations and what NUMA balancing did, from before its timed part to its end; or why it was not traced.
    pub trace: Known<Watched>,
    /// What kept it on its preferred node, where the cell has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// What share of a CPU the load burned meanwhile, on the average of all CPUs, in percent.
    pub load_percent: Known<f64>,
}

/// What a preferred node took.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// Who did it.
    pub by: KeptBy,
    /// Seconds of CPU time that took.
    pub cpu_s: Known<f64>,
    /// How long it kept, in seconds.
    pub seconds: f64,
    /// How often the probe was released from its node, because the node was full.
    pub widened: u64,
}

/// What made a probe prefer its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptBy {
    /// nearfar's keeper.
    Keeper,
    /// Its CPUs were bound to that node anyway.
    Binding,
}

impl Sample {
    /// What share of its accesses went to memory of a node other than the one it ran on, 0 to 1: the shares of time on each
    /// node against the shares of pages on each. Pages that moved during the run count as half here and half there.
    /// For memory on one node this is the share of time off that node.
    pub fn far_share(&self) -> Known<f64> {
        let watched = match &self.trace {
            Known::Yes(watched) => watched,
            Known::No { unknown_reason } => return Known::no(unknown_reason.clone()),
        };
        let (before, after) = match (&self.probe.pages_before, &self.probe.pages_after) {
            (Known::Yes(before), Known::Yes(after)) => (before, after),
            (Known::No { unknown_reason }, _) | (_, Known::No { unknown_reason }) => {
                return Known::no(unknown_reason.clone());
            }
        };
        let time: Vec<(Option<NodeId>, f64)> = watched
            .found
            .time
            .iter()
            .map(|time| (time.node, time.seconds))
            .collect();
        match far_share(&time, before, after) {
            Some(share) => Known::Yes(share),
            None => Known::no("on which node the process ran is not known"),
        }
    }

    /// Migrations from node to node.
    pub fn cross_node(&self) -> Option<u64> {
        self.trace
            .get()
            .map(|watched| watched.found.migrations.cross_node)
    }

    /// What was wrong with it, in words.
    pub fn warnings(&self) -> Vec<String> {
        let lost = self
            .trace
            .get()
            .filter(|watched| !watched.losses.is_whole() && !has_all_moves(watched));
        let lost = lost
            .map(|_| "events were lost while it was traced: migrations may be missing".to_owned());
        self.probe
            .warnings
            .iter()
            .map(ToString::to_string)
            .chain(lost)
            .collect()
    }
}

/// Whether the kernel moved the probe, which has one thread, exactly as often as was seen: then the events that were lost were of
/// other tasks.
fn has_all_moves(watched: &Watched) -> bool {
    watched.moves_by_kernel.get() == Some(&watched.found.migrations.total())
}

fn far_share(
    time: &[(Option<NodeId>, f64)],
    before: &PagesByNode,
    after: &PagesByNode,
) -> Option<f64> {
    let all: f64 = time.iter().map(|(_, seconds)| seconds).sum();
    if all <= 0.0
        || time
            .iter()
            .any(|(node, seconds)| node.is_none() && *seconds > 0.0)
    {
        return None;
    }
    let near = |node: NodeId| (before.share_on(node) + after.share_on(node)) / 2.0;
    let share = time
        .iter()
        .filter_map(|(node, seconds)| Some(seconds / all * (1.0 - near((*node)?))))
        .sum::<f64>();
    Some(share.clamp(0.0, 1.0))
}

/// Why there is no sample, as the store has it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunFailed(pub String);

/// A sample with its place in the run, or why there is none.
#[derive(Clone, PartialEq, Debug)]
pub struct Taken {
    /// Of this cell.
    pub cell: MatrixCell,
    /// In this round: every cell once, one after the other, so that what drifts is the same for all.
    pub round: u32,
    /// The sample, or why the run failed.
    pub sample: Result<Sample, RunFailed>,
}

impl Taken {
    /// The sample, if the run succeeded.
    pub fn good(&self) -> Option<&Sample> {
        self.sample.as_ref().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::NodePages;

    #[test]
    fn cells_come_back_from_the_store_as_they_went_in() {
        for text in [
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
            "preferred_node=3,numa_balancing=1,memory_node=F,cpu_node=12",
        ] {
            let cell = MatrixCell::of(&DECLARATION.cell(text).unwrap()).unwrap();
            assert_eq!(MatrixCell::of(&Cell::from(&cell)), Some(cell));
        }
        assert_eq!(MatrixCell::of(&Cell::new().with("queue_depth", 4u32)), None);
        let node = |number: i64| {
            Cell::new()
                .with("preferred_node", number)
                .with("numa_balancing", 1i64)
                .with("memory_node", "F")
                .with("cpu_node", "F")
        };
        assert!(MatrixCell::of(&node(1)).is_some());
        assert_eq!(
            [-2, 1 << 30, i64::MAX].map(|number| MatrixCell::of(&node(number))),
            [None; 3]
        );
    }

    #[test]
    fn factors_have_each_level_once() {
        let cells: Vec<MatrixCell> = [
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
            "preferred_node=-1,numa_balancing=0,memory_node=1,cpu_node=F",
        ]
        .map(|text| MatrixCell::of(&DECLARATION.cell(text).unwrap()).unwrap())
        .into();
        let factors = factors(&cells);
        assert_eq!(factors[2], Factor::new("memory_node", ["0", "1"]));
        assert_eq!(factors[3], Factor::new("cpu_node", ["F"]));
    }

    proptest::proptest! {
        #[test]
        fn a_cell_reads_back_as_it_is_printed(preferred in proptest::option::of(0u32..64), nb: bool, memory in 0u32..65, cpus in 0u32..65) {
            let place = |number| if number == 64 { Where::Floating } else { Where::Node(NodeId(number)) };
            let policy = Policy { preferred_node: preferred.map(NodeId), numa_balancing: nb };
            let cell = MatrixCell { policy, memory_node: place(memory), cpu_node: place(cpus) };
            let read = DECLARATION.cell(&cell.to_string()).unwrap();
            proptest::prop_assert_eq!(MatrixCell::of(&read), Some(cell));
        }
    }

    fn pages(on: &[(u32, u64)]) -> PagesByNode {
        let by_node: Vec<_> = on
            .iter()
            .map(|&(node, pages)| NodePages {
                node: NodeId(node),
                pages,
            })
            .collect();
        PagesByNode {
            looked_at: by_node.iter().map(|pages| pages.pages).sum(),
            by_node,
            nowhere: 0,
        }
    }

    fn time(on: &[(u32, f64)]) -> Vec<(Option<NodeId>, f64)> {
        on.iter()
            .map(|&(node, seconds)| (Some(NodeId(node)), seconds))
            .collect()
    }

    #[test]
    fn with_memory_on_one_node_far_is_the_time_off_that_node() {
        let memory = pages(&[(0, 100)]);
        assert_eq!(
            far_share(&time(&[(0, 6.0), (1, 2.0)]), &memory, &memory),
            Some(0.25)
        );
        assert_eq!(far_share(&time(&[(0, 6.0)]), &memory, &memory), Some(0.0));
    }

    #[test]
    fn memory_on_two_nodes_is_half_far_from_each() {
        let memory = pages(&[(0, 50), (1, 50)]);
        assert_eq!(
            far_share(&time(&[(0, 6.0), (1, 2.0)]), &memory, &memory),
            Some(0.5)
        );
        let moved = far_share(&time(&[(1, 4.0)]), &pages(&[(0, 100)]), &pages(&[(1, 100)]));
        assert_eq!(moved, Some(0.5));
    }

    #[test]
    fn time_on_an_unknown_node_makes_it_unknown() {
        let memory = pages(&[(0, 1)]);
        assert_eq!(far_share(&[(None, 1.0)], &memory, &memory), None);
        assert_eq!(far_share(&[], &memory, &memory), None);
    }
}
