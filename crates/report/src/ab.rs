//! The same command under A and under B, side by side.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_compare::answers::{
    AnswerComparison, AnswerLine, AnswerValue, CommandSide, KernelChange, KernelComparison,
    LineDiff, NumberChange,
};
use nearfar_compare::{Comparison, Row};
use nearfar_lab::repeat;
use nearfar_statistics::compare::Verdict;
use serde::Deserialize;
use serde_json::Value;

use crate::amount::{count, first_of, or};
use crate::command::UNTIL_CLEAR;
use crate::compare::verdict;
use crate::compared::{change_of_medians, significant, words};
use crate::document::{Document, Table, Text, cells, cut};
use crate::runs::Shown;
use crate::style::Role;

/// The experiment's name in the store.
pub const EXPERIMENT: &str = "ab";
/// Longest title, in columns.
const MAX_TITLE_COLUMNS: usize = 96;

/// Both sides, their run times, and what differs in their answers.
pub fn document(comparison: &AnswerComparison) -> Document {
    let mut out = Document::titled(title(&comparison.command), "");
    sides(comparison, &mut out);
    times(&comparison.elapsed, &mut out);
    match &comparison.lines {
        Some(lines) => lines_of(lines, comparison, &mut out),
        None => values(comparison, &mut out),
    }
    runs_needed(comparison, &mut out);
    let mut runs = comparison.a.runs.iter().chain(&comparison.b.runs);
    match &comparison.kernel {
        Some(kernel) => {
            changes(kernel, &mut out);
            likely_cause(kernel, &mut out);
        }
        None if runs.any(|run| run.kernel.is_some()) => {
            let text = "not compared: some runs could not be traced";
            out.labelled(Role::Warning.text("kernel: "), text);
        }
        None => {}
    }
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        failures(name, side, &mut out);
    }
    for (name, label) in labels(comparison) {
        let name = Role::Notice.text(format!("{name}: "));
        out.indented(0, name, Role::Notice.text(label));
    }
    out
}

/// The parameters of a stored comparison.
#[derive(Deserialize)]
struct Parameters {
    command: Vec<String>,
    a: SideParameters,
    b: SideParameters,
    #[serde(default)]
    value: Vec<String>,
    #[serde(default)]
    trace: bool,
}

#[derive(Deserialize)]
struct SideParameters {
    settings: BTreeMap<String, String>,
}

impl SideParameters {
    /// `KEY=VALUE` of each setting.
    fn words(&self) -> Vec<String> {
        let word = |(key, value): (&String, &String)| format!("{key}={value}");
        self.settings.iter().map(word).collect()
    }
}

/// The numbers of a cover letter that each sentence names at most; the table has all.
const MAX_NAMED: usize = 5;

/// The cover letter of a stored comparison: what was asked and the answer in sentences, and the tables that these are taken from, worse
/// numbers first, then what the kernels did.
pub fn letter(
    parameters: &Value,
    comparison: &Comparison,
    kernel: Option<&KernelComparison>,
) -> [Document; 2] {
    let mut before = Document::new();
    if let Ok(it) = Parameters::deserialize(parameters) {
        before = Document::titled(title(&it.command), "B against A");
        for (name, side) in [("A", &it.a), ("B", &it.b)] {
            before.labelled(
                Role::Subject.text(format!("{name}: ")),
                side.words().join(", "),
            );
        }
    }
    let rows = comparison.rows.iter();
    let (equal, mut rows): (Vec<_>, Vec<_>) =
        rows.partition(|row| row.compared.verdict == Verdict::Equal);
    let equal = Vec::from_iter(equal.iter().map(|row| &row.metric));
    let size = |row: &Row| {
        row.compared
            .change
            .map_or(f64::INFINITY, |it| it.value.abs())
    };
    rows.sort_by(|a, b| {
        let verdicts = order(a.compared.verdict).cmp(&order(b.compared.verdict));
        verdicts.then(size(b).total_cmp(&size(a)))
    });
    for (label, verdicts) in [
        ("worse", &[Verdict::Worse][..]),
        ("better", &[Verdict::Better]),
        ("different", &[Verdict::Different]),
        ("equivalent", &[Verdict::Equivalent]),
        (
            "not clear",
            &[
                Verdict::NotSignificant,
                Verdict::TooFewSamples,
                Verdict::OneRunASide,
            ],
        ),
    ] {
        let found = rows.iter().copied();
        let found = Vec::from_iter(found.filter(|row| verdicts.contains(&row.compared.verdict)));
        if !found.is_empty() {
            before.labelled(Role::Subject.text(format!("{label}: ")), named(&found));
        }
    }
    if rows.is_empty() {
        before.paragraph("No number differs.");
    }
    if let Some(kernel) = kernel {
        likely_cause(kernel, &mut before);
    }
    before.heading("Machine and method", "");
    let mut out = Document::titled("B against A", "medians; worse ones first");
    let has_needs = rows.iter().any(|row| row.compared.samples_needed.is_some());
    let mut table = Table::of([
        "metric",
        ">A",
        ">B",
        ">change (95 %)",
        "verdict",
        if has_needs { ">needs" } else { "" },
    ]);
    for row in rows {
        let compared = &row.compared;
        table.row(cells![
            with_unit(row, comparison),
            significant(compared.a.median),
            significant(compared.b.median),
            change_of_medians(compared),
            verdict(compared),
            or(compared.samples_needed, ""),
        ]);
    }
    out.table(table);
    if !equal.is_empty() {
        let names = first_of(&equal, MAX_NAMED);
        out.paragraph(format!("Equal in all runs: {names}."));
    }
    out.paragraph(
        "Each run starts its guest, in the order A B B A: a drift of the host affects both sides.",
    );
    out.paragraph(crate::compare::method(comparison));
    if let Some(kernel) = kernel {
        changes(kernel, &mut out);
    }
    [before, out]
}

