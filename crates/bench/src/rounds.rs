//! The samples of one metric by cell and round.

use std::collections::BTreeMap;

use nearfar_runs::{Cell, Sample};

pub(crate) struct Rounds<'a>(BTreeMap<&'a Cell, BTreeMap<u32, f64>>);

impl<'a> Rounds<'a> {
    /// The samples that did not fail and have the metric.
    pub(crate) fn of(samples: &'a [Sample], metric: &str) -> Self {
        let mut rounds: BTreeMap<&Cell, BTreeMap<u32, f64>> = BTreeMap::new();
        for sample in samples.iter().filter(|it| it.failed.is_none()) {
            if let Some(value) = sample.values.get(metric) {
                let of_cell = rounds.entry(&sample.cell).or_default();
                of_cell.insert(sample.round, value.number());
            }
        }
        Self(rounds)
    }

    /// `None` for a cell without a sample.
    pub(crate) fn of_cell(&self, cell: &Cell) -> Option<&BTreeMap<u32, f64>> {
        self.0.get(cell)
    }
}
