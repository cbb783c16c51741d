//! Machines: a run's whole [`Machine`], compressed, and kept once for all runs that have the same.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use nearfar_machine::Machine;
use rusqlite::{OptionalExtension as _, Transaction, params};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Store;
use crate::error::StoreError;
use crate::run::RunId;

/// The most that a machine may inflate to, in bytes: what a snapshot's limit is.
const MOST_INFLATED: u64 = 1 << 30;

impl Store {
    /// The machine that a run was made on.
    ///
    /// # Errors
    /// No such run; a damaged machine, or one that a newer nearfar described.
    pub fn machine(&self, run: RunId) -> Result<Machine, StoreError> {
        serde_json::from_value(self.machine_json(run)?)
            .map_err(|error| self.damaged(machine_of(run), error))
    }

    /// The same as it was stored, whatever this nearfar makes of it.
    ///
    /// # Errors
    /// No such run, or a damaged machine.
    pub fn machine_json(&self, run: RunId) -> Result<Value, StoreError> {
        let sql =
            "SELECT json_zlib FROM machine WHERE id = (SELECT machine FROM run WHERE id = ?1)";
        let found = self
            .connection
            .query_row(sql, [run.0], |row| row.get::<_, Vec<u8>>(0))
            .optional();
        let compressed = found.map_err(self.sqlite())?;
        let compressed = compressed.ok_or_else(|| StoreError::NoSuchRun {
            path: self.path.clone(),
            run,
        })?;
        let mut text = Vec::new();
        let inflated = ZlibDecoder::new(&compressed[..])
            .take(MOST_INFLATED)
            .read_to_end(&mut text);
        inflated.map_err(|error| self.damaged(machine_of(run), error))?;
        serde_json::from_slice(&text).map_err(|error| self.damaged(machine_of(run), error))
    }
}

fn machine_of(run: RunId) -> String {
    format!("the machine of run {run}")
}

/// The row of a machine, which is added where it is not there yet. `text` is its JSON.
pub(super) fn keep(transaction: &Transaction<'_>, text: &[u8]) -> rusqlite::Result<i64> {
    let digest = Sha256::digest(text);
    let find = "SELECT id FROM machine WHERE sha256 = ?1";
    if let Some(id) = transaction
        .query_row(find, [digest.as_slice()], |row| row.get(0))
        .optional()?
    {
        return Ok(id);
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let compressed = encoder.write_all(text).and_then(|()| encoder.finish());
    let compressed =
        compressed.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let add = "INSERT INTO machine (sha256, json_zlib) VALUES (?1, ?2)";
    transaction.execute(add, params![digest.as_slice(), compressed])?;
    Ok(transaction.last_insert_rowid())
}
