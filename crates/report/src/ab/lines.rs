//! The lines of answers that are not JSON.

use serde::Serialize;
use similar::{ChangeTag, TextDiff};

use super::Side;

/// Where the first answers of both sides differ, and how far the others bear them out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LineDiff {
    /// The lines of A's and B's first run, in order.
    pub lines: Vec<Line>,
    /// Lines of A's first run that its other runs do not have.
    pub a_unstable: usize,
    /// Lines of B's first run that its other runs do not have.
    pub b_unstable: usize,
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "in", content = "text", rename_all = "snake_case")]
pub enum Line {
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
        self.lines
            .iter()
            .filter(|line| matches!(line, Line::Both(_)))
            .count()
    }
}

/// Compares the first runs; counts where the others of a side disagree with its first.
pub(super) fn compare(a: &Side, b: &Side) -> LineDiff {
    let first = |side: &Side| {
        side.runs
            .first()
            .map(|run| run.stdout.clone())
            .unwrap_or_default()
    };
    let (of_a, of_b) = (first(a), first(b));
    let diff = TextDiff::from_lines(&of_a, &of_b);
    let lines = diff
        .iter_all_changes()
        .map(|change| {
            let text = change.value().trim_end_matches('\n').to_owned();
            match change.tag() {
                ChangeTag::Equal => Line::Both(text),
                ChangeTag::Delete => Line::A(text),
                ChangeTag::Insert => Line::B(text),
            }
        })
        .collect();
    LineDiff {
        lines,
        a_unstable: unstable(a),
        b_unstable: unstable(b),
    }
}

fn unstable(side: &Side) -> usize {
    let mut runs = side.runs.iter().map(|run| run.stdout.as_str());
    let Some(first) = runs.next() else { return 0 };
    let others: Vec<std::collections::HashSet<&str>> =
        runs.map(|text| text.lines().collect()).collect();
    first
        .lines()
        .filter(|line| others.iter().any(|other| !other.contains(line)))
        .count()
}
