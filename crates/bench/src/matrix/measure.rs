//! Taking the matrix's samples: one run of the probe in one cell, as the frame of experiments asks for it.
//!
//! ```text
//! load on every CPU ════════════════════════════════════════════════════════  started once, kept up
//! probe   started ── spec: memory touched, bound ── ready ── go ── timed part ── done ─────────── ended
//! keeper     └── attached (cells with a preferred node) ──────────────────────────────── stopped ─┘
//! trace                                               └── followed ──────────── collected
//! ```
//!
//! The keeper comes before memory is touched: a task with a preferred node has it from its first page on. Everything stays
//! on the calling thread, with which the children end.
//!
//! Before it, calibration finds how many accesses a round takes so that a run takes about as long as wished, and the kernel is asked
//! what it lets be set. How a probe prefers its node:
//!
//! | CPUs of the cell | how the probe prefers its node |
//! |---|---|
//! | floating | nearfar's keeper, from before the first page is touched |
//! | bound to another node | the keeper until the probe binds itself: a binding outranks a preference |
//! | bound to the preferred node | bound there from the start: to prefer what one is bound to adds nothing |
//!
//! In the last case a keeper could not tell the probe's own binding from its own, and would let the probe out of a full node.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nearfar_experiment::sampler::{self, Attempt, End, Monotonic, Plan, Source, Turn};
use nearfar_experiment::{BoxError, Change, Column, Experiment, RunPlan};
use nearfar_machine::{CpuSet, Known, Machine};
use nearfar_prefer::{Keeper, KeeperOptions, Targets};
use nearfar_proc::{affinity, tasks};
use nearfar_runs::Cell;
use nearfar_statistics::Summary;
use nearfar_trace::watch::Watch;

use super::choose::{Balancing, Places};
use super::findings::{FirstTouch, KernelSetting, Parameters};
use super::{EXPERIMENT, Kept, KeptBy, MatrixCell, Sample};
use crate::load::Load;
use crate::options::HugePages;
use crate::probe::{ChildError, Probe, ProbeSpec, Where};
use crate::registry::allowed_cpus;
use crate::sampling::SEED;

/// The matrix as an experiment.
pub struct Matrix<'a> {
    machine: &'a Machine,
    program: PathBuf,
    parameters: Parameters,
    /// Whether NUMA balancing can be set; if not the cells are all as it is.
    sets_balancing: bool,
    loading: Loading,
    /// Opened once for the whole run; or why there is none.
    watch: Known<Watch>,
}

impl<'a> Matrix<'a> {
    /// Prepares a run with these parameters. `program` is one that answers `bench child probe|load`: `/proc/self/exe`
    /// from within nearfar. What this user may not trace is not traced, and every sample says why.
    pub fn new(machine: &'a Machine, program: PathBuf, parameters: Parameters) -> Self {
        let loading = Loading::new(program.clone(), machine, &parameters);
        let watch =
            Watch::open(machine).map_or_else(|error| Known::no(error.to_string()), Known::Yes);
        let sets_balancing = balancing(machine) == Balancing::Settable;
        Self {
            machine,
            program,
            parameters,
            sets_balancing,
            loading,
            watch,
        }
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Why migrations are not traced, where they are not.
    pub fn not_traced_because(&self) -> Option<&str> {
        self.watch.unknown_reason()
    }

    /// From now on runs make so many accesses in each round.
    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.parameters.steps = steps;
    }

    /// One run of the probe in one cell, under the load, without setting anything.
    ///
    /// # Errors
    /// When a child cannot be started, the cell cannot be had here, or `cancel` is set.
    pub fn once(&mut self, cell: &MatrixCell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        let mut preferring = Ok(None);
        self.loading.keep_up()?;
        let spec = spec(self.machine, &self.parameters, cell);
        let mut probe = Probe::prepare_under(&self.program, &spec, |pid| {
            preferring = Preferring::start(pid, cell, self.machine);
        })?;
        let preferring = preferring?;
        let pid = probe.pid();
        let followed = self.watched(|watch| watch.follow(pid));
        self.loading.set_held(false)?;
        let mark = self.loading.mark();
        let result = probe.run(cancel);
        let load_percent = self.loading.percent_since(&mark);
        let held = self.loading.set_held(true);
        // While it is alive, as the kernel then still has its counts. Also after a failure: what is followed and kept must not pile
        // up.
        let trace = match followed {
            Known::Yes(()) => self.watched(|watch| watch.collect(pid)),
            Known::No { unknown_reason } => Known::No { unknown_reason },
        };
        let kept = preferring.map(Preferring::stop).transpose()?;
        held?;
        Ok(Sample {
            probe: result?,
            trace,
            kept,
            load_percent,
        })
    }
}

