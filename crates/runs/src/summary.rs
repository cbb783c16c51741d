//! A run's samples by cell: how many there are, and where they lie.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_statistics::{Interval, Moments, Summary};
use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::metric::{MetricValue, Quantiles};
use crate::run::{Detail, Sample};

/// What the samples of one cell say together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CellSummary {
    pub cell: Cell,
    /// How many samples have a value, those with warnings included.
    pub samples: usize,
    pub with_warnings: usize,
    pub failed: usize,
    /// Why those failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Counted>,
    /// What may be wrong with others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Counted>,
    /// One for each metric of the run, in the order in which it declares them.
    pub metrics: Vec<MetricSummary>,
}

/// What the samples of one cell say of one metric, in its unit. A sample's histogram counts as its median.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MetricSummary {
    pub metric: String,
    /// How many samples have a value of it.
    pub samples: usize,
    /// Mean, least, most and standard deviation; `None` without samples.
    pub moments: Option<Moments>,
    /// `None` without samples.
    pub median: Option<f64>,
    /// The 95 % confidence interval of the median; `None` below six samples.
    pub confidence: Option<Interval>,
    /// Of all values in the histograms of all samples; `None` for metrics of other kinds.
    pub quantiles: Option<Quantiles>,
}

impl CellSummary {
    pub fn metric(&self, name: &str) -> Option<&MetricSummary> {
        self.metrics.iter().find(|summary| summary.metric == name)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counted {
    /// What, as it was said first.
    pub what: String,
    pub samples: usize,
    /// Whether the figures in it are those of the first sample, and others have others.
    #[serde(default)]
    pub differ: bool,
}

/// How often each thing was said, the most frequent first; what differs only in its figures is one thing.
pub fn counted(said: impl IntoIterator<Item = impl Into<String>>) -> Vec<Counted> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut found: Vec<Counted> = Vec::new();
    for what in said.into_iter().map(Into::into) {
        let kind = what
            .chars()
            .filter(|c| !c.is_ascii_digit() && *c != '.')
            .collect();
        let place = *places.entry(kind).or_insert(found.len());
        match found.get_mut(place) {
            Some(known) => {
                known.samples += 1;
                known.differ |= known.what != what;
            }
            None => found.push(Counted {
                what,
                samples: 1,
                differ: false,
            }),
        }
    }
    found.sort_by_key(|counted| std::cmp::Reverse(counted.samples));
    found
}

/// Sums a run's samples up by cell, in the order of the plan; cells that are only in samples come last.
pub fn summarise(detail: &Detail, samples: &[Sample]) -> Vec<CellSummary> {
    let mut cells: Vec<&Cell> = detail.plan.iter().collect();
    let planned: BTreeSet<&Cell> = detail.plan.iter().collect();
    let others: BTreeSet<&Cell> = samples
        .iter()
        .map(|sample| &sample.cell)
        .filter(|cell| !planned.contains(cell))
        .collect();
    cells.extend(others);
    let mut by_cell: BTreeMap<&Cell, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        by_cell.entry(&sample.cell).or_default().push(sample);
    }
    cells
        .into_iter()
        .map(|cell| of_cell(cell, detail, by_cell.get(cell).map_or(&[], Vec::as_slice)))
        .collect()
}

fn of_cell(cell: &Cell, detail: &Detail, samples: &[&Sample]) -> CellSummary {
    let failed = samples.iter().filter_map(|sample| sample.failed.as_deref());
    let failures = counted(failed.clone());
    let warnings = samples.iter().flat_map(|sample| sample.warnings.clone());
    let failed = failed.count();
    CellSummary {
        cell: cell.clone(),
        samples: samples.len() - failed,
        with_warnings: samples
            .iter()
            .filter(|sample| !sample.warnings.is_empty())
            .count(),
        failed,
        failures,
        warnings: counted(warnings),
        metrics: detail
            .metrics
            .iter()
            .map(|metric| of_metric(&metric.name, detail, samples))
            .collect(),
    }
}

fn of_metric(name: &str, detail: &Detail, samples: &[&Sample]) -> MetricSummary {
    let values = samples
        .iter()
        .filter_map(|sample| Some((sample, sample.values.get(name)?)));
    let values: Vec<_> = values.collect();
    let numbers: Vec<f64> = values.iter().map(|(_, value)| value.number()).collect();
    let blocks = values
        .iter()
        .map(|(sample, value)| (detail.block(sample.round), value.number()));
    let histograms = values.iter().filter_map(|(_, value)| match value {
        MetricValue::Histogram(histogram) => Some(histogram.clone()),
        _ => None,
    });
    let merged = histograms.reduce(|mut merged, histogram| {
        merged.merge(&histogram);
        merged
    });
    let summary = Summary::of_blocks(&blocks.collect::<Vec<_>>());
    MetricSummary {
        metric: name.to_owned(),
        samples: numbers.len(),
        moments: Moments::of(&numbers),
        median: summary.map(|summary| summary.median),
        confidence: summary.and_then(|summary| summary.confidence),
        quantiles: merged.and_then(|merged| merged.quantiles()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_in_its_figures_is_one_thing_and_said_to_differ() {
        let said = ["3.5 % stolen", "throttled", "14 % stolen", "throttled"];
        let of = |what: &str, differ| Counted {
            what: what.to_owned(),
            samples: 2,
            differ,
        };
        assert_eq!(
            counted(said),
            [of("3.5 % stolen", true), of("throttled", false)]
        );
    }
}
