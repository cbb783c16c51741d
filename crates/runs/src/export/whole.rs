//! A run with everything that belongs to it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::StoreError;
use crate::run::{Detail, Run, RunId, Sample};
use crate::store::Store;

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