impl Matrix<'_> {
    fn watched<T, E: std::fmt::Display>(
        &mut self,
        ask: impl FnOnce(&mut Watch) -> Result<T, E>,
    ) -> Known<T> {
        match &mut self.watch {
            Known::Yes(watch) => {
                ask(watch).map_or_else(|error| Known::no(error.to_string()), Known::Yes)
            }
            Known::No { unknown_reason } => Known::no(unknown_reason.clone()),
        }
    }
}

/// What the probe of a cell is asked for.
fn spec(machine: &Machine, parameters: &Parameters, cell: &MatrixCell) -> ProbeSpec {
    ProbeSpec {
        pattern: parameters.pattern,
        bytes: parameters.bytes,
        counts: parameters.counts,
        steps: parameters.steps,
        memory: cell.memory_node,
        cpus: cell.cpu_node,
        cpu_set: None,
        touch_cpus: touch_cpus(machine, parameters, cell),
        huge_pages: if parameters.huge_pages {
            HugePages::Transparent
        } else {
            HugePages::Off
        },
    }
}

/// The CPUs that a cell's unbound memory is first touched from, as far as that is asked for; a preferred node is where the probe then is
/// anyway.
fn touch_cpus(machine: &Machine, parameters: &Parameters, cell: &MatrixCell) -> Option<CpuSet> {
    let (touch, from) = (parameters.first_touch?, cell.cpu_node.node()?);
    let is_free = cell.policy.preferred_node.is_none();
    let is_unbound = cell.memory_node == Where::Floating && is_free;
    let others = parameters.nodes.iter().copied().filter(|&it| it != from);
    let node = match touch {
        FirstTouch::Near => Some(from),
        FirstTouch::Far => others.max_by_key(|&to| machine.distance(from, to)),
    };
    let cpus = machine.node(node.filter(|_| is_unbound)?)?.known_cpus();
    Some(cpus.intersection(&allowed_cpus(machine)))
}

/// The CPUs that the load runs on: those that this process may use and that are not kept free of everything but what is
/// bound to them. Nothing floats to those, and who keeps them free wants no load there.
pub fn load_cpus(machine: &Machine) -> CpuSet {
    machine
        .cpu_states
        .housekeeping()
        .intersection(&allowed_cpus(machine))
}

/// Where this process may bind a probe to.
pub fn places(machine: &Machine) -> Places {
    Places::of(machine, &allowed_cpus(machine))
}

impl Experiment for Matrix<'_> {
    type Sample = Sample;

    fn name(&self) -> &str {
        EXPERIMENT
    }

    fn title(&self) -> String {
        let Parameters {
            pattern,
            load_percent,
            cells,
            ..
        } = &self.parameters;
        let cells = if cells.len() == 1 {
            "1 cell".to_owned()
        } else {
            format!("{} cells", cells.len())
        };
        format!("{pattern}, {cells}, load {load_percent} %")
    }

    fn plan(&self) -> RunPlan {
        // Numbers, texts and lists of them always are JSON. The cells are the run's plan, which the store has anyway.
        let mut parameters = serde_json::to_value(&self.parameters).unwrap_or_default();
        parameters
            .as_object_mut()
            .map(|parameters| parameters.remove("cells"));
        let cells = &self.parameters.cells;
        RunPlan {
            parameters,
            factors: super::factors(cells),
            cells: cells.iter().map(Cell::from).collect(),
        }
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let of_run = self.parameters.settings.iter().map(KernelSetting::change);
        let balancing = MatrixCell::of(cell)
            .filter(|_| self.sets_balancing)
            .map(|cell| set_balancing(cell.policy.numa_balancing));
        of_run.chain(balancing).collect()
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        let cell =
            MatrixCell::of(cell).ok_or_else(|| format!("{cell} is no cell of the matrix"))?;
        self.once(&cell, cancel)
    }

    fn columns() -> Vec<Column<Sample>> {
        super::columns()
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings()
    }
}

