//! Taking the runs: calibration, then rounds until the budget is spent.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_experiment::sampler::{
    self, Attempt, Budget, Clock as _, End, Monotonic, Plan, Source, Turn,
};
use nearfar_experiment::{Recording, stored_result};
use nearfar_machine::{Machine, NodeId};
use nearfar_runs::{NewSample, SampleResult, now_s};

use super::answer::{UnboundContrast, UnboundTasks};
use super::budget::{self, MAX_ROUNDS};
use super::{UnboundError, UnboundOptions};
use crate::matrix::{
    self, Matrix, MatrixCell, Parameters, Policy, RunFailed, Sample, Taken, calibrate,
};
use crate::probe::{self, Pattern, Where};
use crate::sampling::{Measured, SEED};

/// Largest buffer: a checkup takes no more of a busy machine's memory than this.
const MAX_BYTES: u64 = 512 << 20;
/// Rounds of accesses in one run of the probe.
const COUNTS: u32 = 100;
/// What a run is first calibrated to; what such runs take besides decides how long runs are.
const FIRST_RUN_S: f64 = 0.3;

/// Runs the probe bound to these nodes and unbound in turn under a little load until the budget is spent. Sets nothing, and
/// leaves nothing behind. On one node the ratio is 1.
///
/// # Errors
/// When there is too little time, a child fails while calibrating, or `cancel` is set.
pub fn measure(
    machine: &Machine,
    homes: &[NodeId],
    options: &UnboundOptions,
) -> Result<Measured<UnboundTasks>, UnboundError> {
    let clock = Monotonic::start();
    let left_s = || options.budget.saturating_sub(clock.now()).as_secs_f64();
    let numa_balancing = matrix::is_balancing(machine);
    let mut parameters = parameters(machine, homes, options, numa_balancing.get() == Some(&true));
    // Calibration is a run of the probe: a load that a user who left no time for it did not ask for.
    budget::run_seconds(left_s(), parameters.cells.len(), 0.0)?;
    parameters.steps = calibrate(
        machine,
        &options.program,
        &parameters,
        FIRST_RUN_S,
        &options.cancel,
    )?
    .steps;
    let mut matrix = Matrix::new(machine, options.program.clone(), parameters.clone());
    // What does not fit even if nothing is lost besides the runs need not be tried.
    budget::run_seconds(left_s(), parameters.cells.len(), 0.0)?;
    let overhead_s = overhead(&mut matrix, options, &clock)?;
    let run_s = budget::run_seconds(left_s(), parameters.cells.len(), overhead_s)?;
    parameters.steps = ((parameters.steps as f64 * run_s / FIRST_RUN_S) as u64).max(1);
    parameters.calibrated_to_s = Some(run_s);
    matrix.set_steps(parameters.steps);
    let began_at_s = now_s() - clock.now().as_secs_f64();
    let samples = rounds(&mut matrix, options, &clock)?;
    let recording = recording(&matrix, &samples, began_at_s);
    let taken: Vec<Taken> = samples
        .into_iter()
        .map(|taken| Taken {
            cell: parameters.cells[taken.slot.item],
            round: taken.slot.round,
            sample: taken.value,
        })
        .collect();
    let answer = UnboundTasks {
        contrasts: UnboundContrast::of(&parameters.cells, &taken),
        rows: matrix::rows(&parameters.cells, &taken),
        warnings: matrix::warnings(&taken),
        parameters,
        load_cpus: matrix::load_cpus(machine),
        numa_balancing,
        elapsed_s: clock.now().as_secs_f64(),
        emulation: machine.origin.emulation.clone(),
    };
    Ok(Measured {
        answer,
        recordings: vec![recording],
    })
}

/// The runs as a run of the probe's experiment in the store.
fn recording(matrix: &Matrix<'_>, samples: &[RunTaken], began_at_s: f64) -> Recording {
    let rounds = samples.iter().map(|taken| taken.slot.round).max();
    let mut recording = Recording::of(matrix, rounds.unwrap_or(0), SEED);
    recording.warnings = matrix
        .not_traced_because()
        .map(|reason| format!("migrations are not traced: {reason}"))
        .into_iter()
        .collect();
    let stored = samples.iter().map(|taken| {
        let result = stored_result::<Matrix<'_>>(taken.value.as_ref().map_err(ToString::to_string));
        NewSample {
            round: taken.slot.round,
            cell: recording.cells[taken.slot.item].clone(),
            started_at_s: began_at_s + taken.started.as_secs_f64(),
            took_s: taken.took.as_secs_f64(),
            result: result.unwrap_or_else(|error| SampleResult::Failed(error.to_string())),
        }
    });
    recording.samples = stored.collect();
    recording
}

