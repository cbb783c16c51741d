//! Taking the runs: calibration, then rounds until the budget is spent.

use std::sync::atomic::Ordering;
use std::time::Instant;

use nearfar_machine::{Machine, NodeId};

use super::answer::{Floated, Floating};
use super::budget::{self, MOST_ROUNDS};
use super::{FloatingError, FloatingOptions};
use crate::matrix::{self, Matrix, MatrixCell, Parameters, Policy, Taken, calibrate};
use crate::probe::{self, Pattern, Where};
use crate::random::{Random, SEED};

/// Largest buffer: a checkup takes no more of a busy machine's memory than this.
const MOST_BYTES: u64 = 512 << 20;
/// Rounds of accesses in one run of the probe.
const COUNTS: u32 = 100;
/// What a run is first calibrated to; what such runs take beside that decides how long runs are.
const FIRST_RUN_S: f64 = 0.3;

/// Runs the probe bound to these nodes and floating in turn under a little load until the budget is spent. Sets nothing, and
/// leaves nothing behind. On one node floating costs nothing, which is what it then finds.
///
/// # Errors
/// When there is too little time, a child fails while calibrating, or `cancel` is set.
pub fn measure(
    machine: &Machine,
    homes: &[NodeId],
    options: &FloatingOptions,
) -> Result<Floating, FloatingError> {
    let started = Instant::now();
    let left_s = || {
        options
            .budget
            .saturating_sub(started.elapsed())
            .as_secs_f64()
    };
    let numa_balancing = matrix::is_balancing(machine);
    let mut parameters = parameters(machine, homes, options, numa_balancing.get() == Some(&true));
    parameters.steps = calibrate(
        machine,
        &options.program,
        &parameters,
        FIRST_RUN_S,
        &options.cancel,
    )?
    .steps;
    let mut matrix = Matrix::new(machine, options.program.clone(), parameters.clone());
    // What does not fit even if nothing is lost beside the runs need not be tried.
    budget::run_seconds(left_s(), parameters.cells.len(), 0.0)?;
    let overhead_s = overhead(&mut matrix, options)?;
    let run_s = budget::run_seconds(left_s(), parameters.cells.len(), overhead_s)?;
    parameters.steps = ((parameters.steps as f64 * run_s / FIRST_RUN_S) as u64).max(1);
    parameters.calibrated_to_s = Some(run_s);
    matrix.set_steps(parameters.steps);
    let taken = rounds(&mut matrix, options, &left_s)?;
    Ok(Floating {
        contrasts: Floated::of(&parameters.cells, &taken),
        rows: matrix::rows(&parameters.cells, &taken),
        warnings: matrix::warnings(&taken),
        parameters,
        load_cpus: matrix::load_cpus(machine),
        numa_balancing,
        elapsed_s: started.elapsed().as_secs_f64(),
        emulation: machine.origin.emulation.clone(),
    })
}

/// Seconds that a run takes beside its timed part: preparing, tracing, ending. The lesser of two: the first starts the load.
fn overhead(matrix: &mut Matrix<'_>, options: &FloatingOptions) -> Result<f64, FloatingError> {
    let mut least_s = f64::INFINITY;
    for cell in matrix.parameters().cells.clone().into_iter().take(2) {
        let before = Instant::now();
        let run = matrix.once(&cell, &options.cancel);
        match run {
            _ if options.cancel.load(Ordering::Relaxed) => return Err(FloatingError::Cancelled),
            Ok(sample) => {
                least_s = least_s.min(before.elapsed().as_secs_f64() - sample.probe.seconds)
            }
            Err(error) => return Err(FloatingError::Run(error.to_string())),
        }
    }
    Ok(least_s)
}

/// Rounds until another one would not fit.
fn rounds(
    matrix: &mut Matrix<'_>,
    options: &FloatingOptions,
    left_s: &dyn Fn() -> f64,
) -> Result<Vec<Taken>, FloatingError> {
    let (mut random, mut taken, mut longest_s) = (Random::new(SEED), Vec::new(), 0.0_f64);
    let mut order = matrix.parameters().cells.clone();
    for round in 0..MOST_ROUNDS {
        if round > 0 && left_s() < longest_s {
            break;
        }
        let before = Instant::now();
        random.shuffle(&mut order);
        for &cell in &order {
            let sample = matrix
                .once(&cell, &options.cancel)
                .map_err(|error| error.to_string());
            if options.cancel.load(Ordering::Relaxed) {
                return Err(FloatingError::Cancelled);
            }
            taken.push(Taken {
                cell,
                round,
                sample,
            });
        }
        longest_s = longest_s.max(before.elapsed().as_secs_f64());
    }
    Ok(taken)
}

fn parameters(
    machine: &Machine,
    homes: &[NodeId],
    options: &FloatingOptions,
    numa_balancing: bool,
) -> Parameters {
    let (bytes, _) = probe::default_buffer_bytes(machine, homes);
    Parameters {
        pattern: Pattern::RandomReadWrite,
        bytes: bytes.min(MOST_BYTES),
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

/// Each node with CPUs bound to it and floating, and all floating.
fn cells(nodes: &[NodeId], numa_balancing: bool) -> Vec<MatrixCell> {
    let policy = Policy {
        preferred: None,
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
            memory,
            cpus,
        })
        .collect()
}
