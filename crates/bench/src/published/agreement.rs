//! The ranks of a table's cells and of those of a run.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::Known;
use nearfar_runs::Cell;
use nearfar_statistics::law::Law;
use nearfar_statistics::{Interval, Summary, spearman};
use serde::{Deserialize, Serialize};

use super::lines::Row;
use crate::step::Rounds;

/// Whether a run ranks its cells as a published table does, for one metric and one set of levels that the table does not have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Agreement {
    pub metric: String,
    /// The published column or columns.
    pub column: String,
    /// The levels of the other factors.
    pub conditions: Cell,
    /// Spearman's rank correlation of the published figures and the medians, -1 to 1.
    pub correlation: Known<f64>,
    /// The same of the samples of one round, over the rounds that have all of the cells.
    pub by_round: Option<ByRound>,
    pub cells: Vec<Pair>,
    /// The laws that the published figures follow, of an experiment that fits some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub laws: Vec<PublishedLaw>,
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

/// The universal scalability law of the published figures of machines with one number of nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PublishedLaw {
    pub nodes: i64,
    pub law: Law,
    /// The number of tasks with the highest throughput; `None` where it grows without end.
    pub peak: Option<f64>,
    /// What the law has for halves, quarters, ... of the largest published number of tasks that are not published; fewest first.
    pub between: Vec<Between>,
}

/// A throughput that is not published.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Between {
    pub tasks: u32,
    /// In the unit of the published column.
    pub throughput: f64,
}

/// A cell of both. In JSON its levels are keys of their own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// By the published names.
    #[serde(flatten)]
    pub levels: Cell,
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

/// Cells of a run that a published table does not have.
pub(crate) fn not_published(cells: impl IntoIterator<Item = String>) -> Vec<LeftOut> {
    let mut known = BTreeSet::new();
    let cells = cells.into_iter().filter(|it| known.insert(it.clone()));
    let left_out = |cell| LeftOut {
        cell,
        reason: "not in the published table".to_owned(),
    };
    cells.map(left_out).collect()
}

/// A column of figures of a published table and one metric of a run.
pub(crate) struct Ranked<'a> {
    /// The samples of the metric.
    pub(crate) rounds: &'a Rounds<'a>,
    pub(crate) rows: &'a [Row],
    /// The names of the rows' levels, as they are shown.
    pub(crate) order: &'a [&'a str],
    /// The figure's place in each row.
    pub(crate) place: usize,
    pub(crate) metric: &'a str,
    pub(crate) column: &'a str,
}

impl Ranked<'_> {
    /// `cell_of`: the run's cell of a published one, or why there is none.
    pub(crate) fn agreement(
        &self,
        conditions: Cell,
        cell_of: impl Fn(&Row) -> Result<Cell, &'static str>,
        not_published: Vec<LeftOut>,
    ) -> Agreement {
        let (mut pairs, mut by_cell, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for row in self.rows {
            match self.pair(row, &cell_of) {
                Ok((pair, rounds)) => {
                    pairs.push(pair);
                    by_cell.push(rounds);
                }
                Err(reason) => left_out.push(LeftOut {
                    cell: row.name(self.order),
                    reason: reason.to_owned(),
                }),
            }
        }
        left_out.extend(not_published);
        let figures = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
        let published = figures(|pair| pair.published);
        let correlation = spearman(&published, &figures(|pair| pair.measured));
        let correlation = correlation.map_or_else(
            || Known::no(format!("{} cells have no order", pairs.len())),
            Known::Yes,
        );
        Agreement {
            metric: self.metric.to_owned(),
            column: self.column.to_owned(),
            conditions,
            correlation,
            by_round: by_round(&published, &by_cell),
            cells: pairs,
            laws: Vec::new(),
            left_out,
        }
    }

    /// The figures of a published cell, and its samples by round; else why there are none.
    fn pair(
        &self,
        row: &Row,
        cell_of: impl Fn(&Row) -> Result<Cell, &'static str>,
    ) -> Result<(Pair, &BTreeMap<u32, f64>), &'static str> {
        let published = row.figures[self.place].ok_or("the published table has no figure")?;
        let rounds = self.rounds.of_cell(&cell_of(row)?);
        let summary = Summary::of(&rounds.values().copied().collect::<Vec<_>>());
        let measured = summary.ok_or("the run has no sample of it")?.median;
        let pair = Pair {
            levels: row.levels.clone(),
            published,
            measured,
        };
        Ok((pair, rounds))
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
