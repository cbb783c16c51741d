//! Runs side by side: a table for each metric, with what may be wrong with the comparison.

use std::collections::BTreeSet;

use nearfar_compare::{Attempts, Comparison, FailedCell, Row, SideSummary};
use nearfar_runs::{Cell, Factor, Metric};
use nearfar_statistics::Interval;
use nearfar_statistics::compare::{Compared, Design, Verdict};

use crate::amount::{count, or};
use crate::compared::{change_of_medians, holds_medians, percent, role, significant, words};
use crate::document::{Align, Document, Head, Table, Text, cells};
use crate::runs::better;
use crate::style::Role;

/// At most so many differences of one side are listed; JSON has all of them.
const MAX_DIFFERENCES: usize = 12;
/// At most so many warnings of runs are listed; JSON has all of them.
const MAX_WARNINGS: usize = 6;
/// Numbers of samples above this are not told apart.
const MAX_NEEDS: usize = 10_000;

/// The comparison for people.
pub fn document(comparison: &Comparison) -> Document {
    let mut document = Document::with_head(Head {
        tool: "nearfar compare".to_owned(),
        title: "compare".to_owned(),
        remark: comparison.experiment.clone().unwrap_or_default(),
        ..Head::default()
    });
    document.table(sides(&comparison.sides));
    run_warnings(&mut document, &comparison.sides);
    emulated(&mut document, &comparison.sides);
    differences(&mut document, comparison);
    warnings(&mut document, comparison);
    document.labelled(Text::new(Role::Heading, "verdicts: "), counts(comparison));
    tables(&mut document, comparison);
    failed(&mut document, comparison);
    one_sided(&mut document, comparison);
    if !comparison.rows.is_empty() {
        document.remark(method(comparison));
    }
    document
}

/// A table for each side and metric.
pub(crate) fn tables(document: &mut Document, comparison: &Comparison) {
    let (baseline, others) = comparison.sides.split_at(1);
    for side in others {
        for metric in &comparison.metrics {
            let of = |row: &&Row| row.side == side.name && row.metric == metric.name;
            let rows: Vec<&Row> = comparison.rows.iter().filter(of).collect();
            if rows.is_empty() {
                continue;
            }
            let (unit, a, b) = (unit(metric), &baseline[0].name, &side.name);
            let names = format!("{unit}, B {b} with A {a}");
            document.heading(metric.name.as_str(), names);
            table_of(document, &rows);
        }
    }
}

/// `s, lower is better`.
fn unit(metric: &Metric) -> String {
    match metric.unit.as_str() {
        "" => better(metric).to_owned(),
        unit => format!("{unit}, {}", better(metric)),
    }
}

fn sides(sides: &[SideSummary]) -> Table {
    let mut table = Table::of(["", "side", "label", ">samples", "kernel"]);
    for (index, side) in sides.iter().enumerate() {
        let label = side.label.as_ref().filter(|label| **label != side.name);
        table.row(cells![
            Role::Subject.text(if index == 0 { "A" } else { "B" }),
            &side.name,
            or(label, ""),
            side.samples,
            or(side.kernel.as_ref(), ""),
        ]);
    }
    table
}

/// The label of the emulated machine, once where all sides have the same.
fn emulated(document: &mut Document, sides: &[SideSummary]) {
    let of = |side: &SideSummary| side.emulation.as_ref().map(ToString::to_string);
    let labels: BTreeSet<Option<String>> = sides.iter().map(of).collect();
    for side in sides {
        let Some(label) = of(side) else {
            continue;
        };
        let name = match labels.len() {
            1 => "emulated: ".to_owned(),
            _ => format!("{} emulated: ", side.name),
        };
        document.labelled(Role::Notice.text(name), Role::Notice.text(label));
        if labels.len() == 1 {
            break;
        }
    }
}

/// What may be wrong with whole runs: with other load meanwhile, a change may be that load's.
fn run_warnings(document: &mut Document, sides: &[SideSummary]) {
    let all: Vec<_> = sides.iter().flat_map(|side| &side.warnings).collect();
    for warning in all.iter().take(MAX_WARNINGS) {
        document.warning(format!("{}: {}", warning.run, warning.warning));
    }
    if let more @ 1.. = all.len().saturating_sub(MAX_WARNINGS) {
        let more = count(more, "more warning");
        document.warning(format!("{more} of runs; --format json has all"));
    }
}

fn differences(document: &mut Document, comparison: &Comparison) {
    let differences = comparison.differences.iter();
    for difference in differences.take(MAX_DIFFERENCES) {
        document.labelled(Role::Warning.text("differs: "), difference);
    }
    if let more @ 1.. = comparison.differences.len().saturating_sub(MAX_DIFFERENCES) {
        let more = format!("{} more; --format json has all", count(more, "difference"));
        document.labelled(Text::new(Role::Warning, "differs: "), more);
    }
    for side in &comparison.sides {
        let kinds: Vec<String> = side.not_checked.iter().map(ToString::to_string).collect();
        if !kinds.is_empty() {
            let reason = format!(
                "{} of {}: a table of samples does not hold them",
                kinds.join(", "),
                side.name
            );
            document.labelled(Text::new(Role::Warning, "not checked: "), reason);
        }
    }
}

