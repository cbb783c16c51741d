//! The same command under A and under B: what it answered, side by side.
//!
//! ```text
//! runs of A ─┐    all JSON ──► values: path, A's values, B's values, ratio and verdict of numbers
//!            ├──►
//! runs of B ─┘    other text ► lines that differ, and how far each side agrees with itself
//! ```
//!
//! Whether a difference is more than chance, over all numbers that are compared, the engine of `nearfar compare` says. A number that
//! is the same in every run of both sides cannot differ by chance and does not count.

mod values;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use nearfar_machine::Emulation;
use nearfar_statistics::compare::{self, Compared, DEFAULT_MARGIN, Design, Question, compare};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use similar::{ChangeTag, TextDiff};

use crate::amount::{count, or};
use crate::document::{Document, Table, Text, cells, cut};
use crate::style::Role;

pub use values::{Change, Selection, SelectionError, Value, numbers_of};
use values::{numbers, range};

/// One run of the command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// How long the command took, in seconds of the host's clock, without the boot.
    pub elapsed_s: f64,
    /// Its exit code; 128 and the signal's number for one that was killed.
    pub exit_code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
}

/// All runs of one side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Side {
    /// What was varied, by name: `kernel`, `append`, `delay`, `machine`.
    pub settings: BTreeMap<String, String>,
    /// The label of the machine it ran on.
    pub emulation: Option<Emulation>,
    /// Its runs, in order.
    pub runs: Vec<Run>,
}

impl Side {
    /// `kernel=6.1 append="numa=fake=4"`: what makes this side.
    pub fn name(&self) -> String {
        let part = |(key, value): (&String, &String)| match value.contains(' ') {
            true => format!("{key}=\"{value}\""),
            false => format!("{key}={value}"),
        };
        let parts: Vec<String> = self.settings.iter().map(part).collect();
        parts.join(" ")
    }
}

/// What two sides answered.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    pub command: Vec<String>,
    /// The first side.
    pub a: Side,
    /// The second side.
    pub b: Side,
    /// The commands' run time, compared.
    pub elapsed: Value,
    /// The values in the answers, where every run printed JSON; those that differ first. Without a selection equal
    /// values are only counted.
    pub values: Vec<Value>,
    /// How many numbers differ between any two runs, the run time among them: each is one of so many that may differ by chance.
    pub compared_numbers: usize,
    /// The least number of runs of each side that can give a significant difference of one of so many numbers.
    pub runs_needed: usize,
    /// Values that are equal in all runs.
    pub equal_values: usize,
    /// The lines of the answers, where they are not JSON.
    pub lines: Option<LineDiff>,
}

impl Comparison {
    /// Compares. `selection` names the values to be shown, equal ones too; an empty one shows what differs.
    pub fn of(command: Vec<String>, a: Side, b: Side, selection: &Selection) -> Self {
        let time = |run: &Run| serde_json::json!(run.elapsed_s);
        let times = |side: &Side| side.runs.iter().map(time).collect();
        let mut elapsed = Value::new("elapsed_s".to_owned(), times(&a), times(&b));
        let (mut values, equal_values, lines) = match values::compare(&a, &b, selection) {
            Some((values, equal)) => (values, equal, None),
            None => (Vec::new(), 0, Some(compare_lines(&a, &b))),
        };
        let all = values.iter().chain([&elapsed]);
        let compared_numbers = all.filter(|value| value.is_compared()).count();
        judge(values.iter_mut().chain([&mut elapsed]));
        Self {
            command,
            a,
            b,
            elapsed,
            values,
            compared_numbers,
            runs_needed: compare::fewest_samples(DESIGN, compared_numbers),
            equal_values,
            lines,
        }
    }
}

/// Longest title, in columns.
const MAX_TITLE_COLUMNS: usize = 96;

/// Both sides, their run times, and what differs in their answers.
pub fn document(comparison: &Comparison) -> Document {
    let mut out = Document::titled(title(&comparison.command), "");
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
        let name = Role::Notice.text(format!("{name}: "));
        out.indented(0, name, Role::Notice.text(label));
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
        (a, b) => {
            let a = a.map(|label| ("A emulated", label));
            let b = b.map(|label| ("B emulated", label));
            a.into_iter().chain(b).collect()
        }
    }
}

