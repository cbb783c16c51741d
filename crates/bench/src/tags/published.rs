//! A published table of tag allocators.
//!
//! ```text
//! # a comment
//! scenario,variant,kiops,sys_percent
//! near-low,limit+topology,1058.1,52.42      the variant is the policy limit_topology
//! ```

use std::collections::BTreeSet;
use std::io::Read;

use nearfar_runs::{Cell, Detail, Sample};

use super::scenario::{PUBLISHED_NAMES, Scenario, policies, scenarios};
use super::{DECLARATION, OPERATIONS, POLICY, SYSTEM_SHARE};
use crate::published::{
    Agreement, Columns, LeftOut, Line, Lines, PublishedError, Ranked, Row, not_published,
};
use crate::step::Rounds;

const SCENARIO: &str = "scenario";
const VARIANT: &str = "variant";
const COLUMNS: &str = "scenario, variant, kiops, sys_percent (optional)";
/// The names of the levels of a published cell, in the order that they are shown in.
pub const PUBLISHED_LEVELS: [&str; 2] = [SCENARIO, POLICY];

/// A column of figures.
struct Figure {
    column: &'static str,
    /// Whether a file has to have it.
    is_needed: bool,
    /// The largest number in it.
    max: f64,
    /// The metric of a run that it is.
    metric: &'static str,
}

const FIGURES: [Figure; 2] = [
    Figure {
        column: "kiops",
        is_needed: true,
        max: f64::MAX,
        metric: OPERATIONS,
    },
    Figure {
        column: "sys_percent",
        is_needed: false,
        max: 100.0,
        metric: SYSTEM_SHARE,
    },
];

/// A file of published figures.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// Their levels: one of [`PUBLISHED_NAMES`], and one of the factor [`POLICY`]; their figures: as [`FIGURES`].
    rows: Vec<Row>,
}

impl Published {
    /// Reads CSV with a line of columns; lines that begin with `#` are comments.
    ///
    /// # Errors
    /// The first line that is wrong, with its number and, of a field, its column; a file of more than 1 MiB.
    pub fn read(input: impl Read) -> Result<Self, PublishedError> {
        let is_figure = |head: &str| FIGURES.iter().any(|it| it.column == head);
        let is_column = |head: &str| head == SCENARIO || head == VARIANT || is_figure(head);
        let lines = Lines::read(input, is_column, COLUMNS)?;
        let places = Places::of(lines.columns())?;
        let rows = lines.rows(&PUBLISHED_LEVELS, |line| Ok(vec![places.row(line)?]))?;
        Ok(Self { rows })
    }
}

/// Where the columns of a file are.
struct Places {
    scenario: usize,
    variant: usize,
    figures: [Option<usize>; FIGURES.len()],
}

impl Places {
    fn of(columns: &Columns) -> Result<Self, PublishedError> {
        for it in FIGURES.iter().filter(|it| it.is_needed) {
            columns.needed(it.column)?;
        }
        Ok(Self {
            scenario: columns.needed(SCENARIO)?,
            variant: columns.needed(VARIANT)?,
            figures: FIGURES.map(|it| columns.place(it.column)),
        })
    }

    fn row(&self, line: &Line<'_>) -> Result<Row, PublishedError> {
        let known = |place, name: String, known: &[&str]| match known.contains(&&*name) {
            true => Ok(name),
            false => Err(line.unknown(place, &known.join(", "))),
        };
        let mut figures = vec![None; FIGURES.len()];
        for ((figure, place), of) in figures.iter_mut().zip(self.figures).zip(&FIGURES) {
            let Some(place) = place else { continue };
            if of.is_needed || !line.is_empty(place) {
                *figure = Some(line.number(place, of.max)?);
            }
        }
        let scenario = line.text(self.scenario)?.to_owned();
        let scenario = known(self.scenario, scenario, &PUBLISHED_NAMES)?;
        let policy = line.text(self.variant)?.replace(['+', '-'], "_");
        let policy = known(self.variant, policy, DECLARATION.levels_of(POLICY))?;
        Ok(Row {
            levels: Cell::new().with(SCENARIO, scenario).with(POLICY, policy),
            figures,
        })
    }
}

/// Compares the ranks of a run's cells with those of a published table: once for each column and each combination of the levels of
/// the other factors.
pub fn agreement(detail: &Detail, samples: &[Sample], published: &Published) -> Vec<Agreement> {
    let all = scenarios(detail);
    let conditions: BTreeSet<Cell> = all.iter().map(Scenario::conditions).collect();
    let rows = &published.rows;
    let mut found = Vec::new();
    for conditions in conditions {
        let of_these = all.iter().filter(|it| it.conditions() == conditions);
        let scenarios: Vec<&Scenario> = of_these.collect();
        for (place, figure) in FIGURES.iter().enumerate() {
            if rows.iter().all(|row| row.figures[place].is_none()) {
                continue;
            }
            let ranked = Ranked {
                rounds: &Rounds::of(samples, figure.metric),
                rows,
                order: &PUBLISHED_LEVELS,
                place,
                metric: figure.metric,
                column: figure.column,
            };
            let cell_of = |row: &Row| cell_of(row, &scenarios, detail);
            let others = of_the_run(rows, &scenarios, detail);
            found.push(ranked.agreement(conditions.clone(), cell_of, others));
        }
    }
    found
}

fn cell_of(row: &Row, scenarios: &[&Scenario], detail: &Detail) -> Result<Cell, &'static str> {
    let name = row.levels.text(SCENARIO);
    let scenarios = scenarios.iter().filter(|it| it.published_name == name);
    let cells = scenarios.map(|it| it.cell(&row.levels.text(POLICY)));
    let mut in_plan = cells.filter(|cell| detail.plan.contains(cell));
    match (in_plan.next(), in_plan.next()) {
        (None, _) => Err("the run does not have it"),
        (Some(cell), None) => Ok(cell),
        (Some(_), Some(_)) => Err("the run has it at several depths"),
    }
}

/// The run's cells that the published table does not have: scenarios and policies that it does not have at all by their name.
fn of_the_run(rows: &[Row], scenarios: &[&Scenario], detail: &Detail) -> Vec<LeftOut> {
    let has = |of: &dyn Fn(&Row) -> bool| rows.iter().any(of);
    let (mut found, mut rest) = (Vec::new(), Vec::new());
    for policy in policies(detail) {
        match has(&|row| row.levels.text(POLICY) == policy) {
            true => rest.push(policy),
            false => found.push(policy),
        }
    }
    for scenario in scenarios {
        let name = &scenario.published_name;
        let is_it = |row: &Row| row.levels.text(SCENARIO) == *name;
        if !has(&is_it) {
            found.push(name.clone());
            continue;
        }
        let cells = rest.iter().filter(|policy| {
            let is_measured = detail.plan.contains(&scenario.cell(policy));
            is_measured && !has(&|row| is_it(row) && row.levels.text(POLICY) == **policy)
        });
        found.extend(cells.map(|policy| format!("{name} {policy}")));
    }
    not_published(found)
}

#[cfg(test)]
mod tests;
