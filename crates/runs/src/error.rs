//! Why a store could not be opened, read or written, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::metric::MetricError;
use crate::run::RunId;

/// What can go wrong with a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Neither --store, NEARFAR_STORE, XDG_DATA_HOME nor HOME says where the store is.
    #[error(
        "no place for stored runs: HOME and XDG_DATA_HOME are not set; name a file with --store FILE"
    )]
    NoPlace,
    /// There is no such file.
    #[error("{}: no runs are stored there", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// The file or its directory cannot be reached.
    #[error("cannot {doing} {}: {error}", path.display())]
    File {
        /// What was tried: "read", "create the directory".
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        error: io::Error,
    },
    /// The file is something else.
    #[error("{} is {what}, not a store of runs; it was not touched. Name another file with --store", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A newer nearfar changed the file's layout.
    #[error(
        "{} has layout {found}, and this nearfar ({}) knows up to {known}; use a newer nearfar, or another file with \
         --store", path.display(), env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: i64,
        /// The newest this program knows.
        known: i64,
    },
    /// The file has an older layout and cannot be upgraded where it is.
    #[error(
        "{} has the older layout {found} and cannot be written, so it cannot be upgraded; copy it to a place that \
         can be written and open the copy", path.display()
    )]
    OlderReadOnly {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: i64,
    },
    /// The file can be read but not written.
    #[error("{} cannot be written; name another file with --store", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// There is no such run.
    #[error("{} holds no run {run}; `nearfar runs list` shows those it has", path.display())]
    NoSuchRun {
        /// The file.
        path: PathBuf,
        /// The number asked for.
        run: RunId,
    },
    /// The run is being carried out.
    #[error("run {run} is being carried out by process {pid}; interrupt that first")]
    StillRunning {
        /// The run.
        run: RunId,
        /// Whose it is.
        pid: i32,
    },
    /// The run is complete, or another process carries it out.
    #[error("run {run} {why}, so no sample can be added to it by this process")]
    NotOurs {
        /// The run.
        run: RunId,
        /// What stands in the way.
        why: String,
    },
    /// Something in the file does not read as it was written.
    #[error("{}: {what} is damaged ({reason}); other runs may still be readable, `nearfar runs export` saves them", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file ends before it should.
    #[error(
        "{} is damaged: it has {found} of its {should} bytes, and was not touched; copy it again from where it came \
         from, or name another file with --store", path.display()
    )]
    CutOff {
        /// The file.
        path: PathBuf,
        /// The bytes it has.
        found: u64,
        /// The bytes it says it has.
        should: u64,
    },
    /// An experiment declares metrics that cannot be stored.
    #[error("cannot store the experiment {experiment}: {error}")]
    Metrics {
        experiment: String,
        #[source]
        error: MetricError,
    },
    /// SQLite refused.
    #[error("{}: {}{}", path.display(), error, advice(error))]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Its answer.
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
