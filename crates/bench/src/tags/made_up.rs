//! Made-up runs for tests.

use nearfar_runs::{Better, Cell, Detail, Metric, Sample, Values};
use serde_json::{Value, json};

use super::{CPU_PER_OPERATION, DEPTH, DISTANCE, OPERATIONS, POLICY};

pub(super) fn detail(plan: Vec<Cell>) -> Detail {
    Detail {
        parameters: json!({"tags": 255}),
        factors: nearfar_runs::Factor::of_cells(&plan),
        plan,
        metrics: vec![
            Metric::real(OPERATIONS, "1/s", Better::Higher).primary(),
            Metric::real(CPU_PER_OPERATION, "ns", Better::Lower),
        ],
        seed: 1,
        warnings: Vec::new(),
        kernel_version: String::new(),
        kernel_command_line: String::new(),
        targets: Vec::new(),
    }
}

pub(super) fn cell(policy: &str, distance: &str, depth: i64) -> Cell {
    let cell = Cell::new().with(POLICY, policy).with(DISTANCE, distance);
    cell.with(DEPTH, depth)
}

/// A run in which each cell has such a median; samples of a round share a drift, and have noise of 2 % of their own.
pub(super) fn run(cells: &[(Cell, f64)], rounds: u32) -> (Detail, Vec<Sample>) {
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
            samples.push(Sample {
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
