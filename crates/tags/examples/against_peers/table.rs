//! What is printed.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::contestants::Kind;
use crate::regimes::{Cell, Found, Regime};

/// Figures of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

/// A contestant in a cell.
#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    cell: Cell,
    contestant: Kind,
    /// Nanoseconds of a get and a put; of fairness, the share.
    figure: Spread,
    /// The time of `Auto` by this contestant's, round by round.
    ratio: Option<Spread>,
    goal: Option<f64>,
    is_met: Option<bool>,
    /// The most tags that one thread could not take when no thread held any.
    unreachable_tags: usize,
}

impl Spread {
    /// Of at least one figure.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let (middle, last) = (values.len() / 2, values.len() - 1);
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Self {
            median,
            lowest: values[0],
            highest: values[last],
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.median {
            0.0..10.0 => 2,
            10.0..100.0 => 1,
            _ => 0,
        };
        let Self {
            median,
            lowest,
            highest,
        } = self;
        write!(
            f,
            "{median:.digits$} ({lowest:.digits$} to {highest:.digits$})"
        )
    }
}

impl Row {
    /// Of the rounds of this contestant and those of `Auto`, if that was measured.
    pub fn new(cell: Cell, contestant: Kind, rounds: &[Found], auto: Option<&[Found]>) -> Self {
        let figure = Spread::of(rounds.iter().map(|found| found.figure));
        let ratio = auto
            .filter(|_| contestant != Kind::Auto && cell.regime != Regime::Fairness)
            .map(|auto| {
                Spread::of(
                    auto.iter()
                        .zip(rounds)
                        .map(|(auto, found)| auto.figure / found.figure),
                )
            });
        let goal = contestant.goal(cell);
        let is_met = goal.and_then(|goal| match (cell.regime, contestant, ratio) {
            (Regime::Fairness, ..) => Some(figure.median >= goal),
            (_, Kind::Auto, _) => Some(figure.median <= goal),
            (.., ratio) => ratio.map(|ratio| ratio.median <= goal),
        });
        Self {
            cell,
            contestant,
            figure,
            ratio,
            goal,
            is_met,
            unreachable_tags: rounds
                .iter()
                .map(|found| found.unreachable)
                .max()
                .unwrap_or(0),
        }
    }

    fn bound(&self) -> &'static str {
        match self.cell.regime {
            Regime::Fairness => "at least",
            _ => "at most",
        }
    }
}

pub fn print_head(cell: Cell) {
    let regime = name(&cell.regime);
    let Cell { tags, threads, .. } = cell;
    let figure = match cell.regime {
        Regime::Fairness => "least by most",
        _ => "ns of get and put",
    };
    println!(
        "\n{:24}{figure:26}time of auto by this",
        format!("{regime}, T={threads}, N={tags}")
    );
}

pub fn print(row: &Row) {
    let ratio = row.ratio.map(|ratio| ratio.to_string()).unwrap_or_default();
    let unreachable = match row.unreachable_tags {
        0 => String::new(),
        tags => format!("  {tags} tags unreachable"),
    };
    let contestant = name(&row.contestant);
    let line = format!(
        "  {contestant:22}{:26}{ratio:24}{unreachable}",
        row.figure.to_string()
    );
    println!("{}", line.trim_end());
}

/// Each goal, in lines that `make bench` collects.
pub fn print_goals(rows: &[Row]) {
    println!();
    for row in rows {
        let (Some(goal), Some(is_met)) = (row.goal, row.is_met) else {
            continue;
        };
        let Cell { tags, threads, .. } = row.cell;
        let cell = format!("{}, T={threads}, N={tags}", name(&row.cell.regime));
        let what = match row.ratio {
            Some(_) => format!("time of tags by {}", name(&row.contestant)),
            None => "tags".to_owned(),
        };
        let figure = row.ratio.as_ref().unwrap_or(&row.figure);
        let bound = row.bound();
        let met = if is_met { "met" } else { "missed" };
        println!("goal: {what}, {cell}: {figure}, {bound} {goal}: {met}");
    }
}

fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}
