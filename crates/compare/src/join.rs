//! Two sides, cell by cell.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_runs::{Cell, Metric};
use nearfar_statistics::block_medians;
use nearfar_statistics::compare::{Design, Question};

use crate::comparison::OneSided;
use crate::failed::{Attempts, FailedCell};
use crate::side::{Sample, Side};

/// The samples of two sides by cell.
pub(crate) struct Join<'a> {
    baseline: &'a Side,
    side: &'a Side,
    /// The cells of both, those without usable samples too.
    pub cells: Vec<&'a Cell>,
    samples: [BTreeMap<String, Vec<&'a Sample>>; 2],
    /// How many failed.
    failed: [BTreeMap<String, usize>; 2],
}

impl<'a> Join<'a> {
    pub fn new(baseline: &'a Side, side: &'a Side) -> Self {
        let samples = [baseline, side].map(|side| {
            let mut by_cell: BTreeMap<String, Vec<&Sample>> = BTreeMap::new();
            for sample in &side.samples {
                by_cell
                    .entry(sample.cell.to_string())
                    .or_default()
                    .push(sample);
            }
            by_cell
        });
        let failed = [baseline, side].map(|side| {
            let mut by_cell = BTreeMap::new();
            for cell in &side.failed {
                *by_cell.entry(cell.to_string()).or_default() += 1;
            }
            by_cell
        });
        let mut known = BTreeSet::new();
        let cells = baseline.cells().chain(side.cells());
        let mut cells: Vec<&Cell> = cells
            .filter(|cell| known.insert(cell.to_string()))
            .collect();
        // Samples come in random order; cells in that of their levels.
        cells.sort();
        Self {
            baseline,
            side,
            cells,
            samples,
            failed,
        }
    }

    fn attempts(&self, side: usize, cell: &Cell) -> Attempts {
        let cell = cell.to_string();
        Attempts {
            samples: self.samples[side].get(&cell).map_or(0, Vec::len),
            failed: self.failed[side].get(&cell).copied().unwrap_or(0),
        }
    }

    /// The cells in which samples failed.
    pub fn failed(&self) -> Vec<FailedCell> {
        let of = |cell: &&Cell| {
            let [a, b] = [0, 1].map(|side| self.attempts(side, cell));
            FailedCell::of(&self.side.name, cell, a, b)
        };
        self.cells.iter().filter_map(of).collect()
    }

    /// The samples of one side that have a metric, and its values.
    fn values(&self, side: usize, cell: &Cell, metric: &str) -> Vec<(&'a Sample, f64)> {
        let samples = self.samples[side].get(&cell.to_string());
        let samples = samples.into_iter().flatten();
        samples
            .filter_map(|sample| Some((*sample, *sample.values.get(metric)?)))
            .collect()
    }

    pub fn question(&self, cell: &Cell, metric: &Metric) -> Option<Question> {
        let [a, b] = [0, 1].map(|side| self.values(side, cell, &metric.name));
        // Levels of one run were measured round by round, so that what drifts is common to both.
        let is_paired = self.baseline.is_paired() && self.side.is_paired();
        let better = Some(metric.better);
        let question = match is_paired {
            true => Question::paired(&by_round(&a), &by_round(&b), better),
            false => Question {
                a: by_run(&a),
                b: by_run(&b),
                design: Design::Independent,
                better,
            },
        };
        let has_samples = |side: &[Vec<f64>]| side.iter().any(|run| !run.is_empty());
        (has_samples(&question.a) && has_samples(&question.b)).then_some(question)
    }

    /// Whether both sides are one run each, which differ by more than what is compared; levels of one run do not.
    pub fn is_of_one_run_a_side(&self, question: &Question) -> bool {
        let are_levels = self.baseline.is_level && self.side.is_level;
        !are_levels && question.a.len() == 1 && question.b.len() == 1
    }

    /// Cells and metrics that only one of both has; where all samples failed the cell is one of both.
    pub fn one_sided(&self, metrics: &[Metric]) -> Vec<OneSided> {
        let mut found = Vec::new();
        for cell in &self.cells {
            let has = |side, metric: &Metric| !self.values(side, cell, &metric.name).is_empty();
            for (side, name) in [(0, &self.baseline.name), (1, &self.side.name)] {
                if self.attempts(1 - side, cell).all_failed() {
                    continue;
                }
                let alone = metrics
                    .iter()
                    .filter(|it| has(side, it) && !has(1 - side, it));
                let alone: Vec<String> = alone.map(|metric| metric.name.clone()).collect();
                if !alone.is_empty() {
                    found.push(OneSided {
                        side: self.side.name.clone(),
                        only_in: name.clone(),
                        cell: (*cell).clone(),
                        metrics: alone,
                    });
                }
            }
        }
        found
    }
}

/// The values of each run that has any: those of a block, which one disturbance changes together, as their median.
fn by_run(side: &[(&Sample, f64)]) -> Vec<Vec<f64>> {
    let mut runs: BTreeMap<usize, Vec<(Option<u32>, f64)>> = BTreeMap::new();
    for (sample, value) in side {
        let samples = runs.entry(sample.run).or_default();
        samples.push((sample.block, *value));
    }
    runs.into_values().map(block_medians).collect()
}

/// The values by run and round, of those that have one.
fn by_round(side: &[(&Sample, f64)]) -> BTreeMap<(usize, u32), f64> {
    let rounds = side.iter();
    let of = |(sample, value): &(&Sample, f64)| Some(((sample.run, sample.round?), *value));
    rounds.filter_map(of).collect()
}
