//! The file that runs are kept in.
//!
//! ```text
//!  machine (sha256, zlib)  ◄──  run  ──►  detail (parameters, plan, seed, warnings: not read by lists)
//!                                └────►  sample, sample, ... (run, number)
//! ```
//!
//! Every sample is a transaction of its own and on disk when [`Store::add_sample`] returns (`synchronous=FULL`), so a
//! kill loses nothing that was stored, and neither does a power cut on a disk that keeps its word.

mod draft;
mod machines;
mod open;
mod read;
mod remove;
mod schema;
mod shared;
mod write;

use std::path::{Path, PathBuf};

use rusqlite::Connection;

pub use open::Journal;
pub(crate) use read::by_uid;
pub use remove::Removed;
pub(crate) use schema::RENAME_PROBE_FACTORS;
pub(crate) use write::{Row, insert};

use crate::error::StoreError;
use crate::host::{Host, Owner};

#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    journal: Journal,
    /// This system and this process, looked at once: a list asks for each run whether its process is alive.
    here: Host,
    us: Owner,
}

impl Store {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the file keeps what is being written; its words are a remark for the user where it is not the usual way.
    pub fn journal(&self) -> Journal {
        self.journal
    }

    fn sqlite(&self) -> impl Fn(rusqlite::Error) -> StoreError + use<> {
        at(&self.path)
    }

    fn damaged(&self, what: impl Into<String>, reason: impl ToString) -> StoreError {
        StoreError::Damaged {
            path: self.path.clone(),
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

/// An answer of SQLite about this file as our error.
fn at(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::ReadOnly) => StoreError::ReadOnly { path: path.clone() },
        _ => StoreError::Sqlite {
            path: path.clone(),
            error,
        },
    }
}

/// Where runs are kept unless the user says otherwise: `$XDG_DATA_HOME/nearfar/runs.db`, else
/// `~/.local/share/nearfar/runs.db` (XDG Base Directory Specification: a relative XDG_DATA_HOME is ignored).
///
/// # Errors
/// [`StoreError::NoPlace`] when neither variable is set.
pub fn default_path() -> Result<PathBuf, StoreError> {
    let directory = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let data = directory("XDG_DATA_HOME").or_else(|| Some(directory("HOME")?.join(".local/share")));
    Ok(data.ok_or(StoreError::NoPlace)?.join("nearfar/runs.db"))
}
