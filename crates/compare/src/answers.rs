//! What a command answered on two sides, such as in guests that differ in one setting.
//!
//! ```text
//! runs of A ─┐    all JSON ──► values: path, A's values, B's values, and of numbers how they differ
//!            ├──►
//! runs of B ─┘    other text ► lines that differ, and how far each side agrees with itself
//! ```
//!
//! A number that is the same in every run of both sides cannot differ by chance and does not count among those that are compared.

mod kernel;
mod metrics;
mod values;

use std::collections::{BTreeMap, HashSet};

use nearfar_machine::Emulation;
use nearfar_statistics::compare::{
    DEFAULT_MARGIN, Design, Question, compare_shares, fewest_samples, sequential,
};
use nearfar_trace::kernel::KernelActivity;
use serde::{Deserialize, Serialize};
use similar::{ChangeTag, TextDiff};

use kernel::Effect;
pub use kernel::{KernelChange, KernelComparison};
pub use metrics::{metrics_of, metrics_taken};
pub use nearfar_statistics::compare::sequential::MOST_ROUNDS;
use values::numbers;
pub use values::{AnswerValue, NumberChange, SelectionError, ValueSelection};

/// One run of the command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CommandRun {
    /// How long the command took, in seconds of the host's clock, without the boot.
    pub elapsed_s: f64,
    /// Its exit code; 128 and the signal's number for one that was killed.
    pub exit_code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
    /// What the kernel did meanwhile, if that was traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelActivity>,
}

/// All runs of one side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CommandSide {
    /// What was varied, by name: `kernel`, `append`, `delay`, `machine`.
    pub settings: BTreeMap<String, String>,
    /// The label of the machine it ran on.
    pub emulation: Option<Emulation>,
    /// Its runs, in order.
    pub runs: Vec<CommandRun>,
}

impl CommandSide {
    /// Runs of which nothing else matters.
    pub fn of(runs: Vec<CommandRun>) -> Self {
        Self {
            settings: BTreeMap::new(),
            emulation: None,
            runs,
        }
    }

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
pub struct AnswerComparison {
    pub command: Vec<String>,
    /// The first side.
    pub a: CommandSide,
    /// The second side.
    pub b: CommandSide,
    /// The commands' run time, compared.
    pub elapsed: AnswerValue,
    /// The values in the answers, where every run printed JSON; those that differ first. Without a selection equal
    /// values are only counted.
    pub values: Vec<AnswerValue>,
    /// How many numbers differ between any two runs, the run time among them: each is one of so many that may differ by chance.
    pub compared_numbers: usize,
    /// The least number of runs of each side that can give a significant difference of one of so many numbers.
    pub runs_needed: usize,
    /// Values that are equal in all runs.
    pub equal_values: usize,
    /// The lines of the answers, where they are not JSON.
    pub lines: Option<LineDiff>,
    /// What changed of what the kernels did, if that was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelComparison>,
    /// Whether no more runs were made once the answer was clear, see [`Self::is_clear`].
    pub is_until_clear: bool,
    /// Whether `values` are those that were asked for.
    #[serde(skip)]
    is_selection: bool,
}

impl AnswerComparison {
    /// Compares. `selection` names the values to be shown, equal ones too; an empty one shows what differs. `is_until_clear`: by the share
    /// of the false alarms of its last look ([`sequential`]).
    pub fn of(
        command: Vec<String>,
        a: CommandSide,
        b: CommandSide,
        selection: &ValueSelection,
        is_until_clear: bool,
    ) -> Self {
        let time = |run: &CommandRun| serde_json::json!(run.elapsed_s);
        let times = |side: &CommandSide| side.runs.iter().map(time).collect();
        let mut elapsed = AnswerValue::new("elapsed_s".to_owned(), times(&a), times(&b));
        let (mut values, equal_values, lines) = match values::compare(&a, &b, selection) {
            Some((values, equal)) => (values, equal, None),
            None => (Vec::new(), 0, Some(compare_lines(&a, &b))),
        };
        judge(values.iter_mut().chain([&mut elapsed]), is_until_clear);
        let all = values.iter().chain([&elapsed]);
        let compared_numbers = all.filter(|value| value.is_compared()).count();
        let mut all = Self {
            kernel: None,
            command,
            a,
            b,
            elapsed,
            values,
            compared_numbers,
            runs_needed: runs_needed(compared_numbers, is_until_clear),
            equal_values,
            lines,
            is_until_clear,
            is_selection: !selection.is_empty(),
        };
        let effect = Effect::of(all.decided(), &all.elapsed);
        let runs = [&all.a.runs, &all.b.runs].map(Vec::as_slice);
        all.kernel = KernelComparison::of(runs, is_until_clear, effect);
        all
    }

