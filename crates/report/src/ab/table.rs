//! The comparison for people.

use serde_json::Value as Json;

use super::significance::Verdict;
use super::values::{Change, Value, range};
use super::{Comparison, Line, LineDiff, Side};
use crate::layout::{Cell, Grid, Side as Align, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Both sides, their run times, and what differs in their answers.
pub fn table(comparison: &Comparison, style: &Style) -> String {
    let mut out = heading(style, &title(&comparison.command, style), "");
    out.push_str(&sides(comparison, style));
    out.push_str(&times(&comparison.elapsed, style));
    match &comparison.lines {
        Some(lines) => out.push_str(&lines_table(lines, comparison, style)),
        None => out.push_str(&values_table(comparison, style)),
    }
    out.push_str(&runs_needed(comparison, style));
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        out.push_str(&failures(name, side, style));
    }
    for (name, label) in labels(comparison) {
        out.push_str(&paragraph(
            style,
            0,
            (Role::Notice, &format!("{name}: ")),
            Role::Notice,
            &label,
        ));
    }
    whole(out)
}

/// The command on one line: a script's line breaks become spaces, and what is too long for a title is cut.
fn title(command: &[String], style: &Style) -> String {
    let line = command
        .join(" ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    match line.char_indices().nth(style.columns().saturating_sub(4)) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
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

fn sides(comparison: &Comparison, style: &Style) -> String {
    let mut grid = Grid::new(&[
        ("", Align::Left),
        ("side", Align::Left),
        ("runs", Align::Right),
        ("exit", Align::Left),
    ]);
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
        grid.row(vec![
            Cell::new(Role::Subject, name),
            side.name().into(),
            side.runs.len().to_string().into(),
            Cell::new(role, codes.join(", ")),
        ]);
    }
    grid.render(style)
}

fn times(elapsed: &Value, style: &Style) -> String {
    let Some(change) = &elapsed.change else {
        return String::new();
    };
    let text = format!(
        "A {:.2} s, B {:.2} s{} (medians, boot not counted)",
        change.a_median,
        change.b_median,
        ratio_text(change)
    );
    paragraph(style, 2, (Role::Dim, "time: "), Role::Plain, &text)
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

fn values_table(comparison: &Comparison, style: &Style) -> String {
    let remark = match comparison.equal_values {
        0 => String::new(),
        1 => "1 value is equal".to_owned(),
        equal => format!("{equal} values are equal"),
    };
    if comparison.values.is_empty() {
        return heading(style, "no value differs", &remark);
    }
    let mut out = heading(style, "values", &remark);
    let mut grid = Grid::new(&[
        ("value", Align::Left),
        ("A", Align::Right),
        ("B", Align::Right),
        ("B/A", Align::Right),
        ("", Align::Left),
    ]);
    for value in &comparison.values {
        let role = if value.differs() {
            Role::Middling
        } else {
            Role::Plain
        };
        let (ratio, verdict) = match &value.change {
            Some(change) if change.verdict != Verdict::Equal => (
                change
                    .ratio
                    .map(|ratio| format!("{ratio:.3}"))
                    .unwrap_or_default(),
                words(change.verdict),
            ),
            _ => (String::new(), ""),
        };
        grid.row(vec![
            Cell::new(Role::Subject, &value.path),
            Cell::new(role, shown(&value.a)),
            Cell::new(role, shown(&value.b)),
            ratio.into(),
            Cell::new(Role::Dim, verdict),
        ]);
    }
    out.push_str(&grid.render(style));
    out
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

fn lines_table(diff: &LineDiff, comparison: &Comparison, style: &Style) -> String {
    let different = diff.lines.len() - diff.equal();
    if different == 0 {
        let mut out = heading(style, "the answers are equal", "");
        for line in &diff.lines {
            if let Line::Both(text) = line {
                out.push_str(&paragraph(style, 2, (Role::Plain, ""), Role::Plain, text));
            }
        }
        return out + &unstable(diff, style);
    }
    let mut out = heading(
        style,
        "answers",
        &format!("A: {}, B: {}", comparison.a.name(), comparison.b.name()),
    );
    for line in &diff.lines {
        let (mark, role, text) = match line {
            Line::Both(text) => ("   ", Role::Dim, text),
            Line::A(text) => ("A  ", Role::Far, text),
            Line::B(text) => ("B  ", Role::Local, text),
        };
        out.push_str(&paragraph(style, 2, (role, mark), role, text));
    }
    out + &unstable(diff, style)
}

fn unstable(diff: &LineDiff, style: &Style) -> String {
    let mut out = String::new();
    for (name, count) in [("A", diff.a_unstable), ("B", diff.b_unstable)] {
        if count > 0 {
            let text =
                format!("{count} of {name}'s lines above are not the same in each of its runs");
            out.push_str(&paragraph(
                style,
                2,
                (Role::Warning, "varies: "),
                Role::Plain,
                &text,
            ));
        }
    }
    out
}

/// How many runs it takes, where there are too few.
fn runs_needed(comparison: &Comparison, style: &Style) -> String {
    let verdicts = comparison
        .values
        .iter()
        .chain([&comparison.elapsed])
        .filter_map(|value| value.change);
    if !verdicts
        .into_iter()
        .any(|change| change.verdict == Verdict::TooFewRuns)
    {
        return String::new();
    }
    let numbers = crate::amount::count(comparison.compared_numbers, "number");
    let text = format!(
        "{numbers} compared: a significant difference takes --runs {} or more",
        comparison.runs_needed
    );
    paragraph(style, 2, (Role::Dim, "runs: "), Role::Dim, &text)
}

/// What a failed run said.
fn failures(name: &str, side: &Side, style: &Style) -> String {
    let Some(failed) = side.runs.iter().find(|run| run.exit_code != 0) else {
        return String::new();
    };
    let last = failed
        .stderr
        .lines()
        .last()
        .unwrap_or("it printed no error");
    let first = format!("{name} ended with {}: ", failed.exit_code);
    paragraph(style, 2, (Role::Warning, &first), Role::Plain, last)
}