/// The numbers of what the kernels did that are shown; JSON has all.
const MAX_CHANGES: usize = 12;

/// What changed of what the kernels did.
fn changes(kernel: &KernelComparison, out: &mut Document) {
    let clear = kernel.changes.iter().filter(|it| it.is_clear()).count();
    let numbers = count(kernel.compared_numbers, "number");
    out.heading("kernel", format!("{clear} of {numbers} changed clearly"));
    for (kind, reason) in &kernel.unknown_reasons {
        let text = format!("unknown: {reason}");
        out.labelled(Role::Dim.text(format!("{}: ", kind.name())), text);
    }
    let mut table = Table::of(["", "what", ">A", ">B", ">B/A", ""]);
    for it in kernel.changes.iter().take(MAX_CHANGES) {
        let Some(change) = &it.value.change else {
            continue;
        };
        let ([a, b], unit) = amounts(it, change);
        let ratio = change.ratio.map(|ratio| format!("{ratio:.3}"));
        let comma = if unit.is_empty() { "" } else { "," };
        table.row(cells![
            format!("{}{comma}{unit}", it.kind.name()),
            it.value.path.clone(),
            a,
            b,
            or(ratio, ""),
            match it.is_clear() {
                true => Text::default(),
                false => verdict(&change.compared),
            },
        ]);
    }
    out.table(table);
    out.more(kernel.changes.len(), MAX_CHANGES, ", see JSON");
    let rounds = kernel.changes.iter().map(|it| it.value.a.len()).max();
    if rounds.is_some_and(|rounds| rounds < kernel.runs_needed) {
        let runs = kernel.runs_needed;
        let text =
            format!("{numbers} compared: a significant change takes {runs} runs of each side");
        out.labelled(Role::Dim.text("runs: "), Role::Dim.text(text));
    }
}

/// The medians of both sides, and their unit after a space.
fn amounts(it: &KernelChange, change: &NumberChange) -> ([String; 2], &'static str) {
    let (unit, scale) = match it.is_time {
        true => (" ms", 1e3),
        false => ("", 1.0),
    };
    let medians = [change.a_median, change.b_median];
    (medians.map(|it| significant(scale * it)), unit)
}

fn likely_cause(kernel: &KernelComparison, out: &mut Document) {
    let Some((it, change)) = kernel
        .likely_cause
        .as_ref()
        .and_then(|it| Some((it, it.value.change.as_ref()?)))
    else {
        return;
    };
    let (kind, name) = (it.kind.name(), &it.value.path);
    let ([a, b], unit) = amounts(it, change);
    let why = match (it.is_time, change.b_median > change.a_median) {
        (true, true) => "the wait that grew most",
        (true, false) => "the wait that shrank most",
        (false, _) => "of what is counted, what changed by the largest factor",
    };
    let text = format!("{kind}, {name}: {a} to {b}{unit} a run, {why}");
    out.labelled(Role::Subject.text("likely cause: "), text);
}

