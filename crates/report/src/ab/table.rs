//! The comparison for people.

use serde_json::Value as Json;

use super::significance::Verdict;
use super::values::{Change, Value, range};
use super::{Comparison, Line, LineDiff, Side};
use crate::document::{Align, Document, Table, Text};
use crate::style::Role;
use crate::wrapping::cut;

/// Longest title, in columns.
const MAX_TITLE_COLUMNS: usize = 96;

/// Both sides, their run times, and what differs in their answers.
pub fn document(comparison: &Comparison) -> Document {
    let mut out = Document::new();
    out.heading(title(&comparison.command), "");
    sides(comparison, &mut out);
    times(&comparison.elapsed, &mut out);
    match &comparison.lines {
        Some(lines) => lines_of(lines, comparison, &mut out),
        None => values(comparison, &mut out),
    }
    runs_needed(comparison, &mut out);
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        failures(name, side, &mut out);
    }
    for (name, label) in labels(comparison) {
        let name = Text::new(Role::Notice, format!("{name}: "));
        out.indented(0, name, Text::new(Role::Notice, label));
    }
    out
}

/// The command on one line: a script's line breaks become spaces, and what is too long for a title is cut.
fn title(command: &[String]) -> String {
    let line = command.join(" ");
    let line: Vec<&str> = line.split_whitespace().collect();
    cut(&line.join(" "), MAX_TITLE_COLUMNS)
}

/// The label of the emulated machine, once where both sides have the same.
fn labels(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let label = |side: &Side| side.emulation.as_ref().map(ToString::to_string);
    match (label(&comparison.a), label(&comparison.b)) {
        (Some(a), Some(b)) if a == b => vec![("emulated", a)],
        (a, b) => a
            .map(|label| ("A emulated", label))
            .into_iter()
            .chain(b.map(|label| ("B emulated", label)))
            .collect(),
    }
}

fn sides(comparison: &Comparison, out: &mut Document) {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("side", Align::Left),
        ("runs", Align::Right),
        ("exit", Align::Left),
    ])
    .caption("Sides");
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let mut codes: Vec<i32> = side.runs.iter().map(|run| run.exit_code).collect();
        codes.sort_unstable();
        codes.dedup();
        let role = if codes == [0] {
            Role::Plain
        } else {
            Role::Warning
        };
        let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
        table.row(vec![
            Text::new(Role::Subject, name),
            side.name().into(),
            side.runs.len().to_string().into(),
            Text::new(role, codes.join(", ")),
        ]);
    }
    out.table(table);
}

fn times(elapsed: &Value, out: &mut Document) {
    let Some(change) = &elapsed.change else {
        return;
    };
    let text = format!(
        "A {:.2} s, B {:.2} s{} (medians, boot not counted)",
        change.a_median,
        change.b_median,
        ratio_text(change)
    );
    out.labelled(Text::new(Role::Dim, "time: "), text);
}

fn ratio_text(change: &Change) -> String {
    change
        .ratio
        .map(|ratio| format!("; B/A {ratio:.2}, {}", words(change.verdict)))
        .unwrap_or_default()
}

/// A verdict in words.
fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equal => "equal",
        Verdict::Significant => "significant difference",
        Verdict::NotSignificant => "no significant difference",
        Verdict::TooFewRuns => "too few runs to tell",
    }
}

fn values(comparison: &Comparison, out: &mut Document) {
    let remark = match comparison.equal_values {
        0 => String::new(),
        1 => "1 value is equal".to_owned(),
        equal => format!("{equal} values are equal"),
    };
    let title = match comparison.values.is_empty() {
        true => "no value differs",
        false => "values",
    };
    out.heading(title, remark);
    let mut table = Table::new(&[
        ("value", Align::Left),
        ("A", Align::Right),
        ("B", Align::Right),
        ("B/A", Align::Right),
        ("", Align::Left),
    ])
    .caption("Values");
    comparison
        .values
        .iter()
        .for_each(|value| table.row(value_row(value)));
    out.table(table);
}

fn value_row(value: &Value) -> Vec<Text> {
    let role = if value.differs() {
        Role::Middling
    } else {
        Role::Plain
    };
    let differs = value
        .change
        .as_ref()
        .filter(|change| change.verdict != Verdict::Equal);
    let ratio = differs.and_then(|change| Some(format!("{:.3}", change.ratio?)));
    vec![
        Text::new(Role::Subject, &value.path),
        Text::new(role, shown(&value.a)),
        Text::new(role, shown(&value.b)),
        ratio.unwrap_or_default().into(),
        Text::new(
            Role::Dim,
            differs.map_or("", |change| words(change.verdict)),
        ),
    ]
}

/// The values of a side's runs: one where all agree, a median with its range for numbers, otherwise each once.
fn shown(runs: &[Json]) -> String {
    let text = |value: &Json| match value {
        Json::String(text) => text.clone(),
        Json::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let numbers: Option<Vec<f64>> = runs.iter().map(Json::as_f64).collect();
    let mut distinct: Vec<String> = runs.iter().map(text).collect();
    distinct.dedup();
    match (
        distinct.as_slice(),
        numbers.as_deref().and_then(nearfar_statistics::Summary::of),
    ) {
        ([one], _) => one.clone(),
        (_, Some(summary)) => {
            let (least, most) = range(&numbers.unwrap_or_default());
            format!(
                "{} ({} to {})",
                number(summary.median),
                number(least),
                number(most)
            )
        }
        _ => distinct.join(", "),
    }
}

/// A number with the digits that mean something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn lines_of(diff: &LineDiff, comparison: &Comparison, out: &mut Document) {
    let is_equal = diff.lines.len() == diff.equal();
    match is_equal {
        true => out.heading("the answers are equal", ""),
        false => {
            let names = format!("A: {}, B: {}", comparison.a.name(), comparison.b.name());
            out.heading("answers", names);
        }
    }
    for line in &diff.lines {
        let (mark, role, text) = match line {
            Line::Both(text) if is_equal => ("", Role::Plain, text),
            Line::Both(text) => ("   ", Role::Dim, text),
            Line::A(text) => ("A  ", Role::Far, text),
            Line::B(text) => ("B  ", Role::Local, text),
        };
        out.labelled(Text::new(role, mark), Text::new(role, text));
    }
    for (name, count) in [("A", diff.a_unstable), ("B", diff.b_unstable)] {
        if count > 0 {
            let text =
                format!("{count} of {name}'s lines above are not the same in each of its runs");
            out.labelled(Text::new(Role::Warning, "varies: "), text);
        }
    }
}

/// How many runs it takes, where there are too few.
fn runs_needed(comparison: &Comparison, out: &mut Document) {
    let verdicts = comparison
        .values
        .iter()
        .chain([&comparison.elapsed])
        .filter_map(|value| value.change);
    if !verdicts
        .into_iter()
        .any(|change| change.verdict == Verdict::TooFewRuns)
    {
        return;
    }
    let numbers = crate::amount::count(comparison.compared_numbers, "number");
    let text = format!(
        "{numbers} compared: a significant difference takes --runs {} or more",
        comparison.runs_needed
    );
    out.labelled(Text::new(Role::Dim, "runs: "), Text::new(Role::Dim, text));
}

/// What a failed run said.
fn failures(name: &str, side: &Side, out: &mut Document) {
    let Some(failed) = side.runs.iter().find(|run| run.exit_code != 0) else {
        return;
    };
    let last = failed
        .stderr
        .lines()
        .last()
        .unwrap_or("it printed no error");
    let label = format!("{name} ended with {}: ", failed.exit_code);
    out.labelled(Text::new(Role::Warning, label), last);
}
