//! What keeps a whole change set from starting or ending; what goes wrong with one change is an
//! [`Outcome`](crate::Outcome) instead.

use std::io;
use std::path::PathBuf;

use nearfar_proc::error_text;

use crate::change_set_id::ChangeSetId;
use crate::check::PlanError;
use crate::cpuset_memory::CpusetMemoryError;
use crate::export::UnitBindingError;
use crate::state::StateError;
use crate::task_memory::MoveRequestError;

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The plan itself is at fault.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The tree cannot be opened.
    #[error("cannot open {}: {}", root.display(), error_text(error))]
    Root {
        root: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    CpusetMemory(#[from] CpusetMemoryError),
    #[error(transparent)]
    UnitBinding(#[from] UnitBindingError),
    #[error(transparent)]
    Memory(#[from] MoveRequestError),
    #[error(transparent)]
    State(#[from] StateError),
    /// The journal could not be written; nothing was changed.
    #[error("cannot write the journal {file}: {reason}; nothing was changed")]
    Journal { file: String, reason: String },
    /// The journal cannot be read.
    #[error("cannot read the journal {file}: {reason}")]
    Unreadable { file: String, reason: String },
    /// A journal holds a line that nearfar did not write, or that was changed since.
    #[error("journal {file}, line {line}: {reason}; rollback cannot trust this change set")]
    Corrupt {
        file: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with the line.
        reason: String,
    },
    /// An earlier change set was killed and has not been rolled back.
    #[error("change set {run} was interrupted before it ended")]
    Unfinished { run: ChangeSetId },
    /// There is no such run.
    #[error("there is no change set {run} in {place}")]
    NoSuchChangeSet { run: ChangeSetId, place: String },
    /// There is none with this label.
    #[error("no change set in {place} has the label {label:?}; {known}")]
    NoSuchLabel {
        label: String,
        place: String,
        /// What labels there are.
        known: String,
    },
    /// Another process changes or undoes something under this label.
    #[error("another step of {label} still runs here")]
    LabelInUse { label: String },
}
