//! Why a store could not be opened, read or written, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::metric::MetricError;
use crate::run::RunId;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "no place for stored runs: HOME and XDG_DATA_HOME are not set; name a file with --store FILE"
    )]
    NoPlace,
    #[error("{}: no runs are stored there", path.display())]
    Absent { path: PathBuf },
    #[error("cannot {doing} {}: {error}", path.display())]
    File {
        /// What was tried: "read", "create the directory".
        doing: &'static str,
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{} is {what}, not a store of runs; it was not touched. Name another file with --store", path.display())]
    Foreign { path: PathBuf, what: &'static str },
    #[error(
        "{} has layout {found}, and this nearfar ({}) knows up to {known}; use a newer nearfar, or another file with \
         --store", path.display(), env!("CARGO_PKG_VERSION")
    )]
    Newer {
        path: PathBuf,
        found: i64,
        /// The newest this program knows.
        known: i64,
    },
    #[error(
        "{} has the older layout {found} and cannot be written, so it cannot be upgraded; copy it to a place that \
         can be written and open the copy", path.display()
    )]
    OlderReadOnly { path: PathBuf, found: i64 },
    #[error("{} cannot be written; name another file with --store", path.display())]
    ReadOnly { path: PathBuf },
    #[error("{} holds no run {run}", path.display())]
    NoSuchRun {
        path: PathBuf,
        /// The number asked for.
        run: RunId,
    },
    #[error("run {run} is being carried out by process {pid}; interrupt that first")]
    StillRunning { run: RunId, pid: i32 },
    #[error("run {run} {why}, so no sample can be added to it by this process")]
    NotOurs { run: RunId, why: String },
    #[error("{}: {what} is damaged ({reason}); other runs may still be readable", path.display())]
    Damaged {
        path: PathBuf,
        /// Which part.
        what: String,
        reason: String,
    },
    #[error(
        "{} is damaged: it has {found} of its {should} bytes, and was not touched; copy it again from where it came \
         from, or name another file with --store", path.display()
    )]
    CutOff {
        path: PathBuf,
        found: u64,
        should: u64,
    },
    #[error("cannot store the experiment {experiment}: {error}")]
    Metrics {
        experiment: String,
        #[source]
        error: MetricError,
    },
    #[error("{}: {}{}", path.display(), error, advice(error))]
    Sqlite {
        path: PathBuf,
        error: rusqlite::Error,
    },
}

impl StoreError {
    /// Whether the file is at fault and not the system: part of it is missing or makes no sense.
    pub fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match self {
            Self::Damaged { .. } | Self::CutOff { .. } => true,
            Self::Sqlite { error, .. } => {
                matches!(
                    error.sqlite_error_code(),
                    Some(DatabaseCorrupt | NotADatabase)
                )
            }
            _ => false,
        }
    }
}

/// What to do about an answer of SQLite.
fn advice(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "; another program has kept it locked for half a minute: let that end first"
        }
        Some(ErrorCode::DiskFull) => "; make room on its disk, what was stored before is unharmed",
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "; the file is damaged: `sqlite3 FILE .recover` saves what can be read, or name another file with --store"
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "; may this user read and write it and its directory?"
        }
        _ => "",
    }
}
