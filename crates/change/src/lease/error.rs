//! What keeps a lease from being taken, kept or undone.

use std::path::PathBuf;

use nearfar_proc::error_text;

use crate::state::StateError;

/// Why a temporary change was not made or not undone.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The directory cannot be used, or stays locked.
    #[error(transparent)]
    Directory(#[from] StateError),
    #[error("cannot open /: {}", error_text(.0))]
    Root(#[source] std::io::Error),
    /// Nowhere to keep a journal.
    #[error(
        "there is neither XDG_STATE_HOME nor a HOME to be entered: set one of them, so that a change can be undone after a crash"
    )]
    NoHome,
    /// Another lease holds the file.
    #[error("{} is held by process {pid} ({what}): wait for it or end it", path.display())]
    Held {
        path: PathBuf,
        /// The other lease's owner.
        pid: u32,
        /// What its lease is for.
        what: String,
    },
    /// The file is none that a lease may set, or it or the value is nothing that could be put back.
    #[error("cannot change {} for a while: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// The kernel took something else than what was written.
    #[error("{} says {reads:?} after {wrote:?} was written", path.display())]
    ReadBack {
        path: PathBuf,
        /// What was written.
        wrote: String,
        /// What it says.
        reads: String,
    },
    /// A resource could not be made.
    #[error("cannot {doing} {}: {error}", path.display())]
    Make {
        /// What was tried: "make the directory".
        doing: &'static str,
        /// What it is, or what it is made of.
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    /// A thread's mask could not be set.
    #[error("cannot confine thread {tid}: {reason}")]
    Affinity {
        /// The thread.
        tid: i32,
        reason: String,
    },
    /// The journal could not be written; what it was to announce was not done.
    #[error("cannot write {}: {reason}; nothing was changed", file.display())]
    Journal {
        /// The journal of the lease.
        file: PathBuf,
        reason: String,
    },
    /// A journal of a dead owner cannot be read.
    #[error(
        "cannot undo what {file} says: {reason}; look at it, put back what it names, and remove it"
    )]
    Unreadable {
        /// The journal.
        file: String,
        reason: String,
    },
    /// Something could not be put back; the next nearfar tries again.
    #[error("cannot put {subject} back: {reason}; the next nearfar will try again")]
    Undo {
        /// The file or the threads.
        subject: String,
        reason: String,
    },
}
