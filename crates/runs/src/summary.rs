//! A run's samples by cell: how many there are, and where they lie.

use nearfar_statistics::{Interval, Moments, Summary};
use serde::Serialize;

use crate::cell::Cell;
use crate::run::Sample;

/// What the samples of one cell say together. Values are in seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CellSummary {
    /// The cell.
    pub cell: Cell,
    /// How many samples have a value, those with doubts included.
    pub samples: usize,
    /// How many of them have doubts.
    pub doubtful: usize,
    /// How many attempts failed.
    pub failed: usize,
    /// Mean, least, most and standard deviation; `None` without samples.
    pub moments: Option<Moments>,
    /// Median; `None` without samples.
    pub median: Option<f64>,
    /// The 95 % confidence interval of the median; `None` below six samples.
    pub confidence: Option<Interval>,
}

/// Sums a run's samples up by cell, in the order of the plan; cells that are only in samples come last.
pub fn summarise(plan: &[Cell], samples: &[Sample]) -> Vec<CellSummary> {
    let mut cells: Vec<&Cell> = plan.iter().collect();
    let planned: std::collections::BTreeSet<&Cell> = plan.iter().collect();
    let others: std::collections::BTreeSet<&Cell> =
        samples.iter().map(|sample| &sample.cell).filter(|cell| !planned.contains(cell)).collect();
    cells.extend(others);
    let mut by_cell: std::collections::BTreeMap<&Cell, Vec<&Sample>> = std::collections::BTreeMap::new();
    for sample in samples {
        by_cell.entry(&sample.cell).or_default().push(sample);
    }
    cells.into_iter().map(|cell| one(cell, by_cell.get(cell).map_or(&[], Vec::as_slice))).collect()
}

fn one(cell: &Cell, samples: &[&Sample]) -> CellSummary {
    let values: Vec<f64> = samples.iter().filter_map(|sample| sample.seconds).collect();
    let summary = Summary::of(&values);
    CellSummary {
        cell: cell.clone(),
        samples: values.len(),
        doubtful: samples.iter().filter(|sample| !sample.doubts.is_empty()).count(),
        failed: samples.iter().filter(|sample| sample.failed.is_some()).count(),
        moments: Moments::of(&values),
        median: summary.map(|summary| summary.median),
        confidence: summary.and_then(|summary| summary.confidence),
    }
}
