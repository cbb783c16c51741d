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
    #[error("run {run} stopped: cannot prepare it: {error}; it can be continued")]
    Setup {
        run: RunId,
        /// The experiment's reason.
        #[source]
        error: BoxError,
    },
    /// A setting could not be made.
    #[error("run {run} stopped: cannot set {}: {error}; its samples are kept, and it can be continued", path.display())]
    Setting {
        run: RunId,
        path: PathBuf,
        #[source]
        error: BoxError,
    },
    /// Too many samples failed one after the other.
    #[error(
        "run {run} stopped: {count} samples failed one after the other, the last one: {last}; its samples are kept, and it can be continued"
    )]
    Failures {
        run: RunId,
        /// How many.
        count: u32,
        /// Why the last one did.
        last: String,
    },
    /// Settings could not be put back. All samples are stored.
    #[error(
        "run {run} is stored, but not every setting could be put back: {error}; the next nearfar tries again"
    )]
    Restore {
        run: RunId,
        #[source]
        error: BoxError,
    },
}

/// A target by the levels of its cells.
pub(crate) fn named(levels: &Cell) -> String {
    match levels.to_string() {
        text if text.is_empty() => "all cells".to_owned(),
        text => text,
    }
}
