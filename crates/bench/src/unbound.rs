//! Is this machine's scheduler hurting unbound tasks? A small matrix within a budget of half a minute.
//!
//! ```text
//! a little load on every CPU, so that the scheduler has something to do
//!   round 1   0/0  F/F  1/F  1/1  0/F     memory/CPUs of one run of the probe, F: left to the kernel
//!   round 2   1/1  0/F  ...               every cell once a round, in random order
//!   ...
//! 0/F against 0/0, 1/F against 1/1 ──► the cost of unbound CPUs
//! F/F against 0/0 and 1/1          ──► the cost of unbound memory and CPUs
//! ```
//!
//! Nothing is set: NUMA balancing stays as it is, and no node is preferred. Load and probe are children that end with their
//! handles. Runs are taken and judged as those of the [`crate::matrix`], whose cells these are.
//! The steps of a run are calibrated first; rounds follow until the budget is spent.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_experiment::sampler::{
    self, Attempt, Budget, Clock as _, End, Monotonic, Plan, Source, Turn,
};
use nearfar_experiment::{Recording, stored_result};
use nearfar_machine::{CpuSet, Emulation, Known, Machine, NodeId};
use nearfar_runs::{Counted, SampleResult, now_s};
use serde::{Deserialize, Serialize};

use crate::child::ChildError;
use crate::load::PERIOD_S;
use crate::matrix::{
    self, Contrast, Matrix, MatrixCell, Parameters, Places, Policy, Question, Ratio, Row,
    RunFailed, Sample, Taken, calibrate, findings,
};
use crate::options::{ProbeError, check_live};
use crate::probe::{self, Pattern, Where};
use crate::sampling::{Measured, SEED};

/// What it takes.
#[derive(Clone, Debug)]
pub struct UnboundOptions {
    /// A program that answers `bench child`: `/proc/self/exe` from within nearfar.
    pub program: PathBuf,
    /// How long it may take, load and preparations included.
    pub budget: Duration,
    /// The load on each CPU, in percent of it.
    pub load_percent: f64,
    /// Set it from anywhere to end the probe early with [`UnboundError::Cancelled`].
    pub cancel: Arc<AtomicBool>,
}

/// The nodes that the probe is bound to in turn: two as far from each other as any is from the first, with CPUs that this
/// process may use and memory.
///
/// # Errors
/// Where the machine is not the running one, or no task can run on two nodes.
pub fn homes(machine: &Machine) -> Result<Vec<NodeId>, UnboundError> {
    check_live(machine)?;
    let places = matrix::places(machine);
    if places.cpus.len() < 2 {
        let cpus = matrix::load_cpus(machine);
        return Err(
            match machine
                .online_nodes()
                .filter(|node| !node.known_cpus().is_empty())
                .count()
            {
                0 | 1 => UnboundError::OneNode,
                _ => UnboundError::Confined { cpus },
            },
        );
    }
    farthest_two(machine, &places).ok_or(UnboundError::NoHome)
}

/// The first node with CPUs and memory, and the one farthest from it, the first of equals.
fn farthest_two(machine: &Machine, places: &Places) -> Option<Vec<NodeId>> {
    let mut nodes = places
        .cpus
        .iter()
        .copied()
        .filter(|node| places.memory.contains(node));
    let first = nodes.next()?;
    let farthest =
        nodes.max_by_key(|&node| (machine.distance(first, node), std::cmp::Reverse(node)));
    Some([first].into_iter().chain(farthest).collect())
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum UnboundError {
    #[error("only one node has CPUs: an unbound task has nowhere else to run")]
    OneNode,
    #[error(
        "this process may run on CPUs {cpus} only, which are of one node: its affinity or cpuset keeps it there"
    )]
    Confined {
        /// Where it may run.
        cpus: CpuSet,
    },
    #[error(
        "no node has both memory and CPUs that this process may use: there is nothing to bind a task to"
    )]
    NoHome,
    #[error(transparent)]
    Machine(#[from] ProbeError),
    #[error(
        "too little time: {rounds} rounds of {cells} runs take {needed_s:.0} s here, {left_s:.0} s are left for them; \
         {:.0} s more would do", needed_s - left_s
    )]
    TooLittleTime {
        rounds: u32,
        /// Runs in a round.
        cells: usize,
        /// Seconds that these take.
        needed_s: f64,
        /// Seconds that are left.
        left_s: f64,
    },
    #[error(transparent)]
    Child(ChildError),
    #[error("a run failed: {0}")]
    Run(#[from] RunFailed),
    #[error("the probe of unbound tasks was cancelled")]
    Cancelled,
}