/// The cell that says most about how fast the probe is: bound to one node, without NUMA balancing.
fn plainest(cells: &[MatrixCell]) -> Option<MatrixCell> {
    let bound = |cell: &&MatrixCell| cell.is_same_node() && cell.policy.preferred_node.is_none();
    let found = cells
        .iter()
        .find(bound)
        .or_else(|| cells.iter().find(|cell| cell.cpu_node != Where::Floating));
    found.or_else(|| cells.first()).copied()
}

/// Accesses of the first try: milliseconds on hardware, some hundred under emulation.
const FIRST_STEPS: u64 = 1 << 16;
/// A try that took this long says how long others will, whatever the load's phase.
const LONG_ENOUGH_S: f64 = 0.3;
/// Tries of which the one in the middle counts: something else may have run during one of them.
const TRIES: u32 = 3;

/// What calibration found out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Calibrated {
    /// Accesses in each round.
    pub steps: u64,
    /// What starting and preparing a probe takes.
    pub preparing: Duration,
}

/// Finds the steps with which a run of the plainest cell takes about `seconds` under the load. All cells then do the same
/// number: it is their time that differs.
///
/// # Errors
/// When the probe cannot be run at all.
pub fn calibrate(
    machine: &Machine,
    program: &Path,
    parameters: &Parameters,
    seconds: f64,
    cancel: &AtomicBool,
) -> Result<Calibrated, ChildError> {
    let mut loading = Loading::new(program.to_owned(), machine, parameters);
    loading.keep_up()?;
    loading.set_held(false)?;
    let cell = plainest(&parameters.cells).ok_or_else(|| ChildError::BadSpec {
        reason: "no cells".to_owned(),
    })?;
    let mut tries = Tries {
        program,
        spec: spec(machine, parameters, &cell),
        // Not beyond what was wished for: for a run of 0.1 s no longer try is worth while.
        enough_s: LONG_ENOUGH_S.min(seconds / 2.0),
        preparing: Duration::ZERO,
        cancel,
    };
    (tries.spec.counts, tries.spec.steps) = (1, FIRST_STEPS);
    let (plan, clock) = (Plan::rounds(1, TRIES, SEED), Monotonic::start());
    let outcome = sampler::sample(&plan, &clock, cancel, &mut tries)?;
    let per_step: Vec<f64> = outcome.samples.iter().map(|taken| taken.value).collect();
    let (End::Complete, Some(summary)) = (outcome.end, Summary::of(&per_step)) else {
        return Err(ChildError::Cancelled { what: "probe" });
    };
    let wished = seconds / summary.median / f64::from(parameters.counts);
    Ok(Calibrated {
        steps: (wished.round() as u64).max(1),
        preparing: tries.preparing,
    })
}

/// Runs of one round, longer ones until they are long enough.
struct Tries<'a> {
    program: &'a Path,
    spec: ProbeSpec,
    enough_s: f64,
    /// What starting and preparing the last one took.
    preparing: Duration,
    cancel: &'a AtomicBool,
}

impl Source for Tries<'_> {
    /// Seconds a step.
    type Value = f64;
    type Error = ChildError;

    fn take(&mut self, _: Turn) -> Result<Attempt<f64>, ChildError> {
        let started = Instant::now();
        let mut probe = Probe::prepare(self.program, &self.spec)?;
        self.preparing = started.elapsed();
        let seconds = probe.run(self.cancel)?.seconds;
        let steps = self.spec.steps as f64;
        if seconds >= self.enough_s {
            return Ok(Attempt::Value(seconds / steps));
        }
        // At most a hundredfold at once: the shortest tries say little.
        let factor = (1.5 * self.enough_s / seconds.max(1e-9)).clamp(2.0, 100.0);
        self.spec.steps = (steps * factor) as u64;
        Ok(Attempt::Retry)
    }
}

/// The load on every CPU of a run.
pub(super) struct Loading {
    program: PathBuf,
    cpus: CpuSet,
    percent: f64,
    period_s: f64,
    is_simulated: bool,
    load: Option<Load>,
}

/// Where the load stood at a moment.
pub(super) struct Mark {
    at: Instant,
    /// Nanoseconds that all its processes have run.
    ran_ns: Option<u64>,
}

