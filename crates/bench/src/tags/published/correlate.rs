//! The ranks of a table's cells and of those of a run.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Sample};
use nearfar_statistics::{Interval, Summary, spearman};
use serde::{Deserialize, Serialize};

use super::super::scenario::{Scenario, policies, scenarios};
use super::parse::{FIGURES, Published, Row};
use crate::rounds::Rounds;

/// Whether a run ranks its cells as a published table does, for one metric and one set of levels that the table does not have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Agreement {
    pub metric: String,
    /// The published column.
    pub column: String,
    /// The levels of the other factors.
    pub conditions: Cell,
    /// Spearman's rank correlation of the published figures and the medians, -1 to 1.
    pub correlation: Known<f64>,
    /// The same of the samples of one round, over the rounds that have all of the cells.
    pub by_round: Option<ByRound>,
    pub cells: Vec<Pair>,
    /// Published cells that the run has no sample of, and cells of the run that are not published, each with the reason.
    pub left_out: Vec<LeftOut>,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ByRound {
    pub median: f64,
    /// The 95 % interval of the median; `None` below six rounds.
    pub confidence: Option<Interval>,
    pub rounds: usize,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    pub scenario: String,
    pub policy: String,
    /// In the unit of the published column.
    pub published: f64,
    /// The median, in the unit of the metric.
    pub measured: f64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub cell: String,
    pub reason: String,
}

/// Compares the ranks of a run's cells with those of a published table: once for each column and each combination of the levels of
/// the other factors.
pub fn agreement(detail: &Detail, samples: &[Sample], published: &Published) -> Vec<Agreement> {
    let all = scenarios(detail);
    let conditions: BTreeSet<Cell> = all.iter().map(Scenario::conditions).collect();
    let mut found = Vec::new();
    for conditions in conditions {
        let of_these = all.iter().filter(|it| it.conditions() == conditions);
        let scenarios: Vec<&Scenario> = of_these.collect();
        for (place, figure) in FIGURES.iter().enumerate() {
            let mut rows = published.rows.iter();
            if rows.any(|row| row.figures[place].is_some()) {
                let ranked = Ranked {
                    detail,
                    rounds: Rounds::of(samples, figure.metric),
                    published,
                    scenarios: &scenarios,
                    place,
                };
                found.push(ranked.agreement(&conditions));
            }
        }
    }
    found
}

/// One column of a published table and one metric of a run.
struct Ranked<'a> {
    detail: &'a Detail,
    /// The samples of the metric.
    rounds: Rounds<'a>,
    published: &'a Published,
    scenarios: &'a [&'a Scenario],
    /// The column's place in [`FIGURES`].
    place: usize,
}

impl Ranked<'_> {
    fn agreement(&self, conditions: &Cell) -> Agreement {
        let (mut pairs, mut by_cell, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for row in &self.published.rows {
            match self.pair(row) {
                Ok((pair, rounds)) => {
                    pairs.push(pair);
                    by_cell.push(rounds);
                }
                Err(reason) => left_out.push(LeftOut {
                    cell: row.name(),
                    reason: reason.to_owned(),
                }),
            }
        }
        left_out.extend(self.not_published());
        let figures = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
        let published = figures(|pair| pair.published);
        let correlation = spearman(&published, &figures(|pair| pair.measured));
        let correlation = correlation.map_or_else(
            || Known::no(format!("{} cells have no order", pairs.len())),
            Known::Yes,
        );
        let figure = &FIGURES[self.place];
        Agreement {
            metric: figure.metric.to_owned(),
            column: figure.column.to_owned(),
            conditions: conditions.clone(),
            correlation,
            by_round: by_round(&published, &by_cell),
            cells: pairs,
            left_out,
        }
    }

    /// The figures of a published cell, and its samples by round; else why there are none.
    fn pair(&self, row: &Row) -> Result<(Pair, &BTreeMap<u32, f64>), &'static str> {
        let published = row.figures[self.place].ok_or("the published table has no figure")?;
        let of_name = |it: &&&Scenario| it.published_name == row.scenario;
        let scenarios = self.scenarios.iter().filter(of_name);
        let cells: Vec<Cell> = scenarios.map(|it| it.cell(row.policy)).collect();
        let in_plan = cells.iter().filter(|cell| self.detail.plan.contains(cell));
        let cell = match in_plan.collect::<Vec<_>>().as_slice() {
            [] => return Err("the run does not have it"),
            [cell] => *cell,
            _ => return Err("the run has it at several depths"),
        };
        let rounds = self.rounds.of_cell(cell);
        let rounds = rounds.ok_or("the run has no sample of it")?;
        let summary = Summary::of(&rounds.values().copied().collect::<Vec<_>>());
        let measured = summary.ok_or("the run has no sample of it")?.median;
        let pair = Pair {
            scenario: row.scenario.to_owned(),
            policy: row.policy.to_owned(),
            published,
            measured,
        };
        Ok((pair, rounds))
    }

    /// The run's cells that the published table does not have: scenarios and policies that it does not have at all by their name.
    fn not_published(&self) -> Vec<LeftOut> {
        let rows = &self.published.rows;
        let has = |of: &dyn Fn(&Row) -> bool| rows.iter().any(of);
        let (mut found, mut rest) = (Vec::new(), Vec::new());
        for policy in policies(self.detail) {
            match has(&|row| row.policy == policy) {
                true => rest.push(policy),
                false => found.push(policy),
            }
        }
        for scenario in self.scenarios {
            let name = &scenario.published_name;
            if !has(&|row| row.scenario == name) {
                found.push(name.clone());
                continue;
            }
            let cells = rest.iter().filter(|policy| {
                let is_measured = self.detail.plan.contains(&scenario.cell(policy));
                is_measured && !has(&|row| row.scenario == name && row.policy == **policy)
            });
            found.extend(cells.map(|policy| format!("{name} {policy}")));
        }
        let mut known = BTreeSet::new();
        found.retain(|cell| known.insert(cell.clone()));
        let left_out = |cell| LeftOut {
            cell,
            reason: "not in the published table".to_owned(),
        };
        found.into_iter().map(left_out).collect()
    }
}

/// The correlation within each round that has all cells.
fn by_round(published: &[f64], by_cell: &[&BTreeMap<u32, f64>]) -> Option<ByRound> {
    let rounds: BTreeSet<u32> = by_cell.iter().flat_map(|it| it.keys()).copied().collect();
    let of_round = |round: &u32| {
        let values: Option<Vec<f64>> = by_cell.iter().map(|it| it.get(round).copied()).collect();
        spearman(published, &values?)
    };
    let correlations: Vec<f64> = rounds.iter().filter_map(of_round).collect();
    let summary = Summary::of(&correlations)?;
    Some(ByRound {
        median: summary.median,
        confidence: summary.confidence,
        rounds: correlations.len(),
    })
}
