//! A published investigation and the run that repeats it.

use nearfar_bench::cases::{Case, Effect, PublishedChange};
use nearfar_compare::{Comparison, Row};
use serde::Serialize;

use crate::compare;
use crate::compared::{change, significant};
use crate::document::{Document, Table, Text, cells};
use crate::style::Role;

/// The cases, with what each takes.
pub fn list(cases: &[Case]) -> Document {
    let heads = ["", "", "experiment", ">samples", ">minutes", ">--quick"];
    let mut table = Table::of(heads).indent(0);
    for case in cases {
        table.row(cells![
            Role::Subject.text(case.number.to_string()),
            case.title,
            format!("bench {}", case.experiment),
            case.samples.to_string(),
            case.minutes.to_string(),
            case.quick.minutes.to_string(),
        ]);
    }
    let mut document = Document::new();
    document.table(table);
    document.remark(
        "Samples of each cell, and minutes in guests of the lab on a host with two CPUs, with --quick of the effect and its direction. \
         `nearfar case N` repeats one.",
    );
    document
}

/// What was asked, by whom, and the command that repeats it, unless that stands elsewhere; above the run.
pub fn question(case: &Case, command: Option<&str>) -> Document {
    let mut document = Document::titled(format!("Case {}", case.number), case.title);
    document.facts([
        ("published", Text::from(case.source)),
        ("question", case.question.into()),
        ("repeated by", command.unwrap_or_default().into()),
    ]);
    document
}

/// What the machine that measured does not show; below the run.
pub fn limits(case: &Case, is_here: bool) -> Document {
    let limits = match is_here {
        true => case.limits_here,
        false => case.limits,
    };
    if limits.is_empty() {
        return Document::new();
    }
    let mut document = Document::titled("What this cannot show", "");
    limits.iter().for_each(|limit| document.paragraph(*limit));
    document
}

/// The published table with what was measured.
pub fn effect(effect: &Effect, comparison: &Comparison) -> Document {
    let levels = others(effect, comparison);
    let title = format!("{levels} (B) against {} (A)", effect.baseline);
    let mut document = Document::titled(title, "medians");
    let (table, shown) = figures(effect, comparison);
    document.table(table);
    if shown < comparison.rows.len() {
        compare::tables(&mut document, comparison);
    }
    document
}

fn others(effect: &Effect, comparison: &Comparison) -> String {
    let names = comparison.sides.iter().skip(1);
    let levels: Vec<&str> = names.map(|side| level_of(effect, &side.name)).collect();
    match levels.is_empty() {
        true => effect.factor.to_owned(),
        false => format!("{}: {}", effect.factor, levels.join(", ")),
    }
}

/// The table, and how many rows it has.
fn figures(effect: &Effect, comparison: &Comparison) -> (Table, usize) {
    let mut shown = 0;
    let mut table = Table::of(["metric", "", ">A", ">B", ">change (95 %)", "verdict"]);
    for figure in effect.figures {
        let [before, after] = figure.values.map(significant);
        let published_change = format!("{:+.0} %", 100.0 * figure.change());
        let published = format!("published, {}", figure.unit);
        let name = Role::Subject.text(name(figure));
        table.row(cells![name, published, before, after, published_change, ""]);
        for row in rows_of(figure, comparison) {
            let compared = &row.compared;
            table.row(cells![
                "",
                measured(row, effect, comparison),
                significant(compared.a.median),
                significant(compared.b.median),
                change(compared),
                compare::verdict(compared),
            ]);
            shown += 1;
        }
    }
    (table, shown)
}

/// The metric, and the cell of the published row.
fn name(figure: &PublishedChange) -> String {
    let levels = figure.cell.iter();
    let levels = levels.map(|(factor, level)| format!(", {factor} {level}"));
    format!("{}{}", figure.metric, levels.collect::<String>())
}

/// `measured, us`; with the level that is compared where there are several.
fn measured(row: &Row, effect: &Effect, comparison: &Comparison) -> String {
    let metric = comparison.metrics.iter().find(|it| it.name == row.metric);
    let unit = metric.map_or("", |metric| metric.unit.as_str());
    let level = match comparison.sides.len() {
        ..=2 => String::new(),
        _ => format!(" ({} {})", effect.factor, level_of(effect, &row.side)),
    };
    match unit {
        "" => format!("measured{level}"),
        unit => format!("measured, {unit}{level}"),
    }
}

/// The level of a side that is called `run 3 FACTOR=LEVEL`.
fn level_of<'a>(effect: &Effect, side: &'a str) -> &'a str {
    let named = format!("{}=", effect.factor);
    side.split_once(&named).map_or(side, |(_, level)| level)
}

fn rows_of<'a>(
    figure: &'a PublishedChange,
    comparison: &'a Comparison,
) -> impl Iterator<Item = &'a Row> {
    let is_level = |row: &Row, (factor, level): &(&str, &str)| {
        let found = row.cell.level(factor);
        found.is_some_and(|it| it.to_string() == *level)
    };
    comparison.rows.iter().filter(move |row| {
        row.metric == figure.metric && figure.cell.iter().all(|it| is_level(row, it))
    })
}

/// The case, for programs.
#[derive(Serialize)]
pub struct Described {
    number: u8,
    title: &'static str,
    source: &'static str,
    question: &'static str,
    experiment: &'static str,
    /// Of each cell, in the lab.
    samples: u32,
    /// In the lab, on a host with two CPUs.
    minutes: u32,
    /// The same with `--quick`.
    quick_minutes: u32,
    limits: &'static [&'static str],
    page: &'static str,
}

impl From<&Case> for Described {
    fn from(case: &Case) -> Self {
        let &Case {
            number,
            title,
            source,
            question,
            experiment,
            samples,
            minutes,
            ref quick,
            limits,
            page,
            ..
        } = case;
        Self {
            number,
            title,
            source,
            question,
            experiment,
            samples,
            minutes,
            quick_minutes: quick.minutes,
            limits,
            page,
        }
    }
}
