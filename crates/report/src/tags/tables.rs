//! The tables: a row a cell, medians.

use nearfar_bench::tags::findings::PUBLISHED_ORDER;
use nearfar_bench::tags::{Findings, OPERATIONS, POLICY};
use nearfar_runs::{Cell, CellSummary, Metric};

use crate::amount::{figure, or};
use crate::compare::figures::marked;
use crate::document::{Align, Table, Text};
use crate::runs::{Shown, Written};
use crate::style::Role;

/// What the table of times is.
pub(super) const TIMES: &str = "medians; interval: 95 %, of the median of operations/s; hand-over: from a put until the waiter \
                                has the tag, median/99th percentile";
/// What the table of steals is.
pub(super) const STEALS: &str = "medians of samples, by what both CPUs share";

/// The metrics of steals, nearest first.
pub(super) const CLASSES: [(&str, &str); 5] = [
    ("steals_core", "core"),
    ("steals_core_group", "core group"),
    ("steals_llc", "cache"),
    ("steals_node", "node"),
    ("steals_remote", "remote"),
];

/// A declared metric; `None` for a run without it.
pub(super) fn metric<'a>(shown: &Shown<'a>, name: &str) -> Option<&'a Metric> {
    shown.detail.metrics.iter().find(|it| it.name == name)
}

/// The scenario of a cell.
pub(super) fn scenario(findings: &Findings, cell: &Cell) -> String {
    let levels = cell.only(|factor| factor != POLICY);
    let mut all = findings.scenarios.iter();
    let found = all.find(|it| it.levels == levels);
    or(found.map(|it| &it.name), "?")
}

/// A metric's column: its heading, and its figure in a cell.
type Column<'a> = (String, Box<dyn Fn(&CellSummary) -> Text + 'a>);

/// Medians of a metric, below its unit.
fn medians<'a>(shown: &Shown<'a>, name: &'a str, head: &str) -> Option<Column<'a>> {
    let written = Written::of(shown, metric(shown, name)?);
    let head = match written.unit {
        "" => head.to_owned(),
        unit => format!("{head} {unit}"),
    };
    let text = move |cell: &CellSummary| {
        let median = cell.metric(name).and_then(|figures| figures.median);
        or(median.map(|it| written.text(it)), "").into()
    };
    Some((head, Box::new(text)))
}

/// Medians of a count.
fn counts<'a>(shown: &Shown<'a>, name: &'a str, head: &str) -> Option<Column<'a>> {
    metric(shown, name)?;
    let text = move |cell: &CellSummary| {
        let median = cell.metric(name).and_then(|figures| figures.median);
        or(median.map(|it| figure(it.round(), 0)), "").into()
    };
    Some((head.to_owned(), Box::new(text)))
}

/// The interval of a metric's median.
fn intervals<'a>(shown: &Shown<'a>, name: &'a str) -> Option<Column<'a>> {
    let written = Written::of(shown, metric(shown, name)?);
    let text = move |cell: &CellSummary| {
        let interval = cell.metric(name).and_then(|figures| figures.confidence);
        or(interval.map(|it| written.interval(it.low, it.high)), "").into()
    };
    Some(("interval".to_owned(), Box::new(text)))
}

/// Median and 99th percentile over all samples, in microseconds.
fn hand_over<'a>(shown: &Shown<'a>) -> Option<Column<'a>> {
    const NAME: &str = "hand_over_ns";
    metric(shown, NAME)?;
    let text = move |cell: &CellSummary| {
        let quantiles = cell.metric(NAME).and_then(|figures| figures.quantiles);
        let us = |ns: u64| figure(ns as f64 / 1e3, 0);
        let both = quantiles.map(|it| format!("{}/{}", us(it.p50), us(it.p99)));
        or(both, "").into()
    };
    Some(("hand-over us".to_owned(), Box::new(text)))
}

fn table(shown: &Shown<'_>, findings: &Findings, columns: Vec<Column<'_>>, caption: &str) -> Table {
    let names = [("scenario", Align::Left), ("policy", Align::Left)];
    let heads = columns.iter();
    let heads = heads.map(|(head, _)| (head.as_str(), Align::Right));
    let heads: Vec<_> = names.into_iter().chain(heads).collect();
    let mut table = Table::new(&heads).caption(caption);
    for cell in shown.cells {
        let names = [
            Role::Heading.text(scenario(findings, &cell.cell)),
            Role::Subject.text(cell.cell.text(POLICY)),
        ];
        let figures = columns.iter().map(|(_, text)| text(cell));
        table.row(names.into_iter().chain(figures));
    }
    table
}

/// Where the time goes.
pub(super) fn times(shown: &Shown<'_>, findings: &Findings) -> Table {
    let columns = [
        intervals(shown, OPERATIONS),
        medians(shown, "user_s", "user"),
        medians(shown, "system_s", "system"),
        medians(shown, "wait_share", "waiting"),
        hand_over(shown),
        medians(shown, "fairness", "fairness"),
    ];
    let columns = columns.into_iter().flatten().collect();
    table(shown, findings, columns, "Where the time goes")
}

/// Whose tags were taken.
pub(super) fn steals(shown: &Shown<'_>, findings: &Findings) -> Table {
    let classes = CLASSES.map(|(name, title)| counts(shown, name, title));
    let others = [
        medians(shown, "steal_distance", "distance"),
        medians(shown, "tags_per_steal", "tags each"),
        counts(shown, "line_transfers", "line transfers"),
    ];
    let columns = classes.into_iter().chain(others).flatten().collect();
    table(shown, findings, columns, "Steals")
}

/// What the table of other policies is.
pub(super) const OTHERS: &str =
    "change of operations/s with its 95 % interval; *: significant; =: equivalent";

/// The other policies against each of the published three.
pub(super) fn others(findings: &Findings) -> Table {
    let names = [("scenario", Align::Left), ("policy", Align::Left)];
    let heads = PUBLISHED_ORDER.map(|policy| (policy, Align::Right));
    let heads: Vec<_> = names.into_iter().chain(heads).collect();
    let mut table = Table::new(&heads).caption("Other policies against the published ones");
    for other in &findings.others {
        let against = |policy: &str| {
            let mut steps = other.steps.iter();
            let step = steps.find(|step| step.a.text(POLICY) == policy);
            step.map_or_else(Text::default, marked)
        };
        let names = [
            Role::Heading.text(&other.scenario),
            Role::Subject.text(&other.policy),
        ];
        table.row(names.into_iter().chain(PUBLISHED_ORDER.map(against)));
    }
    table
}