fn order(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Worse => 0,
        Verdict::Better => 1,
        Verdict::Different => 2,
        Verdict::NotSignificant | Verdict::TooFewSamples | Verdict::OneRunASide => 3,
        Verdict::Equivalent | Verdict::Equal => 4,
    }
}

/// `ops_per_s -30 % (-30 to -29), latency_ns +3 % (+1 to +5) and 2 more`; of what is not clear, how many runs would tell.
fn named(rows: &[&Row]) -> String {
    let of = |row: &&Row| {
        let needs = row.compared.samples_needed;
        let needs = needs.map(|runs| format!(" (needs {runs} runs of each side)"));
        let change = change_of_medians(&row.compared);
        format!("{} {change}{}", row.metric, or(needs, ""))
    };
    first_of(&Vec::from_iter(rows.iter().map(of)), MAX_NAMED)
}

fn with_unit(row: &Row, comparison: &Comparison) -> String {
    let metric = comparison.metrics.iter().find(|it| it.name == row.metric);
    match metric.map_or("", |it| it.unit.as_str()) {
        "" => row.metric.clone(),
        unit => format!("{}, {unit}", row.metric),
    }
}

/// The command that makes a stored comparison again; `None` for another experiment.
pub(crate) fn command(shown: &Shown<'_>) -> Option<Vec<String>> {
    let (run, detail) = (shown.run, shown.detail);
    if run.experiment != EXPERIMENT {
        return None;
    }
    let it = Parameters::deserialize(&detail.parameters).ok()?;
    let mut words = Vec::from(["nearfar", "ab"].map(str::to_owned));
    for (option, side) in [("--a", &it.a), ("--b", &it.b)] {
        words.extend(
            side.words()
                .into_iter()
                .map(|word| format!("{option}={word}")),
        );
    }
    // What both guests have, and no side sets.
    let guests = detail
        .targets
        .iter()
        .filter_map(|it| it.emulation.as_ref()?.guest());
    let mut guests = guests.map(repeat::options);
    let (first, second) = (guests.next()?, guests.next()?);
    let is_common = |option: &&(&str, String)| {
        let is_set = |side: &SideParameters| side.settings.contains_key(option.0);
        second.contains(option) && !is_set(&it.a) && !is_set(&it.b)
    };
    let common = first.iter().filter(is_common);
    words.extend(common.map(|(key, value)| format!("--{key}={value}")));
    let is_time_set = it.a.settings.contains_key("time") || it.b.settings.contains_key("time");
    if !is_time_set && !first.iter().any(|(key, _)| *key == "time") {
        words.push("--time=host".to_owned());
    }
    words.push(format!("--runs={}", run.samples_per_cell));
    words.extend(detail.is_until_clear().then(|| "--until-clear".to_owned()));
    words.extend(it.trace.then(|| "--trace".to_owned()));
    words.extend(it.value.iter().map(|path| format!("--value={path}")));
    words.push("--".to_owned());
    words.extend(it.command);
    Some(words)
}

/// The command on one line: a script's line breaks become spaces, and what is too long for a title is cut.
fn title(command: &[String]) -> String {
    let line = command.join(" ");
    let line: Vec<&str> = line.split_whitespace().collect();
    cut(&line.join(" "), MAX_TITLE_COLUMNS)
}

/// The label of the emulated machine, once where both sides have the same.
fn labels(comparison: &AnswerComparison) -> Vec<(&'static str, String)> {
    let label = |side: &CommandSide| side.emulation.as_ref().map(ToString::to_string);
    match (label(&comparison.a), label(&comparison.b)) {
        (Some(a), Some(b)) if a == b => vec![("emulated", a)],
        (a, b) => {
            let a = a.map(|label| ("A emulated", label));
            let b = b.map(|label| ("B emulated", label));
            a.into_iter().chain(b).collect()
        }
    }
}

fn sides(comparison: &AnswerComparison, out: &mut Document) {
    let mut table = Table::of(["", "side", ">runs", "exit"]).caption("Sides");
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let codes: BTreeSet<i32> = side.runs.iter().map(|run| run.exit_code).collect();
        let has_failed = codes.iter().any(|code| *code != 0);
        let role = match has_failed {
            true => Role::Warning,
            false => Role::Plain,
        };
        let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
        let (name, codes) = (Role::Subject.text(name), role.text(codes.join(", ")));
        table.row(cells![name, side.name(), side.runs.len(), codes]);
    }
    out.table(table);
}

