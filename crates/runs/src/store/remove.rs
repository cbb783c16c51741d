//! Removing runs.

use serde::Serialize;

use super::Store;
use crate::RunId;
use crate::error::StoreError;
use crate::run::{Run, RunState};

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Removed {
    pub runs: Vec<Run>,
    pub samples: u64,
    /// How many machines went that no other run was made on.
    pub machines: u64,
}

impl Store {
    /// Removes runs with their samples, and machines that no other run has: all of them or none.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`]; [`StoreError::StillRunning`]; SQLite's answer.
    pub fn remove(&mut self, runs: &[RunId]) -> Result<Removed, StoreError> {
        let mut wanted = runs.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let runs = wanted
            .iter()
            .map(|&run| self.run(run))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(running) = runs.iter().find(|run| run.state == RunState::Running) {
            return Err(StoreError::StillRunning {
                run: running.run,
                pid: running.owner.pid,
            });
        }
        let (samples, machines) = self.write(|transaction| {
            let mut samples = 0;
            for run in &runs {
                samples += transaction.execute("DELETE FROM sample WHERE run = ?1", [run.run.0])?;
                transaction.execute("DELETE FROM run WHERE id = ?1", [run.run.0])?;
            }
            let unused = "DELETE FROM machine WHERE id NOT IN (SELECT machine FROM run)";
            Ok((samples as u64, transaction.execute(unused, [])? as u64))
        })?;
        // Gives the room back to the file system, a page a row of its answer: all have to be fetched. Where that fails the file
        // merely stays larger.
        let _ = self
            .connection
            .pragma_query(None, "incremental_vacuum", |_| Ok(()));
        Ok(Removed {
            runs,
            samples,
            machines,
        })
    }
}
