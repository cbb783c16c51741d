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

#[cfg(test)]
mod tests {
    use nearfar_machine::Known;
    use serde_json::json;

    use super::*;
    use crate::matrix::Question;

    /// A run of so many seconds on a machine of one node, with three migrations.
    fn sample(seconds: f64) -> Sample {
        let pages = json!({"looked_at": 9, "by_node": [{"node": 0, "pages": 9}], "nowhere": 0});
        let unknown = json!({"unknown_reason": "made up"});
        let sample = json!({
            "probe": {
                "seconds": seconds, "on_cpu_s": seconds, "waited_s": 0.0, "elapsed_life_s": seconds, "counts": 1,
                "steps": 1, "round_s": [], "rounds_a_figure": 1, "faults": {"minor": 0, "major": 0},
                "switches": {"voluntary": 0, "involuntary": 0}, "stolen_s": 0.0, "throttled": 0,
                "numa_balancing": false, "cpus": "0-3", "buffer_bytes": 4096, "page_kind": "base",
                "pages_before": pages, "pages_after": pages, "warnings": [],
            },
            "load_percent": 5.0,
            "trace": {
                "seconds": seconds,
                "losses": {"occurred": 3, "read": 3, "lost": 0, "damaged": 0, "throttled": 0},
                "numa_balancing_of_task": unknown,
                "migrations": {"same_core": 0, "same_cache": 0, "same_node": 0, "cross_node": 3, "unknown": 0},
                "caches_known": true, "matrix": [], "time": [{"node": 0, "seconds": seconds}], "tasks": [], "gaps": 0,
                "numa_balancing": {"tasks": unknown, "machine": unknown},
            },
        });
        serde_json::from_value(sample).unwrap()
    }

    #[test]
    fn one_node_has_three_cells_and_two_contrasts() {
        let cells = cells(&[NodeId(0)], false);
        let names: Vec<String> = cells
            .iter()
            .map(|cell| format!("{}/{}", cell.memory_node, cell.cpu_node))
            .collect();
        assert_eq!(names, ["0/0", "0/F", "F/F"]);
        const ROUNDS: u32 = 9;
        let run = |round: u32, cell: usize, ratio: f64| Taken {
            cell: cells[cell],
            round,
            sample: Ok(sample(ratio * (1.0 + 0.01 * f64::from(round)))),
        };
        let rounds =
            (1..=ROUNDS).flat_map(|round| [(0, 1.0), (1, 1.1), (2, 1.2)].map(|of| (round, of)));
        let taken: Vec<Taken> = rounds
            .map(|(round, (cell, ratio))| run(round, cell, ratio))
            .collect();
        let contrasts = UnboundContrast::of(&cells, &taken);
        let questions: Vec<Question> = contrasts.iter().map(|it| it.question).collect();
        assert_eq!(questions, [Question::UnboundCpus, Question::AllUnbound]);
        for (contrast, expected) in contrasts.iter().zip([1.1, 1.2]) {
            let ratio = contrast.ratio.get().unwrap();
            assert!((ratio.median - expected).abs() < 1e-9, "{contrast:?}");
            assert_eq!(ratio.rounds, ROUNDS as usize);
            assert_eq!(contrast.cross_node, Known::Yes(3 * u64::from(ROUNDS)));
        }
    }
}
