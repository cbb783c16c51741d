//! The size limit of the cache: `limit.json` in its folder.

use std::fs;
use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use super::{Cache, CacheLock, StoredError, read_small};
use crate::error::LabError;

/// The limit of a cache without `limit.json`.
pub const DEFAULT_LIMIT_BYTES: u64 = 8 << 30;

const NAME: &str = "limit.json";

/// The version of the file that this nearfar reads and writes.
const FORMAT: u64 = 1;

/// The file that nearfar writes has 50 bytes.
const MAX_FILE_BYTES: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct LimitFile {
    format: u64,
    bytes: u64,
}

/// Reads the content of `limit.json`: the limit in bytes.
///
/// # Errors
/// What is wrong with it.
pub fn parse_limit(bytes: &[u8]) -> Result<u64, StoredError> {
    let LimitFile { format, bytes } = serde_json::from_slice(bytes)?;
    match format {
        FORMAT => Ok(bytes),
        _ => Err(StoredError::Format(format)),
    }
}

impl Cache {
    /// The limit in bytes: what `limit.json` says, or [`DEFAULT_LIMIT_BYTES`] without that file.
    ///
    /// # Errors
    /// [`LabError::Content`] when the file is damaged or not a regular file, [`LabError::System`] when it cannot be read.
    pub fn limit(&self) -> Result<u64, LabError> {
        let path = self.root().join(NAME);
        let problem = match read_small(&path, MAX_FILE_BYTES) {
            Ok(bytes) => match parse_limit(&bytes) {
                Ok(limit) => return Ok(limit),
                Err(problem) => problem.to_string(),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(DEFAULT_LIMIT_BYTES),
            Err(error) if error.kind() == ErrorKind::InvalidData => error.to_string(),
            Err(error) => {
                return Err(LabError::system(
                    format!("cannot read {}", path.display()),
                    error,
                ));
            }
        };
        Err(LabError::Content { path, problem })
    }

    /// [`Cache::limit`], or the default with a warning when the limit cannot be read.
    pub fn limit_or_default(&self) -> (u64, Option<String>) {
        match self.limit() {
            Ok(limit) => (limit, None),
            Err(error) => (
                DEFAULT_LIMIT_BYTES,
                Some(format!("the default limit applies: {error}")),
            ),
        }
    }

    /// [`CacheLock::set_limit`], waiting for the lock.
    pub fn set_limit(&self, bytes: u64) -> Result<(), LabError> {
        self.lock(&mut || {})?.set_limit(bytes)
    }
}

impl CacheLock<'_> {
    /// Replaces the limit; removes nothing. The file is written in a workshop and renamed, so no reader finds half of it.
    pub fn set_limit(&self, bytes: u64) -> Result<(), LabError> {
        let place = self.cache.root.join(NAME);
        let workshop = self.workshop()?;
        let made = workshop.path().join(NAME);
        let text = serde_json::to_vec(&LimitFile {
            format: FORMAT,
            bytes,
        })
        .unwrap_or_default();
        fs::write(&made, text)
            .map_err(|error| LabError::system(format!("cannot write {}", made.display()), error))?;
        self.put(&made, &place)
    }
}
