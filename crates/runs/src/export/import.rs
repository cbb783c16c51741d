//! Runs that were exported as JSON elsewhere, in a guest for example, come into this store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Whole;
use crate::error::StoreError;
use crate::run::{RunId, Sample};
use crate::store::Store;

/// The shape of the JSON that is read and written: `"schema": "runs-export/1"`.
pub const SCHEMA: &str = "runs-export/1";

/// What came of a file.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Imported {
    /// The numbers the runs have in this store.
    pub runs: Vec<RunId>,
    /// Runs that this store had already, by the numbers they have here.
    pub already: Vec<RunId>,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file is no export.
    #[error("it holds no exported runs: {0}; `nearfar runs export --format json` writes what is read here")]
    NotAnExport(#[from] serde_json::Error),
    /// It is JSON of another kind.
    #[error("it holds {found}, not {SCHEMA}; `nearfar runs export --format json` writes what is read here")]
    OtherSchema {
        /// What it says it is.
        found: String,
    },
    /// A run's parts do not fit each other.
    #[error("run {uid} contradicts itself: {what}; nothing was imported")]
    Contradicts {
        /// The run's name.
        uid: String,
        /// What does not fit.
        what: String,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    schema: Option<String>,
}

#[derive(Deserialize)]
struct Exported {
    runs: Vec<Whole>,
}

impl Store {
    /// Adds the runs of an export, each under a new number. Those that are here already, by their uid, are left alone.
    ///
    /// # Errors
    /// When the text is no export or a run contradicts itself: nothing is imported then. When the store refuses: the runs
    /// before that one are there.
    pub fn import(&mut self, json: &[u8]) -> Result<Imported, ImportError> {
        let Schema { schema } = serde_json::from_slice(json)?;
        if schema.as_deref() != Some(SCHEMA) {
            return Err(ImportError::OtherSchema { found: schema.unwrap_or_else(|| "no schema".to_owned()) });
        }
        let Exported { runs } = serde_json::from_slice(json)?;
        for run in &runs {
            check(run).map_err(|what| ImportError::Contradicts { uid: run.run.uid.clone(), what })?;
        }
        let mut imported = Imported::default();
        for whole in runs {
            match self.by_uid(&whole.run.uid)? {
                Some(here) => imported.already.push(here),
                None => {
                    // Counted anew rather than believed.
                    let mut run = whole.run;
                    run.samples = whole.taken.len() as u64;
                    run.cells = whole.detail.plan.len() as u64;
                    run.failed = whole.taken.iter().filter(|sample| sample.failed.is_some()).count() as u64;
                    run.doubtful = whole.taken.iter().filter(|sample| !sample.doubts.is_empty()).count() as u64;
                    let machine = whole.machine.to_string();
                    imported.runs.push(self.insert(&run, &whole.detail, machine.as_bytes(), &whole.taken)?);
                }
            }
        }
        Ok(imported)
    }
}

fn check(whole: &Whole) -> Result<(), String> {
    let well_named = whole.run.uid.len() == 32 && whole.run.uid.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !well_named {
        return Err("its uid is not 32 hexadecimal digits".to_owned());
    }
    let mut numbers: BTreeMap<u64, &Sample> = BTreeMap::new();
    for sample in &whole.taken {
        if numbers.insert(sample.number, sample).is_some() {
            return Err(format!("it has two samples {}", sample.number));
        }
        if sample.seconds.is_some() == sample.failed.is_some() {
            return Err(format!("sample {} both failed and did not", sample.number));
        }
    }
    let contiguous = numbers.keys().copied().eq(1..=numbers.len() as u64);
    if contiguous { Ok(()) } else { Err("its samples are not numbered from 1 without a gap".to_owned()) }
}
