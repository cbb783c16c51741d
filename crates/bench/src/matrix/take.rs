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

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nearfar_experiment::{BoxError, Cell, Change, Column, Experiment, Factor};
use nearfar_machine::{CpuSet, Known, Machine};
use nearfar_trace::watch::Watch;

use super::answer::{KernelSetting, Parameters};
use super::cell::MatrixCell;
use super::choose::{Balancing, Places};
use super::frame::{self, EXPERIMENT};
use super::kernel;
use super::loading::Loading;
use super::preferring::Preferring;
use super::sample::Sample;
use crate::options::HugePages;
use crate::probe::{Probe, ProbeSpec, Where};
use crate::registry::allowed_cpus;

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
        let loading = Loading::new(program.clone(), load_cpus(machine), parameters.load_percent);
        let watch =
            Watch::open(machine).map_or_else(|error| Known::no(error.to_string()), Known::Yes);
        let sets_balancing = kernel::balancing(machine) == Balancing::Settable;
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

    fn spec(&self, cell: &MatrixCell) -> ProbeSpec {
        spec(&self.parameters, cell)
    }

    /// One run of the probe in one cell, under the load, without setting anything.
    ///
    /// # Errors
    /// When a child cannot be started, the cell cannot be had here, or `cancel` is set.
    pub fn once(&mut self, cell: &MatrixCell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        self.loading.keep_up()?;
        let mut preferring = Ok(None);
        let mut probe = Probe::prepare_under(&self.program, &self.spec(cell), |pid| {
            preferring = Preferring::start(pid, cell, self.machine);
        })?;
        let preferring = preferring?;
        let pid = probe.pid();
        let followed = self.watched(|watch| watch.follow(pid));
        let mark = self.loading.mark();
        let result = probe.run(cancel);
        let load_percent = self.loading.percent_since(&mark);
        // While it is alive, as the kernel then still has its counts. Also after a failure: what is followed and kept must not pile
        // up.
        let trace = match followed {
            Known::Yes(()) => self.watched(|watch| watch.collect(pid)),
            Known::No { unknown_reason } => Known::No { unknown_reason },
        };
        let kept = preferring.map(Preferring::stop).transpose()?;
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
pub(super) fn spec(parameters: &Parameters, cell: &MatrixCell) -> ProbeSpec {
    ProbeSpec {
        pattern: parameters.pattern,
        bytes: parameters.bytes,
        counts: parameters.counts,
        steps: parameters.steps,
        memory: cell.memory_node,
        cpus: cell.cpu_node,
        cpu_set: None,
        huge_pages: if parameters.huge_pages {
            HugePages::Transparent
        } else {
            HugePages::Off
        },
    }
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

    fn parameters(&self) -> serde_json::Value {
        // Numbers, texts and lists of them always are JSON. The cells are the run's plan, which the store has anyway.
        let mut parameters = serde_json::to_value(&self.parameters).unwrap_or_default();
        parameters
            .as_object_mut()
            .map(|parameters| parameters.remove("cells"));
        parameters
    }

    fn factors(&self) -> Vec<Factor> {
        frame::factors(&self.parameters.cells)
    }

    fn cells(&self) -> Vec<Cell> {
        self.parameters.cells.iter().map(Cell::from).collect()
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let of_run = self.parameters.settings.iter().map(KernelSetting::change);
        let balancing = MatrixCell::of(cell)
            .filter(|_| self.sets_balancing)
            .map(|cell| kernel::set_balancing(cell.policy.numa_balancing));
        of_run.chain(balancing).collect()
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        let cell =
            MatrixCell::of(cell).ok_or_else(|| format!("{cell} is no cell of the matrix"))?;
        self.once(&cell, cancel)
    }

    fn columns() -> Vec<Column<Sample>> {
        frame::columns()
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings()
    }
}

/// The cell that says most about how fast the probe is: bound to one node, without NUMA balancing.
pub(super) fn plainest(cells: &[MatrixCell]) -> Option<MatrixCell> {
    let bound = |cell: &&MatrixCell| cell.is_same_node() && cell.policy.preferred_node.is_none();
    let found = cells
        .iter()
        .find(bound)
        .or_else(|| cells.iter().find(|cell| cell.cpu_node != Where::Floating));
    found.or_else(|| cells.first()).copied()
}
