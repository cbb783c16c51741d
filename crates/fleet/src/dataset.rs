//! Answers of many hosts as Parquet files that DuckDB, Polars and Spark read as they are.
//!
//! ```text
//! DATASET/TABLE/date=2026-11-25/experiment=checkup/RUN.parquet
//!
//! hosts      one row a host        run, host, state, reason, ...
//! facts      one row a fact        run, host, fact, value, number, unknown
//! findings   one row a finding     run, host, rule, severity, subject, message, device
//! samples    one row a value       run, host, stored_run, parameters, cell, metric, unit, better, sample, round, started_at, value, ...
//! ```
//!
//! The date is that of the fleet run, in UTC. A run that is collected again replaces its files, so that it never counts twice.

mod read;
mod tables;
mod write;

use std::io;
use std::path::{Path, PathBuf};

pub use read::{HostRow, Loaded, LoadedRun, MetricKey, Samples, Selection, load};
pub use write::{Collected, collect};

use crate::folder::FolderError;
use tables::Kind;

#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    #[error("cannot {action} {path}: {reason}")]
    File {
        action: &'static str,
        path: String,
        reason: io::Error,
    },
    #[error("cannot {action} {path}: {reason}")]
    Parquet {
        action: &'static str,
        path: String,
        reason: String,
    },
    #[error("{path} is not a dataset of fleet runs: it has no {expected}")]
    NotADataset { path: String, expected: String },
    #[error("there is no run {run:?} in {path}; it has {known}")]
    NoRun {
        run: String,
        path: String,
        known: String,
    },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// The state of a host that its run did not ask.
const NOT_ASKED: &str = "not_asked";

/// A run for people: `week-47 (3f524cdc07a11d7c)`, or its name where it has no label.
pub fn run_name(label: Option<&str>, run: &str) -> String {
    match label {
        Some(label) => format!("{label} ({run})"),
        None => run.to_owned(),
    }
}

/// Where a table's file of a run is.
fn file_of(dataset: &Path, kind: Kind, date: &str, experiment: &str, run: &str) -> PathBuf {
    dataset
        .join(kind.name())
        .join(format!("date={date}"))
        .join(format!("experiment={experiment}"))
        .join(format!("{run}.parquet"))
}

/// The date of a time in seconds since 1970, in UTC: `2026-11-25`.
fn date_of(seconds: f64) -> String {
    let (year, month, day) = nearfar_runs::utc_date((seconds / 86_400.0) as u64);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_those_of_utc() {
        for (seconds, date) in [
            (0.0, "1970-01-01"),
            (951_782_400.0, "2000-02-29"),
            (1_795_564_800.0 - 0.5, "2026-11-24"),
            (1_795_564_800.0, "2026-11-25"),
        ] {
            assert_eq!(super::date_of(seconds), date);
        }
    }
}