    /// What decides whether further runs are needed: the numbers that were selected, or else the run time.
    pub fn deciding(&self) -> impl Iterator<Item = &NumberChange> {
        self.decided().filter_map(|value| value.change.as_ref())
    }

    fn decided(&self) -> impl Iterator<Item = &AnswerValue> {
        let selected = match self.is_selection {
            true => self.values.as_slice(),
            false => std::slice::from_ref(&self.elapsed),
        };
        selected.iter()
    }

    /// Whether further runs are not needed for what decides it.
    pub fn is_clear(&self) -> bool {
        let rounds = self.a.runs.len().min(self.b.runs.len());
        let share = share_after(rounds);
        let numbers = self.compared_numbers;
        self.deciding()
            .all(|it| sequential::is_clear(&it.compared, share, numbers))
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
fn compare_lines(a: &CommandSide, b: &CommandSide) -> LineDiff {
    let first = |side: &CommandSide| {
        side.runs
            .first()
            .map_or_else(String::new, |run| run.stdout.clone())
    };
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

fn unstable(side: &CommandSide) -> usize {
    let mut runs = side.runs.iter().map(|run| run.stdout.as_str());
    let Some(first) = runs.next() else { return 0 };
    let others: Vec<HashSet<&str>> = runs.map(|text| text.lines().collect()).collect();
    let is_unstable = |line: &&str| others.iter().any(|other| !other.contains(line));
    first.lines().filter(is_unstable).count()
}

/// The runs of both sides alternate, so that what drifts on the host is common to both runs of a round. `nearfar compare`
/// takes the same rounds.
const DESIGN: Design = Design::Paired;

/// The share of the false alarms of what so many rounds say.
fn share_after(rounds: usize) -> f64 {
    sequential::share(u32::try_from(rounds).unwrap_or(u32::MAX))
}

/// The least number of runs of each side that can give a significant difference of one of so many numbers.
fn runs_needed(numbers: usize, is_until_clear: bool) -> usize {
    match is_until_clear {
        true => sequential::fewest_rounds(DESIGN, numbers) as usize,
        false => fewest_samples(DESIGN, numbers),
    }
}

/// Says of each number whether its difference is more than chance.
fn judge<'a>(values: impl Iterator<Item = &'a mut AnswerValue>, is_until_clear: bool) {
    let asked = values.filter_map(|value| {
        let sides = [numbers(&value.a)?, numbers(&value.b)?];
        // Of a comparison that was interrupted one side may have a run more.
        let rounds = sides[0].len().min(sides[1].len());
        let question = Question {
            a: vec![sides[0][..rounds].to_vec()],
            b: vec![sides[1][..rounds].to_vec()],
            design: DESIGN,
            better: None,
        };
        let share = match is_until_clear {
            true => share_after(rounds),
            false => 1.0,
        };
        Some(((value, sides), (question, share)))
    });
    let (asked, questions): (Vec<_>, Vec<(Question, f64)>) = asked.unzip();
    let questions = questions.iter().map(|(question, share)| (question, *share));
    let answers = compare_shares(questions, DEFAULT_MARGIN);
    for ((value, [a, b]), answer) in asked.into_iter().zip(answers) {
        value.change = answer.and_then(|it| NumberChange::of(&a, &b, it));
    }
}

#[cfg(test)]
mod tests {
    use nearfar_statistics::compare::Verdict;
    use serde_json::json;

    use super::*;

    /// The verdicts on numbers, each of the runs of A and of B.
    fn verdicts(numbers: &[(&[f64], &[f64])]) -> Vec<Verdict> {
        let of = |side: &[f64]| side.iter().map(|number| json!(number)).collect();
        let value = |(a, b): &(&[f64], &[f64])| AnswerValue::new("n".to_owned(), of(a), of(b));
        let mut values: Vec<AnswerValue> = numbers.iter().map(value).collect();
        judge(values.iter_mut(), false);
        let changes = values.into_iter().filter_map(|value| value.change);
        changes.map(|change| change.compared.verdict).collect()
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
            assert_eq!(found, [Verdict::TooFewSamples]);
        }
        let (a, b) = (
            [1.0, 1.3, 1.1, 1.5, 1.2, 1.4],
            [2.1, 1.9, 2.5, 1.7, 2.7, 2.3],
        );
        assert_eq!(verdicts(&[(&a, &b)]), [Verdict::Different]);
        assert_eq!(verdicts(&[(&a, &b), (&a, &b)]), [Verdict::TooFewSamples; 2]);
        assert_eq!(
            verdicts(&[(&[1.0, 1.3, 1.1, 2.8, 1.2, 1.4], &b)]),
            [Verdict::NotSignificant]
        );
        // 2 / 2^n: 1/32, 1/64 ... 1/1024 for 6 to 11 runs.
        assert_eq!(
            [1, 2, 3, 4, 6, 7, 12, 13, 25, 26, 51].map(|numbers| fewest_samples(DESIGN, numbers)),
            [6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]
        );
    }

    #[test]
    fn a_significant_difference_within_the_margin_is_equivalent() {
        let a = [1000.0, 1003.0, 1001.0, 1005.0, 1002.0, 1004.0];
        let of = |factor: f64| a.iter().map(|number| json!(number * factor)).collect();
        let mut value = AnswerValue::new("n".to_owned(), of(1.0), of(1.001));
        judge([&mut value].into_iter(), false);
        let compared = value.change.unwrap().compared;
        assert!(compared.is_significant);
        assert_eq!(compared.verdict, Verdict::Equivalent);
    }

    #[test]
    fn further_runs_are_needed_until_what_was_selected_is_clear() {
        let side = |runs: usize, of: fn(usize) -> f64| CommandSide {
            settings: BTreeMap::new(),
            emulation: None,
            runs: (0..runs)
                .map(|run| CommandRun {
                    // As it comes, whatever the other side does.
                    elapsed_s: 1.0 + (run * 7 % 10) as f64,
                    exit_code: 0,
                    stdout: json!({"ns": of(run)}).to_string(),
                    stderr: String::new(),
                    kernel: None,
                })
                .collect(),
        };
        let selections = [vec!["ns".to_owned()], Vec::new()].map(ValueSelection::new);
        let clear = |runs, b| {
            let a = side(runs, |run| 100.0 + (run * 3 % 10) as f64);
            let sides = (a, side(runs, b));
            selections.each_ref().map(|selection| {
                let (a, b) = sides.clone();
                let found = AnswerComparison::of(Vec::new(), a, b, selection, true);
                (found.is_clear(), found.runs_needed)
            })
        };
        // The run times are equal.
        assert_eq!(
            clear(10, |run| 150.0 + (run * 7 % 10) as f64),
            [(true, 8), (true, 8)]
        );
        assert!(!clear(5, |run| 150.0 + (run * 7 % 10) as f64)[0].0);
        assert!(!clear(10, |run| 100.5 + (run * 7 % 10) as f64)[0].0);
    }

    #[test]
    fn what_drifts_over_the_rounds_is_common_to_both_sides() {
        let a = [10.0, 11.3, 12.1, 13.4, 14.2, 15.5, 16.1, 17.3];
        let noise = [1.01, 1.03, 1.02, 1.04, 1.015, 1.035, 1.012, 1.025];
        let b: Vec<f64> = a.iter().zip(noise).map(|(it, noise)| it * noise).collect();
        assert_eq!(verdicts(&[(&a, &b)]), [Verdict::Different]);
    }
}
