//! Runs in the layout of `hyperfine --export-json`, for the programs that read it.
//!
//! A result a cell: times of the samples that did not fail, in seconds, with the cell as parameters. What a run does not know is `null`.

use nearfar_statistics::{Moments, Summary};
use serde::Serialize;
use serde_json::Value;

use super::Whole;
use crate::cell::Cell;
use crate::metric::Metric;

/// A run without times.
#[derive(Debug, thiserror::Error)]
#[error(
    "run {run} has no {metric}: hyperfine's layout has times of commands, as `bench command` takes them"
)]
pub struct NoTimes {
    run: super::RunId,
    metric: String,
}

/// A file of `hyperfine --export-json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HyperfineExport {
    results: Vec<HyperfineResult>,
}

/// Times in seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct HyperfineResult {
    /// With the cell, where a run has several: readers label bars by it.
    command: String,
    mean: f64,
    stddev: Option<f64>,
    median: f64,
    user: Option<f64>,
    system: Option<f64>,
    min: f64,
    max: f64,
    times: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_codes: Option<Vec<i32>>,
    parameters: serde_json::Map<String, Value>,
}

impl HyperfineExport {
    /// Cells whose samples all failed are left out.
    ///
    /// # Errors
    /// When a run has no times.
    pub fn of(runs: &[Whole]) -> Result<Self, NoTimes> {
        let mut results = Vec::new();
        for run in runs {
            let metric = Metric::elapsed().name;
            if run.detail.metrics.iter().all(|it| it.name != metric) {
                return Err(NoTimes {
                    run: run.run.run,
                    metric,
                });
            }
            let cells = run.detail.plan.iter();
            results.extend(cells.filter_map(|cell| HyperfineResult::of(run, cell, &metric)));
        }
        Ok(Self { results })
    }
}

impl HyperfineResult {
    fn of(run: &Whole, cell: &Cell, metric: &str) -> Option<Self> {
        let samples = run.taken.iter();
        let samples: Vec<_> = samples
            .filter(|it| it.cell == *cell && it.failed.is_none())
            .collect();
        let of = |name: &str| -> Vec<f64> {
            let values = samples.iter().filter_map(|it| it.values.get(name));
            values.map(|it| it.number()).collect()
        };
        let mean = |values: Vec<f64>| Moments::of(&values).map(|it| it.mean);
        let times = of(metric);
        let moments = Moments::of(&times)?;
        let system = samples
            .iter()
            .map(|it| it.detail["system_s"].as_f64())
            .collect::<Option<Vec<f64>>>()
            .and_then(mean);
        let takes_failures = run.detail.parameters["ignore_failure"].as_bool();
        let title = &run.run.title;
        let level = |(factor, level): (&str, &crate::Level)| {
            (factor.to_owned(), Value::from(level.to_string()))
        };
        Some(Self {
            command: match run.detail.plan.len() {
                1 => title.clone(),
                _ => format!("{title} ({cell})"),
            },
            mean: moments.mean,
            stddev: moments.stdev,
            median: Summary::of(&times)?.median,
            user: system
                .zip(mean(of("cpu_s")))
                .map(|(system, cpu)| cpu - system),
            system,
            min: moments.min,
            max: moments.max,
            exit_codes: (takes_failures == Some(false)).then(|| vec![0; times.len()]),
            times,
            parameters: cell.levels().map(level).collect(),
        })
    }
}
