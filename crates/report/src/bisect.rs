//! What a bisection found, and how.

use nearfar_compare::bisection::Judgement;
use nearfar_lab::kernels::bisection::{Commit, Mark};
use serde::{Deserialize, Serialize};

use crate::amount::or;
use crate::compared::change;
use crate::document::{Document, Table, Text, cells};
use crate::style::Role;

const METHOD: &str = "runs of each commit in turns with runs of the good one; Mann-Whitney, looked at after 10, 20, 40, ... of each. \
                      A commit is bad where all of its interval is beyond the middle of the whole change. All answers together \
                      are wrong with at most 5 %";

/// A bisection and its end.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BisectAnswer {
    pub command: Vec<String>,
    /// The number of the command's answer that was measured; `null` for the run time.
    pub value: Option<String>,
    pub good: Commit,
    pub conclusion: Conclusion,
    /// The bad commit's first.
    pub steps: Vec<BisectStep>,
}

/// How it ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// With this commit the number crosses the middle.
    First(Commit),
    /// With one of these, which could not be tested.
    AnyOf(Vec<Commit>),
    /// The bad commit is not clearly another one than the good one.
    NoChange,
}

/// A commit that was tested.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BisectStep {
    pub commit: Commit,
    pub mark: Mark,
    /// The number of its run in the store.
    pub run: Option<i64>,
    /// `None` of one that could not be measured.
    pub judgement: Option<Judgement>,
    /// Why it was skipped.
    pub reason: Option<String>,
}

/// The commit, and the steps that led to it.
pub fn document(answer: &BisectAnswer) -> Document {
    let mut out = Document::titled("Bisection", METHOD);
    let value = or(answer.value.as_deref(), "run time");
    let good = answer.good.short();
    let mut table = Table::of(["commit", "", ">run", &format!("{value} against {good}"), ""]);
    for step in &answer.steps {
        table.row(row(step));
    }
    out.table(table);
    let named = |commit: &Commit| format!("{} {}", commit.short(), commit.subject);
    match &answer.conclusion {
        Conclusion::First(commit) => out.labelled(
            Role::Heading.text("first commit beyond the middle: "),
            Role::Far.text(named(commit)),
        ),
        Conclusion::AnyOf(commits) => {
            out.paragraph("The change comes with one of these, which could not be told apart:");
            for commit in commits {
                out.indented(2, Text::default(), named(commit));
            }
        }
        Conclusion::NoChange => {
            out.paragraph("No clear difference between both ends: there is nothing to bisect.")
        }
    }
    out
}

fn row(step: &BisectStep) -> [Text; 5] {
    let (role, word) = match step.mark {
        Mark::Good => (Role::Local, "good"),
        Mark::Bad => (Role::Far, "bad"),
        Mark::Skip => (Role::Warning, "skipped"),
    };
    let judgement = step.judgement.as_ref();
    let found = judgement.map(|it| change(&it.compared));
    // That of a guest has what it said, line by line.
    let reason = step.reason.as_deref();
    let reason = reason.map(|it| Vec::from_iter(it.lines()).join("; "));
    cells![
        Role::Subject.text(step.commit.short()),
        role.text(word),
        or(step.run, ""),
        or(found, ""),
        or(reason.as_ref(), &step.commit.subject),
    ]
}
