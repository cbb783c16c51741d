//! Runs for other programs.
//!
//! ```text
//!                 ┌─► Table: a row a sample, a column a factor, a metric, a scalar of a sample's detail ─► CSV, Parquet
//!  Store ─► Whole ┤
//!                 ├─► JSON with everything, the machine as well ─► Store::import elsewhere
//!                 └─► HyperfineExport: the times of each cell, in hyperfine's layout
//! ```

mod hyperfine;
mod parquet;
mod table;

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::foreign::{self, ForeignError};
use crate::metric::{MetricError, Values, check_metrics, check_values};
use crate::run::{Detail, Run, RunId, RunState, Sample};
use crate::store::{RENAME_PROBE_FACTORS, Row, Store, StoreError, by_uid, insert};

pub use hyperfine::{HyperfineExport, NoTimes};
pub use parquet::{DEFINITIONS, ParquetWriter, read_parquet, write_parquet};
pub use table::{Column, ColumnValues, Renamed, Table, TooWide, is_column_of_run, write_csv};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Whole {
    #[serde(flatten)]
    pub run: Run,
    #[serde(flatten)]
    pub detail: Detail,
    pub machine: Value,
    /// The samples, in the order they were taken.
    pub taken: Vec<Sample>,
}

impl Store {
    /// A run with everything that belongs to it.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`]; a damaged part.
    pub fn whole(&self, run: RunId) -> Result<Whole, StoreError> {
        Ok(Whole {
            run: self.run(run)?,
            detail: self.detail(run)?,
            machine: self.machine_json(run)?,
            taken: self.samples(run)?,
        })
    }
}

/// The shape of the JSON that is read and written: `"schema": "runs-export/2"`.
pub const SCHEMA: &str = "runs-export/2";