impl Loading {
    /// Nothing burns yet. A share of 0 never does.
    pub(super) fn new(program: PathBuf, machine: &Machine, parameters: &Parameters) -> Self {
        Self {
            program,
            cpus: load_cpus(machine),
            percent: parameters.load_percent,
            period_s: parameters.load_period_s,
            is_simulated: machine.origin.is_simulated(),
            load: None,
        }
    }

    /// Sees to it that all of it burns.
    fn keep_up(&mut self) -> Result<(), ChildError> {
        if self.percent <= 0.0
            || self
                .load
                .as_ref()
                .is_some_and(|load| load.pids().into_iter().all(tasks::is_alive))
        {
            return Ok(());
        }
        // The old one first: two at once would be twice the load.
        self.load = None;
        self.load = Some(Load::start(
            &self.program,
            &self.cpus,
            self.percent,
            self.period_s,
            self.is_simulated,
        )?);
        self.set_held(true)
    }

    /// In simulated time the load burns while a sample is measured only: in between, which takes as long as the host likes, it would
    /// occupy the host's CPUs.
    fn set_held(&mut self, held: bool) -> Result<(), ChildError> {
        let load = self.load.as_mut().filter(|_| self.is_simulated);
        load.map_or(Ok(()), |load| load.set_held(held))
    }

    /// Where it stands now.
    fn mark(&self) -> Mark {
        let pids = self.load.as_ref().map(Load::pids).unwrap_or_default();
        Mark {
            at: Instant::now(),
            ran_ns: pids.into_iter().map(ran_ns).sum(),
        }
    }

    /// What share of a CPU it burned on average since then, in percent.
    fn percent_since(&self, before: &Mark) -> Known<f64> {
        let now = self.mark();
        match (before.ran_ns, now.ran_ns) {
            (Some(before_ns), Some(now_ns)) if now_ns >= before_ns => {
                let all =
                    now.at.duration_since(before.at).as_secs_f64() * self.cpus.len().max(1) as f64;
                Known::Yes((now_ns - before_ns) as f64 / 1e9 / all.max(1e-9) * 100.0)
            }
            (Some(_), Some(_)) => Known::no("the load was started again meanwhile"),
            _ => Known::no("/proc/PID/schedstat of the load cannot be read"),
        }
    }
}

/// Nanoseconds on a CPU.
fn ran_ns(pid: i32) -> Option<u64> {
    Some(tasks::run_time(pid).ok()?.run_ns)
}

/// A probe that prefers its node.
pub(super) enum Preferring {
    Kept(Keeper),
    Bound,
}

impl Preferring {
    /// Has the process prefer the cell's node from now on; `None` for a cell without one.
    pub(super) fn start(
        pid: i32,
        cell: &MatrixCell,
        machine: &Machine,
    ) -> Result<Option<Self>, BoxError> {
        let Some(node) = cell.policy.preferred_node else {
            return Ok(None);
        };
        if cell.cpu_node == Where::Node(node) {
            let cpus = machine
                .node(node)
                .map(|node| node.known_cpus().intersection(&machine.cpu_states.online));
            affinity::set(pid, &cpus.unwrap_or_default())?;
            return Ok(Some(Self::Bound));
        }
        let options = KeeperOptions {
            children: false,
            ..KeeperOptions::default()
        };
        Ok(Some(Self::Kept(Keeper::start(
            Targets::Pids(vec![pid]),
            node,
            machine,
            options,
        )?)))
    }

    /// Lets it go.
    fn stop(self) -> Result<Kept, BoxError> {
        match self {
            Self::Kept(keeper) => {
                let report = keeper.stop()?;
                Ok(Kept {
                    by: KeptBy::Keeper,
                    cpu_s: Known::Yes(report.cpu_s),
                    seconds: report.seconds,
                    widened: report.widened,
                })
            }
            Self::Bound => Ok(Kept {
                by: KeptBy::Binding,
                cpu_s: Known::no("nothing ran for it"),
                seconds: 0.0,
                widened: 0,
            }),
        }
    }
}

/// Documentation/admin-guide/sysctl/kernel.rst, numa_balancing.
const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// Since 5.13; before that the same names with a prefix among the sysctls (kernel/sched/debug.c).
const DEBUG: &str = "/sys/kernel/debug/sched";
const SYSCTL: &str = "/proc/sys/kernel";
/// The kernel's own proportion of the longest scan period to the shortest: 60 s to 1 s (kernel/sched/fair.c).
const LONGEST_PERIODS: u32 = 60;

