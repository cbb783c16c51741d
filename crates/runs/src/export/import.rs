//! Runs that were exported as JSON elsewhere, in a guest for example, come into this store.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Whole;
use crate::error::StoreError;
use crate::run::{Run, RunId, Sample};
use crate::store::{Store, by_uid, insert};

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

/// Why nothing of a file was imported.
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
    /// Adds the runs of an export, each under a new number, all of them or none. Those that are here already, by their uid,
    /// are left alone.
    ///
    /// # Errors
    /// When the text is no export, a run contradicts itself, or the store refuses.
    pub fn import(&mut self, json: &[u8]) -> Result<Imported, ImportError> {
        let Schema { schema } = serde_json::from_slice(json)?;
        if schema.as_deref() != Some(SCHEMA) {
            return Err(ImportError::OtherSchema { found: schema.unwrap_or_else(|| "no schema".to_owned()) });
        }
        let Exported { runs } = serde_json::from_slice(json)?;
        let mut names = BTreeSet::new();
        for Whole { run, taken, .. } in &runs {
            let contradicts = |what| ImportError::Contradicts { uid: run.uid.clone(), what };
            check(&run.uid, taken).map_err(contradicts)?;
            if !names.insert(run.uid.as_str()) {
                return Err(contradicts("it is there twice".to_owned()));
            }
        }
        let imported = self.write(|transaction| {
            let mut imported = Imported::default();
            for whole in &runs {
                match by_uid(transaction, &whole.run.uid)? {
                    Some(here) => imported.already.push(here),
                    None => {
                        let machine = whole.machine.to_string();
                        let run = counted_anew(whole);
                        imported.runs.push(insert(transaction, &run, &whole.detail, machine.as_bytes(), &whole.taken)?);
                    }
                }
            }
            Ok(imported)
        });
        Ok(imported?)
    }
}

/// What lists show of a run, counted rather than believed.
fn counted_anew(whole: &Whole) -> Run {
    let count = |is: fn(&&Sample) -> bool| whole.taken.iter().filter(is).count() as u64;
    Run {
        samples: whole.taken.len() as u64,
        cells: whole.detail.plan.len() as u64,
        failed: count(|sample| sample.failed.is_some()),
        doubtful: count(|sample| !sample.doubts.is_empty()),
        ..whole.run.clone()
    }
}

fn check(uid: &str, taken: &[Sample]) -> Result<(), String> {
    let well_named = uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !well_named {
        return Err("its uid is not 32 hexadecimal digits".to_owned());
    }
    let mut numbers: BTreeMap<u64, &Sample> = BTreeMap::new();
    for sample in taken {
        if numbers.insert(sample.number, sample).is_some() {
            return Err(format!("it has two samples {}", sample.number));
        }
        if sample.seconds.is_some() == sample.failed.is_some() {
            return Err(format!("sample {} both failed and did not", sample.number));
        }
        if sample.round == 0 {
            return Err(format!("sample {} is of round 0: they are counted from 1", sample.number));
        }
    }
    let contiguous = numbers.keys().copied().eq(1..=numbers.len() as u64);
    if contiguous { Ok(()) } else { Err("its samples are not numbered from 1 without a gap".to_owned()) }
}