impl From<ChildError> for UnboundError {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Cancelled { .. } => Self::Cancelled,
            error => Self::Child(error),
        }
    }
}

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
    run_seconds(left_s(), parameters.cells.len(), 0.0)?;
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
    run_seconds(left_s(), parameters.cells.len(), 0.0)?;
    let overhead_s = overhead(&mut matrix, options, &clock)?;
    let run_s = run_seconds(left_s(), parameters.cells.len(), overhead_s)?;
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
    let mut recording = Recording::of(matrix);
    (recording.samples_per_cell, recording.seed) = (rounds.unwrap_or(0), SEED);
    recording.warnings = matrix
        .not_traced_because()
        .map(|reason| format!("migrations are not traced: {reason}"))
        .into_iter()
        .collect();
    recording.add(began_at_s, samples, |taken| {
        let result = stored_result::<Matrix<'_>>(taken.value.as_ref().map_err(ToString::to_string));
        result.unwrap_or_else(|error| SampleResult::Failed(error.to_string()))
    });
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
        load_period_s: PERIOD_S,
        huge_pages: false,
        first_touch: None,
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

/// Below this many rounds a median has no confidence interval of 95 %.
const MIN_ROUNDS: u32 = 6;
/// Rounds that make the interval narrow; longer runs come before more rounds.
const GOOD_ROUNDS: f64 = 10.0;
/// A shorter run sees no load balancing: the scheduler looks across nodes every few dozen to hundred milliseconds.
const MIN_RUN_S: f64 = 0.3;
/// A longer one gives no narrower interval than more rounds do.
const MAX_RUN_S: f64 = 3.0;
/// Most rounds, whatever the budget: a check-up has to end.
const MAX_ROUNDS: u32 = 60;

/// Seconds that one run's timed part should take, when it takes `overhead_s` besides and a round has `cells` runs.
///
/// # Errors
/// When not even the fewest rounds of the shortest runs fit.
fn run_seconds(left_s: f64, cells: usize, overhead_s: f64) -> Result<f64, UnboundError> {
    let runs = cells.max(1) as f64;
    let needed_s = f64::from(MIN_ROUNDS) * runs * (MIN_RUN_S + overhead_s);
    if needed_s > left_s {
        return Err(UnboundError::TooLittleTime {
            rounds: MIN_ROUNDS,
            cells,
            needed_s,
            left_s,
        });
    }
    Ok((left_s / (GOOD_ROUNDS * runs) - overhead_s).clamp(MIN_RUN_S, MAX_RUN_S))
}

/// What a probe of unbound tasks found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnboundTasks {
    /// What was the same in all runs. The cells are memory and CPUs bound to a node, memory only, and neither.
    pub parameters: Parameters,
    /// How many times as long unbound tasks took as bound ones: CPUs unbound, and memory and CPUs unbound.
    pub contrasts: Vec<UnboundContrast>,
    pub rows: Vec<Row>,
    pub warnings: Vec<Counted>,
    /// The CPUs that had the load.
    pub load_cpus: CpuSet,
    /// Whether NUMA balancing was on. It was left as it is.
    pub numa_balancing: Known<bool>,
    /// How long all of it took, in seconds.
    pub elapsed_s: f64,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

