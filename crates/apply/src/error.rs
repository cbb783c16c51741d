//! What keeps a whole change set from starting or ending; what goes wrong with one change is an
//! [`Outcome`](crate::Outcome) instead.

use std::io;
use std::path::PathBuf;

use nearfar_lease::StateError;
use nearfar_proc::error_text;

use crate::change_set_id::ChangeSetId;
use crate::check::PlanError;

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The plan itself is at fault.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The tree cannot be opened.
    #[error("cannot open {}: {}", root.display(), error_text(error))]
    Root {
        /// The directory given.
        root: PathBuf,
        /// The system's answer.
        #[source]
        error: io::Error,
    },
    /// The directory for the journal cannot be used.
    #[error("cannot use the state directory {place}: {because}")]
    StateDir {
        /// The directory.
        place: String,
        /// Why not, and what to do.
        because: String,
    },
    /// Another nearfar is changing this system.
    #[error(
        "{holder} is changing this system now ({lock} is locked): wait for it, or say how long to wait"
    )]
    Locked {
        /// "process 4711", where the lock tells.
        holder: String,
        /// The lock file.
        lock: String,
    },
    /// The journal could not be written; nothing was changed.
    #[error("cannot write the journal {file}: {because}; nothing was changed")]
    Journal {
        /// The journal of the change set.
        file: String,
        /// The system's answer.
        because: String,
    },
    /// The journal cannot be read.
    #[error("cannot read the journal {file}: {because}")]
    Unreadable {
        /// The journal of the change set.
        file: String,
        /// The system's answer.
        because: String,
    },
    /// A journal holds a line that nearfar did not write, or that was changed since.
    #[error("journal {file}, line {line}: {because}; rollback cannot trust this change set")]
    Corrupt {
        /// The journal of the change set.
        file: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with the line.
        because: String,
    },
    /// An earlier change set was killed and has not been rolled back.
    #[error(
        "change set {run} was interrupted before it ended: undo it with `nearfar rollback` first, or go on top of it with \
         --force (its old values are kept, and a later rollback undoes both change sets in turn)"
    )]
    Unfinished {
        /// The interrupted change set.
        run: ChangeSetId,
    },
    /// There is no such run.
    #[error("there is no change set {run} in {place}: `nearfar history` lists them")]
    NoSuchChangeSet {
        /// The change set asked for.
        run: ChangeSetId,
        /// The state directory.
        place: String,
    },
    /// Interrupted while waiting for the lock.
    #[error("interrupted before anything was changed")]
    Cancelled,
}

impl From<StateError> for ApplyError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Directory { place, because } => Self::StateDir { place, because },
            StateError::Locked { holder, lock } => Self::Locked { holder, lock },
            StateError::Cancelled => Self::Cancelled,
        }
    }
}