/// The change that switches NUMA balancing.
fn set_balancing(on: bool) -> Change {
    Change::Sysctl {
        name: "kernel.numa_balancing".to_owned(),
        value: u8::from(on).to_string(),
    }
}

/// Whether NUMA balancing moves pages between nodes: bit 0 of `kernel.numa_balancing` (bit 1 is for memory tiers).
pub fn is_balancing(machine: &Machine) -> Known<bool> {
    machine
        .settings
        .numa_balancing
        .as_ref()
        .map(|mode| mode & 1 == 1)
}

/// Whether NUMA balancing can be on here, and can be set by this user.
pub fn balancing(machine: &Machine) -> Balancing {
    if machine.nodes_with_memory().len() < 2 {
        let reason = "one node with memory leaves it nothing to do".to_owned();
        return Balancing::Stays { on: false, reason };
    }
    match (is_balancing(machine), writable(Path::new(NUMA_BALANCING))) {
        (Known::Yes(_), Ok(())) => Balancing::Settable,
        (Known::Yes(on), Err(error)) => Balancing::Stays {
            on,
            reason: format!("{NUMA_BALANCING} cannot be written ({error}): root may"),
        },
        (Known::No { unknown_reason }, _) => Balancing::Stays {
            on: false,
            reason: format!("this kernel cannot do it ({unknown_reason})"),
        },
    }
}

/// The files to set for the whole run, and what to.
///
/// - `scan_delay_ms`: how long a process has run before NUMA balancing scans it first; as `scan_period_ms` where only that is given.
///   It should outlast the start of the probe's process, which otherwise says where the probe belongs.
/// - `scan_period_ms`: the shortest time between two scans; the longest is 60 times that, as in the kernel. For runs that are shorter
///   than the published ones, of which the first scan came after less than a hundredth.
/// - `migration_cost_ns`: how long after it last ran a task counts as cache-hot (500000 in the kernel).
pub(super) fn kernel_settings(
    scan_delay_ms: Option<u32>,
    scan_period_ms: Option<u32>,
    migration_cost_ns: Option<u64>,
) -> Result<Vec<KernelSetting>, SettingError> {
    let longest = scan_period_ms.map(|period| period.saturating_mul(LONGEST_PERIODS));
    // The longest period before the shortest, which so never is the longer of the two.
    let asked = [
        (
            [
                "numa_balancing/scan_delay_ms",
                "numa_balancing_scan_delay_ms",
            ],
            scan_delay_ms.or(scan_period_ms).map(u64::from),
        ),
        (
            [
                "numa_balancing/scan_period_max_ms",
                "numa_balancing_scan_period_max_ms",
            ],
            longest.map(u64::from),
        ),
        (
            [
                "numa_balancing/scan_period_min_ms",
                "numa_balancing_scan_period_min_ms",
            ],
            scan_period_ms.map(u64::from),
        ),
        (
            ["migration_cost_ns", "sched_migration_cost_ns"],
            migration_cost_ns,
        ),
    ];
    let settings = asked.into_iter().filter_map(|(names, value)| {
        let value = value?.to_string();
        Some(found(names).map(|path| KernelSetting { path, value }))
    });
    settings.collect()
}

/// Why a setting of the kernel cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    #[error(
        "there is neither {} nor {}: debugfs has to be mounted, by root (mount -t debugfs none /sys/kernel/debug), and \
         the kernel to have NUMA balancing", paths[0], paths[1]
    )]
    Absent { paths: [String; 2] },
    #[error("cannot write {path}: {error}")]
    NotWritable { path: String, error: std::io::Error },
}

/// The file in debugfs, or the sysctl of older kernels.
fn found([debug, sysctl]: [&str; 2]) -> Result<String, SettingError> {
    let paths = [format!("{DEBUG}/{debug}"), format!("{SYSCTL}/{sysctl}")];
    let Some(path) = paths.iter().find(|path| Path::new(path).exists()).cloned() else {
        return Err(SettingError::Absent { paths });
    };
    match writable(Path::new(&path)) {
        Ok(()) => Ok(path),
        Err(error) => Err(SettingError::NotWritable { path, error }),
    }
}

fn writable(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path).map(|_| ())
}