/// The cost of unbound tasks, in one contrast.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnboundContrast {
    pub question: Question,
    /// Time of a unbound run through time of a bound one, or why that is unknown.
    pub ratio: Known<Ratio>,
    /// Migrations from node to node in all the unbound runs together, or why they were not counted.
    pub cross_node: Known<u64>,
    /// Seconds that these runs took.
    pub seconds: f64,
}

impl UnboundContrast {
    /// Both contrasts of these runs.
    fn of(cells: &[MatrixCell], taken: &[Taken]) -> Vec<Self> {
        let asked = |contrast: &Contrast| {
            matches!(
                contrast.question,
                Question::UnboundCpus | Question::AllUnbound
            )
        };
        let floated = |contrast: Contrast| {
            let of = || {
                taken
                    .iter()
                    .filter(|taken| contrast.of.contains(&taken.cell))
                    .filter_map(Taken::good)
            };
            let cross_node = of().map(|sample| match &sample.trace {
                Known::Yes(watched) => Ok(watched.found.migrations.cross_node),
                Known::No { unknown_reason } => Err(unknown_reason),
            });
            let cross_node = match cross_node.sum::<Result<u64, _>>() {
                Ok(all) => Known::Yes(all),
                Err(reason) => Known::no(reason.clone()),
            };
            let seconds = of().map(|sample| sample.probe.seconds).sum();
            Self {
                question: contrast.question,
                ratio: contrast.ratio,
                cross_node,
                seconds,
            }
        };
        findings(cells, taken)
            .contrasts
            .into_iter()
            .filter(asked)
            .map(floated)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{
        CpuId, Distance, DistanceOrigin, Distances, Known, Node, Origin, SourceKind,
    };
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::matrix::Question;

    #[test]
    fn homes_are_the_first_node_and_the_farthest_from_it_of_those_with_cpus_and_memory() {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        let ids = [0, 1, 2, 3].map(NodeId);
        machine.nodes = ids
            .map(|id| Node::new(id, CpuSet::single(CpuId(id.0))))
            .to_vec();
        let all = Places {
            memory: ids.to_vec(),
            cpus: ids.to_vec(),
        };
        assert_eq!(
            farthest_two(&machine, &all),
            Some(vec![NodeId(0), NodeId(1)]),
            "no distances are known"
        );
        let mut distances = Distances::empty(DistanceOrigin::Kernel, ids);
        for (from, to, distance) in [(0, 1, 16), (0, 2, 32), (0, 3, 32), (1, 2, 25), (1, 3, 32)] {
            assert!(distances.set(NodeId(from), NodeId(to), Some(Distance(distance))));
        }
        machine.distances = Known::Yes(distances);
        assert_eq!(
            farthest_two(&machine, &all),
            Some(vec![NodeId(0), NodeId(2)])
        );
        let without_0 = Places {
            memory: ids[1..].to_vec(),
            cpus: ids.to_vec(),
        };
        assert_eq!(
            farthest_two(&machine, &without_0),
            Some(vec![NodeId(1), NodeId(3)])
        );
        assert_eq!(
            farthest_two(
                &machine,
                &Places {
                    memory: vec![NodeId(3)],
                    cpus: vec![NodeId(0)]
                }
            ),
            None
        );
    }

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

    #[test]
    fn half_a_minute_has_room_for_good_rounds_of_five_cells() {
        let seconds = run_seconds(25.0, 5, 0.05).unwrap();
        assert!((0.44..0.46).contains(&seconds), "{seconds}");
    }

    #[test]
    fn too_little_time_says_how_much_is_needed() {
        let error = run_seconds(5.0, 5, 0.1).unwrap_err().to_string();
        assert!(
            error.contains("6 rounds of 5 runs take 12 s") && error.contains("5 s are left"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn what_is_planned_fits(left_s in 0.0..200.0, cells in 1usize..9, overhead_s in 0.0..3.0) {
            if let Ok(run_s) = run_seconds(left_s, cells, overhead_s) {
                let rounds = left_s / (cells as f64 * (run_s + overhead_s));
                prop_assert!(rounds >= f64::from(MIN_ROUNDS) - 1e-6, "{rounds}");
            }
        }
    }
}