fn warnings(document: &mut Document, comparison: &Comparison) {
    for side in &comparison.sides {
        let name = &side.name;
        if side.is_complete == Some(false) {
            document.warning(format!("{name} is not complete"));
        }
        if side.failed > 0 {
            let failed = count(side.failed, "sample");
            document.warning(format!("{name}: {failed} failed"));
        }
        if side.with_warnings > 0 {
            let (number, all) = (side.with_warnings, count(side.samples, "sample"));
            document.warning(format!("{name}: {number} of {all} with warnings"));
        }
    }
    let rows = &comparison.rows;
    if rows.iter().any(is_of_two_runs) {
        document.warning(
            "one run a side: two runs of the same thing differ too, so there is no verdict beyond these two; give several runs a \
             side: A,A,A B,B,B",
        );
    }
    let following = rows.iter();
    let following = following.filter(|row| row.compared.variance_inflation > 1.0);
    if let number @ 1.. = following.count() {
        document.warning(format!(
            "samples follow their predecessors in {number} of {}: intervals and tests there count fewer \
             samples than were taken",
            count(rows.len(), "comparison")
        ));
    }
    if let number @ 1.. = rows.iter().filter(|row| is_of_means_only(row)).count() {
        document.warning(format!(
            "the means differ in {} in which the ranks do not, or by less: a few samples are far from the others",
            count(number, "comparison")
        ));
    }
}

fn is_of_two_runs(row: &Row) -> bool {
    row.compared.verdict == Verdict::OneRunASide
}

/// Whether the means differ by more than chance and the ranks do not, or by something else.
fn is_of_means_only(row: &Row) -> bool {
    let compared = &row.compared;
    let is_apart =
        |(means, ranks): (Interval, Interval)| means.low > ranks.high || means.high < ranks.low;
    let intervals = compared.mean.confidence.zip(compared.shift.confidence);
    let is_judged = compared.verdict != Verdict::OneRunASide;
    is_judged
        && compared.has_other_means()
        && (!compared.is_significant || intervals.is_some_and(is_apart))
}

/// How many cells and metrics have which verdict, after the cells that failed: `2 worse, 34 not significant`.
fn counts(comparison: &Comparison) -> String {
    let rows = &comparison.rows;
    let failed = comparison.failed_cells.iter();
    let failed = failed.filter(|cell| cell.regression.is_some()).count();
    const ORDER: [Verdict; 8] = [
        Verdict::Worse,
        Verdict::Better,
        Verdict::Different,
        Verdict::Equivalent,
        Verdict::Equal,
        Verdict::NotSignificant,
        Verdict::TooFewSamples,
        Verdict::OneRunASide,
    ];
    let of = |verdict: Verdict| {
        let rows = rows.iter().filter(|it| it.compared.verdict == verdict);
        rows.count()
    };
    let counted = ORDER.into_iter().map(|verdict| (verdict, of(verdict)));
    let counted = counted.filter(|(_, number)| *number > 0);
    let counted = counted.map(|(verdict, number)| format!("{number} {}", words(verdict)));
    let failed = (failed > 0).then(|| format!("{} failed", count(failed, "cell")));
    let all: Vec<String> = failed.into_iter().chain(counted).collect();
    all.join(", ")
}

/// A verdict with a mark where a significant difference is equivalent.
pub(crate) fn verdict(compared: &Compared) -> Text {
    let mark = if is_marked(compared) { " *" } else { "" };
    role(compared.verdict).text(format!("{}{mark}", words(compared.verdict)))
}

fn is_marked(compared: &Compared) -> bool {
    compared.is_significant && compared.verdict == Verdict::Equivalent
}

/// The rows of one metric. A cell is named by the levels that vary; what is the same in all of them stands above.
fn table_of(document: &mut Document, rows: &[&Row]) {
    let cells: Vec<Cell> = rows.iter().map(|row| row.cell.clone()).collect();
    let factors = Factor::of_cells(&cells).into_iter();
    let (varied, constant): (Vec<_>, Vec<_>) = factors.partition(|it| it.levels.len() > 1);
    let constant = constant.iter();
    let constant = constant.map(|it| format!("{}={}", it.name, it.levels[0]));
    let constant: Vec<String> = constant.collect();
    if !constant.is_empty() {
        document.remark(format!("in all cells: {}", constant.join(", ")));
    }
    let name = |cell: &Cell| {
        let levels = varied.iter().map(|it| or(cell.level(&it.name), "-"));
        match varied.is_empty() {
            true => "all".to_owned(),
            false => levels.collect::<Vec<_>>().join(" / "),
        }
    };
    let heads: Vec<&str> = varied.iter().map(|it| it.name.as_str()).collect();
    let change_head = match rows.iter().any(|row| is_of_two_runs(row)) {
        true => "in these two runs (95 %)",
        false => "change (95 %)",
    };
    let mut table = Table::new(&[
        (heads.join(" / ").as_str(), Align::Left),
        ("A", Align::Right),
        ("B", Align::Right),
        (change_head, Align::Right),
        ("verdict", Align::Left),
        ("needs", Align::Right),
    ]);
    for row in rows {
        let compared = &row.compared;
        let samples = compared.samples_needed.map(needs);
        let runs = compared.runs_needed.map(|needed| match needed {
            ..=MAX_NEEDS => count(needed, "run"),
            _ => format!("{} runs", needs(needed)),
        });
        table.row(cells![
            Role::Subject.text(name(&row.cell)),
            significant(compared.a.median),
            significant(compared.b.median),
            change_of_medians(compared),
            verdict(compared),
            Role::Dim.text(or(samples.or(runs), "")),
        ]);
    }
    document.table(table);
}

