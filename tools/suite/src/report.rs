//! What a person sees: a line for each slow test as it ends, and the summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::item::{Outcome, Verdict};

/// Tests that take longer get a line when they end.
const SLOW_S: f64 = 5.0;
/// How many of the slowest tests the summary names.
const SLOWEST: usize = 20;

/// The line of a test that has ended, if it has one.
pub fn progress(outcome: &Outcome) -> Option<String> {
    let what = match &outcome.verdict {
        Verdict::Failed(reason) => format!("failed, {reason}: "),
        Verdict::Passed | Verdict::Skipped(_) if outcome.seconds > SLOW_S => String::new(),
        _ => return None,
    };
    Some(format!("{:8.1} s  {what}{}", outcome.seconds, outcome.id))
}

/// Whether the run fails: a test failed or was interrupted, or there was none.
pub fn is_failure(outcomes: &[Outcome]) -> bool {
    let is_bad =
        |outcome: &Outcome| matches!(outcome.verdict, Verdict::Failed(_) | Verdict::Interrupted);
    outcomes.is_empty() || outcomes.iter().any(is_bad)
}

/// The summary. Its last line is alone what other programs may read.
pub fn summary(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    failures(&mut text, outcomes);
    list(&mut text, "skipped", outcomes, |outcome| {
        match &outcome.verdict {
            Verdict::Skipped(skips) => skips.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    });
    list(
        &mut text,
        "processes left by tests, killed",
        outcomes,
        |outcome| outcome.left.clone(),
    );
    list(&mut text, "retries", outcomes, |outcome| {
        outcome.retries.clone()
    });
    let retries: usize = outcomes.iter().map(|outcome| outcome.retries.len()).sum();
    if retries > 1 {
        line(
            &mut text,
            format_args!("finding: {retries} retries in one run, look into them"),
        );
    }
    by_package(&mut text, outcomes);
    slowest(&mut text, outcomes);
    let count = |is: fn(&Verdict) -> bool| {
        outcomes
            .iter()
            .filter(|outcome| is(&outcome.verdict))
            .count()
    };
    let passed = count(|verdict| *verdict == Verdict::Passed);
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_) | Verdict::Interrupted));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    line(
        &mut text,
        format_args!("{passed} passed, {failed} failed, {skipped} skipped"),
    );
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

fn failures(text: &mut String, outcomes: &[Outcome]) {
    for outcome in outcomes {
        let reason = match &outcome.verdict {
            Verdict::Failed(reason) => reason,
            Verdict::Interrupted => "interrupted",
            _ => continue,
        };
        line(
            text,
            format_args!(
                "\nfailed: {} ({reason}, {:.1} s)",
                outcome.id, outcome.seconds
            ),
        );
        for printed in outcome.output.lines() {
            line(text, format_args!("  | {printed}"));
        }
    }
}

/// One line for each test and different entry.
fn list(
    text: &mut String,
    title: &str,
    outcomes: &[Outcome],
    entries: impl Fn(&Outcome) -> Vec<String>,
) {
    let mut lines = Vec::new();
    for outcome in outcomes {
        let mut entries = entries(outcome);
        entries.dedup();
        lines.extend(
            entries
                .into_iter()
                .map(|entry| format!("  {}: {entry}", outcome.id)),
        );
    }
    if !lines.is_empty() {
        line(text, format_args!("\n{title}:\n{}", lines.join("\n")));
    }
}

/// The sum of each package's tests, the largest first.
fn by_package(text: &mut String, outcomes: &[Outcome]) {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for outcome in outcomes {
        let package = outcome.id.split('/').next().unwrap_or_default();
        let (seconds, count) = sums.entry(package).or_default();
        (*seconds, *count) = (*seconds + outcome.seconds, *count + 1);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    line(text, format_args!("\nby package:"));
    for (package, (seconds, count)) in sums {
        line(text, format_args!("{seconds:8.1} s  {package} ({count})"));
    }
}

fn slowest(text: &mut String, outcomes: &[Outcome]) {
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    line(text, format_args!("\nslowest:"));
    for outcome in sorted.into_iter().take(SLOWEST) {
        line(
            text,
            format_args!("{:8.1} s  {}", outcome.seconds, outcome.id),
        );
    }
    line(text, format_args!(""));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(id: &str, verdict: Verdict, seconds: f64, retries: &[&str]) -> Outcome {
        let retries = retries.iter().map(|&retry| retry.to_owned()).collect();
        let output = "first\nsecond".to_owned();
        Outcome {
            id: id.to_owned(),
            verdict,
            seconds,
            retries,
            left: Vec::new(),
            output,
        }
    }

    #[test]
    fn the_summary_ends_with_the_counts() {
        let outcomes = [
            outcome("p/t/a", Verdict::Passed, 7.26, &["over its limit of 1s"]),
            outcome(
                "p/t/b",
                Verdict::Failed("exit code 101".into()),
                0.2,
                &["the guest hung"],
            ),
            outcome(
                "p/t/c",
                Verdict::Skipped(vec![
                    "guests: no QEMU".parse().unwrap(),
                    "guests: no QEMU".parse().unwrap(),
                ]),
                0.1,
                &[],
            ),
        ];
        let expected = "
failed: p/t/b (exit code 101, 0.2 s)
  | first
  | second

skipped:
  p/t/c: guests: no QEMU

retries:
  p/t/a: over its limit of 1s
  p/t/b: the guest hung
finding: 2 retries in one run, look into them

by package:
     7.6 s  p (3)

slowest:
     7.3 s  p/t/a
     0.2 s  p/t/b
     0.1 s  p/t/c

1 passed, 1 failed, 1 skipped
";
        assert_eq!(summary(&outcomes), expected);
        assert!(is_failure(&outcomes) && is_failure(&[]) && !is_failure(&outcomes[..1]));
        let lines: Vec<_> = outcomes.iter().filter_map(progress).collect();
        assert_eq!(
            lines,
            [
                "     7.3 s  p/t/a",
                "     0.2 s  failed, exit code 101: p/t/b"
            ]
        );
    }
}