fn sides(comparison: &Comparison, out: &mut Document) {
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

fn times(elapsed: &Value, out: &mut Document) {
    let Some(change) = &elapsed.change else {
        return;
    };
    let verdict = words(change.verdict);
    let ratio = change.ratio;
    let ratio = ratio.map(|ratio| format!("; B/A {ratio:.2}, {verdict}"));
    let ratio = or(ratio, "");
    let (a, b) = (change.a_median, change.b_median);
    let text = format!("A {a:.2} s, B {b:.2} s{ratio} (medians, boot not counted)");
    out.labelled(Role::Dim.text("time: "), text);
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
    let mut table = Table::of(["value", ">A", ">B", ">B/A", ""]).caption("Values");
    for value in &comparison.values {
        table.row(value_row(value));
    }
    out.table(table);
}

fn value_row(value: &Value) -> [Text; 5] {
    let role = match value.differs() {
        true => Role::Middling,
        false => Role::Plain,
    };
    let change = value.change.as_ref();
    let differs = change.filter(|change| change.verdict != Verdict::Equal);
    let ratio = differs.and_then(|change| Some(format!("{:.3}", change.ratio?)));
    cells![
        Role::Subject.text(&value.path),
        role.text(shown(&value.a)),
        role.text(shown(&value.b)),
        or(ratio, ""),
        Role::Dim.text(differs.map_or("", |change| words(change.verdict))),
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
    let numbers = numbers.unwrap_or_default();
    let summary = nearfar_statistics::Summary::of(&numbers);
    match (distinct.as_slice(), summary) {
        ([one], _) => one.clone(),
        (_, Some(summary)) => {
            let (least, most) = range(&numbers);
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
fn runs_needed(comparison: &Comparison, out: &mut Document) {
    let values = comparison.values.iter().chain([&comparison.elapsed]);
    let mut changes = values.filter_map(|value| value.change);
    if changes.any(|change| change.verdict == Verdict::TooFewRuns) {
        let numbers = count(comparison.compared_numbers, "number");
        let runs = comparison.runs_needed;
        let text =
            format!("{numbers} compared: a significant difference takes --runs {runs} or more");
        out.labelled(Role::Dim.text("runs: "), Role::Dim.text(text));
    }
}

/// The last line of the errors of a failed run.
fn failures(name: &str, side: &Side, out: &mut Document) {
    if let Some(failed) = side.runs.iter().find(|run| run.exit_code != 0) {
        let last = failed.stderr.lines().last();
        let last = last.unwrap_or("it printed no error");
        let label = format!("{name} ended with {}: ", failed.exit_code);
        out.labelled(Role::Warning.text(label), last);
    }
}

/// Where the first answers of both sides differ, and how far the others bear them out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LineDiff {
    /// The lines of A's and B's first run, in order.
    pub lines: Vec<AnswerLine>,
    /// Lines of A's first run that its other runs do not have.
    pub a_unstable: usize,
    /// Lines of B's first run that its other runs do not have.
    pub b_unstable: usize,
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "in", content = "text", rename_all = "snake_case")]
pub enum AnswerLine {
    /// In both.
    Both(String),
    /// Only in A's answer.
    A(String),
    /// Only in B's answer.
    B(String),
}

impl LineDiff {
    /// How many lines are in both.
    pub fn equal(&self) -> usize {
        let both = |line: &&AnswerLine| matches!(line, AnswerLine::Both(_));
        self.lines.iter().filter(both).count()
    }
}

/// Compares the first runs; counts where the others of a side disagree with its first.
fn compare_lines(a: &Side, b: &Side) -> LineDiff {
    let first = |side: &Side| or(side.runs.first().map(|run| run.stdout.clone()), "");
    let (of_a, of_b) = (first(a), first(b));
    let diff = TextDiff::from_lines(&of_a, &of_b);
    let lines = diff.iter_all_changes().map(|change| {
        let text = change.value().trim_end_matches('\n').to_owned();
        match change.tag() {
            ChangeTag::Equal => AnswerLine::Both(text),
            ChangeTag::Delete => AnswerLine::A(text),
            ChangeTag::Insert => AnswerLine::B(text),
        }
    });
    LineDiff {
        lines: lines.collect(),
        a_unstable: unstable(a),
        b_unstable: unstable(b),
    }
}

fn unstable(side: &Side) -> usize {
    let mut runs = side.runs.iter().map(|run| run.stdout.as_str());
    let Some(first) = runs.next() else { return 0 };
    let others: Vec<HashSet<&str>> = runs.map(|text| text.lines().collect()).collect();
    let is_unstable = |line: &&str| others.iter().any(|other| !other.contains(line));
    first.lines().filter(is_unstable).count()
}

/// The runs of both sides alternate, so that what drifts on the host is common to both runs of a round. `nearfar compare`
/// takes the same rounds.
const DESIGN: Design = Design::Paired;

/// Whether a difference is more than chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every run gave the same on both sides.
    Equal,
    /// The runs of both sides differ by more than chance, as one of so many numbers.
    Significant,
    /// They do not.
    NotSignificant,
    /// Whatever the runs give, they are too few for as many numbers as are compared.
    TooFewRuns,
}

impl From<Compared> for Verdict {
    /// The engine also says whether sides are equivalent, which this answer does not show.
    fn from(compared: Compared) -> Self {
        match compared.verdict {
            _ if compared.is_significant => Self::Significant,
            compare::Verdict::Equal => Self::Equal,
            compare::Verdict::TooFewSamples => Self::TooFewRuns,
            _ => Self::NotSignificant,
        }
    }
}

/// Says of each number whether its difference is more than chance.
fn judge<'a>(values: impl Iterator<Item = &'a mut Value>) {
    let asked = values.filter_map(|value| {
        let (mut a, mut b) = (numbers(&value.a)?, numbers(&value.b)?);
        // Of a comparison that was interrupted one side may have a run more.
        let rounds = a.len().min(b.len());
        a.truncate(rounds);
        b.truncate(rounds);
        let question = Question {
            a: vec![a],
            b: vec![b],
            design: DESIGN,
            better: None,
        };
        Some((value.change.as_mut()?, question))
    });
    let (changes, questions): (Vec<_>, Vec<Question>) = asked.unzip();
    let answers = compare(&questions, DEFAULT_MARGIN);
    for (change, answer) in changes.into_iter().zip(answers) {
        change.verdict = answer.map_or(Verdict::TooFewRuns, Verdict::from);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The verdicts on numbers, each of the runs of A and of B.
    fn verdicts(numbers: &[(&[f64], &[f64])]) -> Vec<Verdict> {
        let of = |side: &[f64]| side.iter().map(|number| json!(number)).collect();
        let value = |(a, b): &(&[f64], &[f64])| Value::new("n".to_owned(), of(a), of(b));
        let mut values: Vec<Value> = numbers.iter().map(value).collect();
        judge(values.iter_mut());
        let verdicts = values.iter().filter_map(|value| value.change);
        verdicts.map(|change| change.verdict).collect()
    }

    #[test]
    fn what_runs_can_show_depends_on_how_many_numbers_are_compared() {
        assert_eq!(
            verdicts(&[(&[1.0, 1.0], &[1.0, 1.0])]),
            [Verdict::Equal],
            "it does not count either"
        );
        for runs in [2, 5] {
            let (a, b) = ([1.0; 5], [2.0, 3.0, 4.0, 5.0, 6.0]);
            let found = verdicts(&[(&a[..runs], &b[..runs])]);
            assert_eq!(found, [Verdict::TooFewRuns]);
        }
        let (a, b) = (
            [1.0, 1.3, 1.1, 1.5, 1.2, 1.4],
            [2.1, 1.9, 2.5, 1.7, 2.7, 2.3],
        );
        assert_eq!(verdicts(&[(&a, &b)]), [Verdict::Significant]);
        assert_eq!(verdicts(&[(&a, &b), (&a, &b)]), [Verdict::TooFewRuns; 2]);
        assert_eq!(
            verdicts(&[(&[1.0, 1.3, 1.1, 2.8, 1.2, 1.4], &b)]),
            [Verdict::NotSignificant]
        );
        // 2 / 2^n: 1/32, 1/64 ... 1/1024 for 6 to 11 runs.
        assert_eq!(
            [1, 2, 3, 4, 6, 7, 12, 13, 25, 26, 51]
                .map(|numbers| compare::fewest_samples(DESIGN, numbers)),
            [6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]
        );
    }

    #[test]
    fn what_drifts_over_the_rounds_is_common_to_both_sides() {
        let a = [10.0, 11.3, 12.1, 13.4, 14.2, 15.5, 16.1, 17.3];
        let noise = [1.01, 1.03, 1.02, 1.04, 1.015, 1.035, 1.012, 1.025];
        let b: Vec<f64> = a.iter().zip(noise).map(|(it, noise)| it * noise).collect();
        assert_eq!(verdicts(&[(&a, &b)]), [Verdict::Significant]);
    }
}