fn needs(samples: usize) -> String {
    match samples {
        ..=MAX_NEEDS => samples.to_string(),
        _ => format!(">{MAX_NEEDS}"),
    }
}

/// How the figures were made.
pub(crate) fn method(comparison: &Comparison) -> String {
    let has = |of: fn(&Compared) -> bool| comparison.rows.iter().any(|row| of(&row.compared));
    let (test, samples) = match has(|it| it.design == Design::Paired) {
        true => (
            "Wilcoxon's signed ranks over the rounds of both sides",
            "rounds",
        ),
        false => ("Mann and Whitney's rank test", "samples a side"),
    };
    let (runs, samples) = match has(|it| it.a.runs + it.b.runs > 2) {
        true => (", with that of the runs' medians", "runs a side"),
        false => ("", samples),
    };
    let margin = percent(comparison.margin);
    let judged = comparison.rows.iter().filter(|row| !is_of_two_runs(row));
    let mut text = format!("A, B and change: medians; the interval is that of {test}{runs}.");
    match judged.count() {
        0 => text += " It holds within these two runs and says nothing of other ones.",
        judged => {
            let among = match judged {
                1 => "A false alarm has a chance of 5 %".to_owned(),
                _ => format!(
                    "The chance of any false alarm among {judged} comparisons is 5 % (Holm)"
                ),
            };
            text += &format!(" {among}; equivalent: the interval is within {margin}.");
        }
    }
    if has(|it| !holds_medians(it)) {
        text += " ranks: the estimate of the interval, where it does not hold the change of the medians.";
    }
    if has(is_marked) {
        text += " *: significant, but smaller than that.";
    }
    if has(|it| it.samples_needed.or(it.runs_needed).is_some()) {
        text +=
            &format!(" needs: {samples} that find a change of {margin} in 9 of 10 experiments.");
    }
    text
}

/// At most so many cells with failed samples, or that one side lacks, are listed.
const MAX_CELLS: usize = 12;
const ALL_IN_JSON: &str = "; --format json has all";

/// How many samples of which cells failed, side by side.
fn failed(document: &mut Document, comparison: &Comparison) {
    let (baseline, others) = comparison.sides.split_at(1);
    for side in others {
        let cells = comparison.failed_cells.iter();
        let cells: Vec<&FailedCell> = cells.filter(|cell| cell.side == side.name).collect();
        if cells.is_empty() {
            continue;
        }
        let names = format!("B {} with A {}", side.name, baseline[0].name);
        document.heading("failed samples", names);
        let mut table = Table::of(["cell", ">in A", ">in B", "verdict"]);
        for cell in cells.iter().take(MAX_CELLS) {
            let role = cell.regression.map_or(Role::Plain, |_| Role::Far);
            table.row(cells![
                cell_text(&cell.cell),
                of_attempts(cell.a),
                of_attempts(cell.b),
                role.text(of_failed(cell)),
            ]);
        }
        document.table(table);
        document.more(cells.len(), MAX_CELLS, ALL_IN_JSON);
    }
}

/// `8 of 10`.
fn of_attempts(attempts: Attempts) -> String {
    format!("{} of {}", attempts.failed, attempts.total())
}

fn of_failed(cell: &FailedCell) -> String {
    let unusable = match (cell.a.samples, cell.b.samples) {
        (0, 0) => "no usable samples",
        (0, _) => "no usable samples in A",
        (_, 0) => "no usable samples in B",
        _ => "",
    };
    let verdict = cell.regression.map_or("", |_| "failed");
    let mut parts = vec![verdict, unusable];
    parts.retain(|it| !it.is_empty());
    parts.join(": ")
}

fn cell_text(cell: &Cell) -> String {
    match cell.to_string() {
        text if text.is_empty() => "all".to_owned(),
        text => text,
    }
}

fn one_sided(document: &mut Document, comparison: &Comparison) {
    let alone = &comparison.one_sided;
    if alone.is_empty() {
        return;
    }
    document.heading("on one side only", count(alone.len(), "cell"));
    let mut table = Table::of(["only in", "cell", "metrics"]);
    for it in alone.iter().take(MAX_CELLS) {
        let metrics = it.metrics.join(", ");
        table.row(cells![&it.only_in, cell_text(&it.cell), metrics]);
    }
    document.table(table);
    document.more(alone.len(), MAX_CELLS, ALL_IN_JSON);
}