/// A run of the probe, or why there is none, with its place and time.
type RunTaken = sampler::Taken<Result<Sample, RunFailed>>;

/// Runs of the probe in some cells, as the sampler asks for them.
struct Runs<'a, 'b> {
    matrix: &'a mut Matrix<'b>,
    cells: &'a [MatrixCell],
    cancel: &'a AtomicBool,
}

impl Source for Runs<'_, '_> {
    /// A run, or why there is none.
    type Value = Result<Sample, RunFailed>;
    type Error = Infallible;

    fn take(&mut self, turn: Turn) -> Result<Attempt<Self::Value>, Infallible> {
        let run = self.matrix.once(&self.cells[turn.slot.item], self.cancel);
        Ok(match run {
            Err(_) if self.cancel.load(Ordering::Relaxed) => Attempt::Lost,
            run => Attempt::Value(run.map_err(|error| RunFailed(error.to_string()))),
        })
    }
}

impl Runs<'_, '_> {
    fn sample(
        &mut self,
        rounds: u32,
        budget: Budget,
        clock: &Monotonic,
    ) -> Result<Vec<RunTaken>, UnboundError> {
        let plan = Plan {
            budget,
            ..Plan::rounds(self.cells.len(), rounds, SEED)
        };
        let cancel = self.cancel;
        let Ok(outcome) = sampler::sample(&plan, clock, cancel, self);
        match outcome.end {
            End::Cancelled => Err(UnboundError::Cancelled),
            End::Complete | End::BudgetSpent => Ok(outcome.samples),
        }
    }
}

/// Seconds that a run takes besides its timed part: preparing, tracing, ending. The lesser of two: the first starts the
/// load.
fn overhead(
    matrix: &mut Matrix<'_>,
    options: &UnboundOptions,
    clock: &Monotonic,
) -> Result<f64, UnboundError> {
    let cells = matrix.parameters().cells.clone();
    let mut runs = Runs {
        matrix,
        cells: &cells[..cells.len().min(2)],
        cancel: &options.cancel,
    };
    let mut least_s = f64::INFINITY;
    for taken in runs.sample(1, Budget::Rounds, clock)? {
        let run = taken.value.map_err(UnboundError::Run)?;
        least_s = least_s.min(taken.took.as_secs_f64() - run.probe.seconds);
    }
    Ok(least_s)
}

/// Rounds until another one would not fit.
fn rounds(
    matrix: &mut Matrix<'_>,
    options: &UnboundOptions,
    clock: &Monotonic,
) -> Result<Vec<RunTaken>, UnboundError> {
    let cells = matrix.parameters().cells.clone();
    let mut runs = Runs {
        matrix,
        cells: &cells,
        cancel: &options.cancel,
    };
    let until = options.budget;
    runs.sample(MAX_ROUNDS, Budget::WholeRounds { until }, clock)
}

fn parameters(
    machine: &Machine,
    homes: &[NodeId],
    options: &UnboundOptions,
    numa_balancing: bool,
) -> Parameters {
    let (bytes, _) = probe::default_buffer_bytes(machine, homes);
    Parameters {
        pattern: Pattern::RandomReadWrite,
        bytes: bytes.min(MAX_BYTES),
        counts: COUNTS,
        steps: 1,
        calibrated_to_s: None,
        load_percent: options.load_percent,
        huge_pages: false,
        settings: Vec::new(),
        nodes: homes.to_vec(),
        cells: cells(homes, numa_balancing),
        left_out: Vec::new(),
    }
}

/// Each node with CPUs bound to it and unbound, and memory and CPUs unbound.
fn cells(nodes: &[NodeId], numa_balancing: bool) -> Vec<MatrixCell> {
    let policy = Policy {
        preferred_node: None,
        numa_balancing,
    };
    let of_node =
        |&node: &NodeId| [Where::Node(node), Where::Floating].map(|cpus| (Where::Node(node), cpus));
    let places = nodes
        .iter()
        .flat_map(of_node)
        .chain([(Where::Floating, Where::Floating)]);
    places
        .map(|(memory, cpus)| MatrixCell {
            policy,
            memory_node: memory,
            cpu_node: cpus,
        })
        .collect()
}
