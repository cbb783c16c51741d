//! Why a run could not be begun, or stopped.

use std::path::PathBuf;

use nearfar_runs::{Cell, RunId, StoreError};

use crate::experiment::BoxError;

/// What can go wrong with a run as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The experiment declares nothing to measure, or a cell twice.
    #[error("the experiment {experiment} has {what}: nothing was run")]
    Plan {
        experiment: String,
        /// What is wrong with its cells.
        what: &'static str,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run that was to be continued is of another experiment, machine, label, or has other parameters.
    #[error("run {run} cannot be continued: its {differs}; begin a new run instead")]
    Other {
        run: RunId,
        /// What differs, such as "parameters differ".
        differs: String,
    },
    /// The run that was to be continued was planned with more samples of each cell.
    #[error(
        "run {run} was planned with {planned} samples of each cell and cannot be continued with {asked}; ask for \
         {planned} or more"
    )]
    Fewer {
        run: RunId,
        /// Samples of each cell that it was planned with.
        planned: u32,
        /// How many were asked for.
        asked: u32,
    },
    /// What was stored of an interrupted run cannot be read back.
    #[error(
        "run {run} cannot be continued: its sample {number} cannot be read ({error}); begin a new run instead"
    )]
    Stored {
        run: RunId,
        /// The sample's number.
        number: u64,
        #[source]
        error: serde_json::Error,
    },
    /// A sample cannot be written as JSON.
    #[error("a sample of {experiment} cannot be stored: {error}")]
    Sample {
        /// The experiment's name.
        experiment: String,
        #[source]
        error: serde_json::Error,
    },
    /// The experiment could not prepare the run.
    #[error("{} stopped: cannot prepare it: {error}{}", named_run(*run), if_stored(*run, "; it can be continued"))]
    Setup {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        /// The experiment's reason.
        #[source]
        error: BoxError,
    },
    /// A setting could not be made.
    #[error("{} stopped: cannot set {}: {error}{}", named_run(*run), path.display(), if_stored(*run, CONTINUED))]
    Setting {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        path: PathBuf,
        #[source]
        error: BoxError,
    },
    /// Too many samples failed one after the other.
    #[error(
        "{} stopped: {count} samples failed one after the other, the last one: {last}{}",
        named_run(*run), if_stored(*run, CONTINUED)
    )]
    Failures {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        /// How many.
        count: u32,
        /// Why the last one did.
        last: String,
    },
    /// Settings could not be put back. All samples are stored.
    #[error(
        "{} ended, but not every setting could be put back: {error}; the next nearfar tries again",
        named_run(*run)
    )]
    Restore {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        #[source]
        error: BoxError,
    },
}

/// What can be done about a run that stopped.
const CONTINUED: &str = "; its samples are kept, and it can be continued";

fn named_run(run: Option<RunId>) -> String {
    run.map_or_else(|| "the run".to_owned(), |run| format!("run {run}"))
}

fn if_stored(run: Option<RunId>, text: &'static str) -> &'static str {
    run.map_or("", |_| text)
}

/// A target by the levels of its cells.
pub(crate) fn named(levels: &Cell) -> String {
    match levels.to_string() {
        text if text.is_empty() => "all cells".to_owned(),
        text => text,
    }
}