fn times(elapsed: &AnswerValue, out: &mut Document) {
    let Some(change) = &elapsed.change else {
        return;
    };
    let verdict = words(change.compared.verdict);
    let ratio = change.ratio;
    let ratio = ratio.map(|ratio| format!("; B/A {ratio:.2}, {verdict}"));
    let ratio = or(ratio, "");
    let (a, b) = (change.a_median, change.b_median);
    let text = format!("A {a:.2} s, B {b:.2} s{ratio} (medians, boot not counted)");
    out.labelled(Role::Dim.text("time: "), text);
}

fn values(comparison: &AnswerComparison, out: &mut Document) {
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
    let mut table = Table::of(["value", ">A", ">B", ">B/A", ""]).caption("Values");
    for value in &comparison.values {
        table.row(value_row(value));
    }
    out.table(table);
}

fn value_row(value: &AnswerValue) -> [Text; 5] {
    let role = match value.differs() {
        true => Role::Middling,
        false => Role::Plain,
    };
    let change = value.change.as_ref();
    let differs = change.filter(|change| change.compared.verdict != Verdict::Equal);
    let ratio = differs.and_then(|change| Some(format!("{:.3}", change.ratio?)));
    cells![
        Role::Subject.text(&value.path),
        role.text(shown(&value.a)),
        role.text(shown(&value.b)),
        or(ratio, ""),
        differs.map_or_else(Text::default, |change| verdict(&change.compared)),
    ]
}

/// The values of a side's runs: one where all agree, a median with its range for numbers, otherwise each once.
fn shown(runs: &[Value]) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let numbers: Option<Vec<f64>> = runs.iter().map(Value::as_f64).collect();
    let mut distinct: Vec<String> = runs.iter().map(text).collect();
    distinct.dedup();
    let numbers = numbers.unwrap_or_default();
    let summary = nearfar_statistics::Summary::of(&numbers);
    match (distinct.as_slice(), summary) {
        ([one], _) => one.clone(),
        (_, Some(summary)) => {
            let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let [median, least, most] = [summary.median, least, most].map(number);
            format!("{median} ({least} to {most})")
        }
        _ => distinct.join(", "),
    }
}

/// A number with the digits that mean something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => significant(value),
    }
}

fn lines_of(diff: &LineDiff, comparison: &AnswerComparison, out: &mut Document) {
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
            AnswerLine::Both(text) if is_equal => ("", Role::Plain, text),
            AnswerLine::Both(text) => ("   ", Role::Dim, text),
            AnswerLine::A(text) => ("A  ", Role::Far, text),
            AnswerLine::B(text) => ("B  ", Role::Local, text),
        };
        out.labelled(role.text(mark), role.text(text));
    }
    for (name, count) in [("A", diff.a_unstable), ("B", diff.b_unstable)] {
        if count > 0 {
            let text =
                format!("{count} of {name}'s lines above are not the same in each of its runs");
            out.labelled(Role::Warning.text("varies: "), text);
        }
    }
}

/// How many runs it takes, where there are too few.
fn runs_needed(comparison: &AnswerComparison, out: &mut Document) {
    if comparison.is_until_clear {
        out.labelled(Role::Dim.text("looks: "), Role::Dim.text(UNTIL_CLEAR));
        let deciding = comparison.deciding();
        let needed = deciding.filter_map(|it| it.compared.samples_needed).max();
        if let Some(runs) = needed {
            let text = format!("not clear: some {runs} runs of each side would tell (--runs)");
            out.labelled(Role::Warning.text("runs: "), text);
            return;
        }
    }
    let values = comparison.values.iter().chain([&comparison.elapsed]);
    let mut changes = values.filter_map(|value| value.change.as_ref());
    if changes.any(|change| change.compared.verdict == Verdict::TooFewSamples) {
        let numbers = count(comparison.compared_numbers, "number");
        let runs = comparison.runs_needed;
        let text =
            format!("{numbers} compared: a significant difference takes --runs {runs} or more");
        out.labelled(Role::Dim.text("runs: "), Role::Dim.text(text));
    }
}

/// The last line of the errors of a failed run.
fn failures(name: &str, side: &CommandSide, out: &mut Document) {
    if let Some(failed) = side.runs.iter().find(|run| run.exit_code != 0) {
        let last = failed.stderr.lines().last();
        let last = last.unwrap_or("it printed no error");
        let label = format!("{name} ended with {}: ", failed.exit_code);
        out.labelled(Role::Warning.text(label), last);
    }
}
