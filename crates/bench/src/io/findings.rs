//! What each factor of a run costs or gains: pairs of cells that differ in one factor only, compared within rounds.
//!
//! ```text
//! cpu_node, memory_node   near ─► far
//! plan                    before ─► after
//! iopolicy                the first level ─► each other one
//! ```
//!
//! By I/Os per second and by the 99th percentile of latency; all together have a chance of any false alarm of 5 % (Holm).

use nearfar_runs::{Detail, Sample};
use nearfar_statistics::compare::DEFAULT_MARGIN;
use serde::{Deserialize, Serialize};

use super::{COMPARED_FACTORS, IOPS, LATENCY_P99};
use crate::step::{Measured, Step, by_factor};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    pub steps: Vec<Step>,
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[Sample]) -> Findings {
    let measured = Measured::of(detail, samples, &[IOPS, LATENCY_P99]);
    let steps = measured.names().flat_map(|metric| {
        let steps = by_factor(detail, COMPARED_FACTORS).into_iter();
        steps.map(|step| Step {
            metric: metric.to_owned(),
            ..step
        })
    });
    let mut steps: Vec<Step> = steps.collect();
    measured.answer(&mut steps, DEFAULT_MARGIN);
    Findings { steps }
}

#[cfg(test)]
mod tests {
    use nearfar_runs::{Cell, Factor, Values};
    use nearfar_statistics::compare::Verdict;
    use serde_json::Value;

    use super::super::sample;
    use super::*;

    fn cell(cpu: &str, plan: &str) -> Cell {
        Cell::new().with("cpu_node", cpu).with("plan", plan)
    }

    fn sample_of(cell: &Cell, round: u32, iops: f64) -> Sample {
        let values = [(IOPS, iops), (LATENCY_P99, 1e9 / iops)];
        let values = values.map(|(name, value)| (name.to_owned(), value.into()));
        Sample {
            number: 0,
            round,
            cell: cell.clone(),
            started_at_s: 0.0,
            took_s: 1.0,
            values: Values::from(values),
            failed: None,
            warnings: Vec::new(),
            detail: Value::Null,
        }
    }

    #[test]
    fn cells_that_differ_in_one_factor_are_compared_by_iops_and_p99() {
        let cells = [
            (cell("near", "before"), 1000.0),
            (cell("near", "after"), 1000.0),
            (cell("far", "before"), 800.0),
            (cell("far", "after"), 1000.0),
        ];
        let plan: Vec<Cell> = cells.iter().map(|(cell, _)| cell.clone()).collect();
        let mut random = fastrand::Rng::with_seed(3);
        let mut samples = Vec::new();
        for round in 1..=12 {
            let noisy = |(cell, iops): &(Cell, f64)| {
                sample_of(cell, round, iops * (1.0 + 0.01 * random.f64()))
            };
            samples.extend(cells.iter().map(noisy));
        }
        let detail = Detail {
            parameters: Value::Null,
            factors: vec![
                Factor::new("cpu_node", ["near", "far"]),
                Factor::new("plan", ["before", "after"]),
            ],
            plan,
            metrics: nearfar_experiment::metrics(sample::columns()),
            seed: 1,
            warnings: Vec::new(),
            kernel_version: String::new(),
            kernel_command_line: String::new(),
            targets: Vec::new(),
        };
        let found = findings(&detail, &samples);
        // Two metrics x (near to far twice, before to after twice).
        assert_eq!(found.steps.len(), 8);
        let verdict = |metric: &str, factor: &str, b: &Cell| {
            let mut steps = found.steps.iter();
            let step = steps.find(|it| it.metric == metric && it.factor == factor && it.b == *b);
            step.unwrap().compared.get().unwrap().verdict
        };
        let far = cell("far", "before");
        assert_eq!(verdict(IOPS, "cpu_node", &far), Verdict::Worse);
        assert_eq!(verdict(LATENCY_P99, "cpu_node", &far), Verdict::Worse);
        let fixed = cell("far", "after");
        assert_eq!(verdict(IOPS, "plan", &fixed), Verdict::Better);
        assert_eq!(verdict(IOPS, "cpu_node", &fixed), Verdict::Equivalent);
    }
}
