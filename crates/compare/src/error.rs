//! Why sides cannot be compared.

use crate::difference::{Difference, Kind};

/// What is wrong with a file, or with the choice of sides.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A CSV file that does not read as one.
    #[error("cannot read it as CSV: {0}")]
    Csv(#[from] csv::Error),
    /// A Parquet file that does not read as one.
    #[error("cannot read it as Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A file without a byte, or of empty lines.
    #[error("it is empty")]
    Empty,
    /// Bytes that are no text.
    #[error("it is not a store, JSON, Parquet or CSV file")]
    UnknownFormat,
    /// A column that is needed and not there.
    #[error("it has no column {column:?}; its columns are {}", .columns.join(", "))]
    NoColumn {
        /// The column.
        column: String,
        /// Those it has.
        columns: Vec<String>,
    },
    /// A metric whose column holds text, infinity or NaN.
    #[error("row {row}: column {column:?} is not a finite number: {text:?}")]
    NotANumber {
        /// The column.
        column: String,
        /// The row, from 1, without the line of names.
        row: usize,
        /// What it holds.
        text: String,
    },
    /// A table says nothing of the direction of its metrics, and no other side does.
    #[error("it does not say which columns are metrics and which are factors")]
    NoMetrics,
    /// A table with several runs, of which none was chosen.
    #[error("it holds the runs {}; choose one with FILE:RUN", .runs.join(", "))]
    SeveralRuns {
        /// Their numbers.
        runs: Vec<String>,
    },
    /// A run that is not in the file.
    #[error("it holds no run {run}; it has {}", .runs.join(", "))]
    NoSuchRun {
        /// The run asked for.
        run: String,
        /// Those it has.
        runs: Vec<String>,
    },
    /// A factor that the run does not vary.
    #[error("the run has no factor {factor:?}; it has {}", .factors.join(", "))]
    NoFactor {
        /// The factor.
        factor: String,
        /// Those it has.
        factors: Vec<String>,
    },
    /// A level that the factor does not have, or fewer than two of them.
    #[error("{factor} has the levels {}: {needed}", .levels.join(", "))]
    Levels {
        /// The factor.
        factor: String,
        /// The levels it has.
        levels: Vec<String>,
        /// What is needed.
        needed: String,
    },
    /// A metric that no side has.
    #[error("no side has the metric {metric:?}; they have {}", .metrics.join(", "))]
    NoMetric {
        /// The metric.
        metric: String,
        /// Those they have.
        metrics: Vec<String>,
    },
    /// A side that is the baseline.
    #[error("both sides are {run}")]
    SameRun {
        /// Its name.
        run: String,
    },
    /// One run in two places of a comparison of several runs.
    #[error("{run} is given twice")]
    RepeatedRun { run: String },
    /// Runs of different experiments.
    #[error(
        "{a} is a run of {a_experiment}, {b} of {b_experiment}: only runs of one experiment can be compared"
    )]
    Experiments {
        /// The baseline.
        a: String,
        /// Its experiment.
        a_experiment: String,
        /// The other side.
        b: String,
        /// Its experiment.
        b_experiment: String,
    },
    /// No cell has samples of one metric on both sides.
    #[error("{a} and {b} have no cell and metric in common")]
    NothingInCommon {
        /// The baseline.
        a: String,
        /// The other side.
        b: String,
    },
    /// Differences that are not the point of the comparison.
    #[error("{}", refusal(.0))]
    Differ(Vec<Difference>),
}

/// At most so many differences of one kind are named in a message.
const MAX_NAMED: usize = 6;

fn refusal(differences: &[Difference]) -> String {
    let mut lines = vec!["the sides differ in more than what was measured:".to_owned()];
    let mut kinds: Vec<_> = differences.iter().map(|it| it.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in &kinds {
        let of_kind: Vec<_> = differences.iter().filter(|it| it.kind == *kind).collect();
        lines.extend(of_kind.iter().take(MAX_NAMED).map(|it| format!("  {it}")));
        if let more @ 1.. = of_kind.len().saturating_sub(MAX_NAMED) {
            lines.push(format!("  {kind}: {more} more"));
        }
    }
    let is_steps = |it: &&Difference| it.kind == Kind::Parameters && it.name == "steps";
    if let Some(steps) = differences.iter().find(is_steps) {
        lines.push(format!(
            "for a run of bench probe with as many steps as the baseline: --steps {}",
            steps.a
        ));
    }
    let options: Vec<String> = kinds
        .iter()
        .map(|kind| format!("--across {kind}"))
        .collect();
    lines.push(format!(
        "to compare them all the same: {}",
        options.join(" ")
    ));
    lines.join("\n")
}
