//! A run with everything that belongs to it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::StoreError;
use crate::run::{Detail, Run, RunId, Sample};
use crate::store::Store;

/// A whole run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Whole {
    /// What lists show of it.
    #[serde(flatten)]
    pub run: Run,
    /// Parameters, plan, seed and warnings.
    #[serde(flatten)]
    pub detail: Detail,
    /// The machine as it was stored.
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
