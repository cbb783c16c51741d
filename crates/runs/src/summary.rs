//! A run's samples by cell: how many there are, and where they lie.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_statistics::{Interval, Moments, Summary};
use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::run::Sample;

/// What the samples of one cell say together. Values are in seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CellSummary {
    /// The cell.
    pub cell: Cell,
    /// How many samples have a value, those with warnings included.
    pub samples: usize,
    /// How many of them have warnings.
    pub with_warnings: usize,
    /// How many attempts failed.
    pub failed: usize,
    /// Mean, least, most and standard deviation; `None` without samples.
    pub moments: Option<Moments>,
    /// Median; `None` without samples.
    pub median: Option<f64>,
    /// The 95 % confidence interval of the median; `None` below six samples.
    pub confidence: Option<Interval>,
}

/// Something that was said of several samples.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counted {
    /// What, as it was said first.
    pub what: String,
    /// Of how many samples.
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
pub fn summarise(plan: &[Cell], samples: &[Sample]) -> Vec<CellSummary> {
    let mut cells: Vec<&Cell> = plan.iter().collect();
    let planned: BTreeSet<&Cell> = plan.iter().collect();
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
        .map(|cell| one(cell, by_cell.get(cell).map_or(&[], Vec::as_slice)))
        .collect()
}

fn one(cell: &Cell, samples: &[&Sample]) -> CellSummary {
    let values: Vec<f64> = samples.iter().filter_map(|sample| sample.seconds).collect();
    let summary = Summary::of(&values);
    CellSummary {
        cell: cell.clone(),
        samples: values.len(),
        with_warnings: samples
            .iter()
            .filter(|sample| !sample.warnings.is_empty())
            .count(),
        failed: samples
            .iter()
            .filter(|sample| sample.failed.is_some())
            .count(),
        moments: Moments::of(&values),
        median: summary.map(|summary| summary.median),
        confidence: summary.and_then(|summary| summary.confidence),
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