#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Imported {
    /// The numbers the runs have in this store.
    pub runs: Vec<RunId>,
    /// Runs that this store had already, by the numbers they have here.
    pub already: Vec<RunId>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(
        "it holds neither exported runs (`nearfar runs export --format json`) nor results of hyperfine, fio, perf stat or mlc: {0}"
    )]
    NotAnExport(serde_json::Error),
    #[error("cannot read its exported runs: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error("it is UTF-16 text, as PowerShell writes files: iconv -f UTF-16 -t UTF-8 FILE")]
    Utf16,
    #[error(
        "it holds {found}, not {SCHEMA}; `nearfar runs export --format json` writes what is read here"
    )]
    OtherSchema { found: String },
    #[error("run {uid} contradicts itself: {what}; nothing was imported")]
    Contradicts { uid: String, what: Contradiction },
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What in an exported run does not fit the rest of it. Samples are named by their number.
#[derive(Debug, thiserror::Error)]
pub enum Contradiction {
    #[error("it is there twice")]
    Repeated,
    #[error("its uid is not 32 hexadecimal digits")]
    Uid,
    #[error("its plan has the cell {0} twice")]
    RepeatedCell(String),
    #[error("it varies {0} twice")]
    RepeatedFactor(String),
    #[error(transparent)]
    Metrics(#[from] MetricError),
    #[error("it has two samples {0}")]
    RepeatedSample(u64),
    #[error("the values of sample {0}: {1}")]
    UnreadableValues(u64, serde_json::Error),
    #[error("sample {0}: {1}")]
    Values(u64, MetricError),
    #[error("sample {0} has both values and a failure")]
    FailedWithValues(u64),
    #[error("sample {0} is of round 0: rounds are counted from 1")]
    RoundZero(u64),
    #[error("its samples are not numbered from 1 without a gap")]
    Gap,
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    schema: Option<String>,
}

#[derive(Deserialize)]
struct Exported<T> {
    runs: Vec<T>,
}

/// The part of a run that is neither [`Run`] nor [`Detail`].
#[derive(Deserialize)]
struct Rest {
    machine: Value,
    /// Not as [`Sample`]s: those of a run take ten times the room of their text.
    taken: Vec<Row>,
}

/// The same part of each run. Read part by part, as a flattened structure would hold everything twice.
fn parts<T: DeserializeOwned>(json: &[u8]) -> Result<Vec<T>, serde_json::Error> {
    serde_json::from_slice(json).map(|exported: Exported<T>| exported.runs)
}

impl Store {
    /// Adds the runs of an export, or results of hyperfine, fio, perf stat or mlc, each under a new number, all of them or none. Those that
    /// are here already, by their uid, are left alone. One that is being carried out is an interrupted one here.
    ///
    /// # Errors
    /// When the text is no export, a run contradicts itself, or the store refuses.
    pub fn import(&mut self, json: &[u8]) -> Result<Imported, ImportError> {
        if [[0xff, 0xfe], [0xfe, 0xff]]
            .iter()
            .any(|mark| json.starts_with(mark))
        {
            return Err(ImportError::Utf16);
        }
        let own = serde_json::from_slice(json);
        let foreign = match own {
            Ok(Schema { schema: Some(_) }) => None,
            _ => foreign::export_of(json)?,
        };
        let (json, Schema { schema }) = match &foreign {
            Some(export) => (export.as_slice(), serde_json::from_slice(export)?),
            None if foreign::is_export(json) => (json, own?),
            None => (json, own.map_err(ImportError::NotAnExport)?),
        };
        if schema.as_deref() != Some(SCHEMA) {
            return Err(ImportError::OtherSchema {
                found: schema.unwrap_or_else(|| "no schema".to_owned()),
            });
        }
        let (runs, details, rests) = (
            parts::<Run>(json)?,
            parts::<Detail>(json)?,
            parts::<Rest>(json)?,
        );
        let mut names = BTreeSet::new();
        for ((run, detail), rest) in runs.iter().zip(&details).zip(&rests) {
            let contradicts = |what| ImportError::Contradicts {
                uid: run.uid.clone(),
                what,
            };
            check(run, detail, &rest.taken).map_err(contradicts)?;
            if !names.insert(run.uid.as_str()) {
                return Err(contradicts(Contradiction::Repeated));
            }
        }
        let imported = self.write(|transaction| {
            let mut imported = Imported::default();
            for ((run, detail), Rest { machine, taken }) in runs.iter().zip(&details).zip(&rests) {
                match by_uid(transaction, &run.uid)? {
                    Some(here) => imported.already.push(here),
                    None => {
                        let (run, machine) = (as_a_copy(run, detail, taken), machine.to_string());
                        imported.runs.push(insert(
                            transaction,
                            &run,
                            detail,
                            machine.as_bytes(),
                            taken,
                        )?);
                    }
                }
            }
            transaction.execute_batch(RENAME_PROBE_FACTORS)?;
            Ok(imported)
        });
        Ok(imported?)
    }
}

/// A run as it is in another store than its own: what lists show is counted rather than believed, and no process adds to it,
/// whatever becomes of the one that carries it out there.
fn as_a_copy(run: &Run, detail: &Detail, taken: &[Row]) -> Run {
    let state = match run.state {
        RunState::Running | RunState::OutOfSight => RunState::Interrupted,
        ended => ended,
    };
    Run {
        state,
        samples: taken.len() as u64,
        cells: detail.plan.len() as u64,
        failed: taken.iter().filter(|row| row.failed.is_some()).count() as u64,
        with_warnings: taken.iter().filter(|row| row.has_warnings).count() as u64,
        ..run.clone()
    }
}

fn check(run: &Run, detail: &Detail, taken: &[Row]) -> Result<(), Contradiction> {
    let well_named = run.uid.len() == 32 && run.uid.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !well_named {
        return Err(Contradiction::Uid);
    }
    let mut planned = BTreeSet::new();
    if let Some(cell) = detail.plan.iter().find(|&cell| !planned.insert(cell)) {
        return Err(Contradiction::RepeatedCell(cell.to_string()));
    }
    let mut varied = BTreeSet::new();
    if let Some(factor) = detail
        .factors
        .iter()
        .find(|factor| !varied.insert(&factor.name))
    {
        return Err(Contradiction::RepeatedFactor(factor.name.clone()));
    }
    check_metrics(&detail.metrics)?;
    let mut numbers = BTreeSet::new();
    for row in taken {
        if !numbers.insert(row.number) {
            return Err(Contradiction::RepeatedSample(row.number));
        }
        let values: Values = serde_json::from_str(&row.values)
            .map_err(|error| Contradiction::UnreadableValues(row.number, error))?;
        match (values.is_empty(), &row.failed) {
            (false, Some(_)) => {
                return Err(Contradiction::FailedWithValues(row.number));
            }
            (true, Some(_)) => {}
            (_, None) => check_values(&detail.metrics, &values)
                .map_err(|error| Contradiction::Values(row.number, error))?,
        }
        if row.round == 0 {
            return Err(Contradiction::RoundZero(row.number));
        }
    }
    let contiguous = numbers.into_iter().eq(1..=taken.len() as u64);
    if contiguous {
        Ok(())
    } else {
        Err(Contradiction::Gap)
    }
}
