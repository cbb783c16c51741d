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
mod write;

use std::io;
use std::path::{Path, PathBuf};

use nearfar_runs::export::{Column, ColumnValues};

use crate::folder::FolderError;

pub use read::{HostRow, Loaded, LoadedRun, MetricKey, Samples, Selection, load};
pub use write::{Collected, collect};

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

fn file_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> DatasetError + 'a {
    move |reason| DatasetError::File {
        action,
        path: path.display().to_string(),
        reason,
    }
}

fn parquet_error(
    action: &'static str,
    path: &Path,
    error: &parquet::errors::ParquetError,
) -> DatasetError {
    DatasetError::Parquet {
        action,
        path: path.display().to_string(),
        reason: error.to_string(),
    }
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

/// A table of the dataset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Hosts,
    Facts,
    Findings,
    Samples,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Hosts, Self::Facts, Self::Findings, Self::Samples];

    /// The name of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Facts => "facts",
            Self::Findings => "findings",
            Self::Samples => "samples",
        }
    }

    /// Its columns without rows.
    pub fn columns(self) -> Vec<Column> {
        use Type::{Real, Text, Whole};
        let columns: &[(&str, Type)] = match self {
            Self::Hosts => &[
                ("run", Text),
                ("host", Text),
                ("label", Text),
                ("state", Text),
                ("reason", Text),
                ("run_started_at", Real),
                ("started_at", Real),
                ("took_s", Real),
                ("exit_code", Whole),
                ("verb", Text),
                ("nearfar", Text),
                ("machine_host", Text),
                ("emulated", Text),
                ("by", Text),
            ],
            Self::Facts => &[
                ("run", Text),
                ("host", Text),
                ("fact", Text),
                ("value", Text),
                ("number", Real),
                ("is_size", Whole),
                ("unknown", Text),
            ],
            Self::Findings => &[
                ("run", Text),
                ("host", Text),
                ("rule", Text),
                ("severity", Text),
                ("subject", Text),
                ("message", Text),
                ("device", Text),
            ],
            Self::Samples => &[
                ("run", Text),
                ("host", Text),
                ("stored_run", Text),
                ("parameters", Text),
                ("cell", Text),
                ("metric", Text),
                ("unit", Text),
                ("better", Text),
                ("is_primary", Whole),
                ("sample", Whole),
                ("round", Whole),
                ("started_at", Real),
                ("value", Real),
                ("failed", Text),
                ("warnings", Text),
            ],
        };
        let column = |(name, kind): &(&str, Type)| Column {
            name: (*name).to_owned(),
            values: match kind {
                Text => ColumnValues::Text(Vec::new()),
                Whole => ColumnValues::Whole(Vec::new()),
                Real => ColumnValues::Real(Vec::new()),
            },
        };
        columns.iter().map(column).collect()
    }
}

#[derive(Clone, Copy)]
enum Type {
    Text,
    Whole,
    Real,
}

/// A field of a row.
#[derive(Clone, Copy)]
enum Field<'a> {
    Text(&'a str),
    Whole(i64),
    Real(f64),
    Nothing,
}

impl<'a> From<&'a str> for Field<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Field<'_> {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<f64> for Field<'_> {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Field<'a> {
    fn from(field: Option<T>) -> Self {
        field.map_or(Self::Nothing, Into::into)
    }
}

/// A field of a row with the name of its column.
type Named<'a> = (&'static str, Field<'a>);

/// Appends a row. Columns that it does not name have nothing there.
fn push(columns: &mut [Column], row: &[Named<'_>]) {
    debug_assert!(
        row.iter()
            .all(|(name, _)| columns.iter().any(|column| column.name == *name)),
        "a column that the table does not have"
    );
    for (place, column) in columns.iter_mut().enumerate() {
        // Rows mostly have all columns in their order.
        let is_it = |(name, _): &&Named<'_>| column.name == *name;
        let named = row.get(place).filter(is_it);
        let named = named.or_else(|| row.iter().find(is_it));
        let field = named.map_or(&Field::Nothing, |(_, field)| field);
        match (&mut column.values, field) {
            (ColumnValues::Text(values), Field::Text(text)) => {
                values.push(Some((*text).to_owned()))
            }
            (ColumnValues::Whole(values), Field::Whole(number)) => values.push(Some(*number)),
            (ColumnValues::Real(values), Field::Real(number)) => values.push(Some(*number)),
            (ColumnValues::Text(values), Field::Nothing) => values.push(None),
            (ColumnValues::Whole(values), Field::Nothing) => values.push(None),
            (ColumnValues::Real(values), Field::Nothing) => values.push(None),
            _ => unreachable!("column {} has another type", column.name),
        }
    }
}

/// Some columns of a group of rows.
struct Rows(Vec<(&'static str, ColumnValues)>);

impl Rows {
    /// Of these columns, in this order.
    pub fn new(names: &[&'static str], values: Vec<ColumnValues>) -> Self {
        Self(names.iter().copied().zip(values).collect())
    }

    pub fn count(&self) -> usize {
        match self.0.first() {
            Some((_, ColumnValues::Text(values))) => values.len(),
            Some((_, ColumnValues::Whole(values))) => values.len(),
            Some((_, ColumnValues::Real(values))) => values.len(),
            Some((_, ColumnValues::Switch(values))) => values.len(),
            None => 0,
        }
    }

    fn column(&self, name: &str) -> Option<&ColumnValues> {
        let column = self.0.iter().find(|(known, _)| *known == name);
        debug_assert!(column.is_some(), "column {name} was not read");
        Some(&column?.1)
    }

    /// `None` where there is nothing.
    pub fn text(&self, name: &str, row: usize) -> Option<&str> {
        match self.column(name)? {
            ColumnValues::Text(values) => values.get(row)?.as_deref(),
            _ => None,
        }
    }

    pub fn whole(&self, name: &str, row: usize) -> Option<i64> {
        match self.column(name)? {
            ColumnValues::Whole(values) => *values.get(row)?,
            _ => None,
        }
    }

    pub fn real(&self, name: &str, row: usize) -> Option<f64> {
        match self.column(name)? {
            ColumnValues::Real(values) => *values.get(row)?,
            _ => None,
        }
    }
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
