//! A child of the same program that does one thing, and the lines that are exchanged with it.
//!
//! ```text
//!  caller ──── stdin ────► {spec}    go                     its end: "stop", or the caller is gone
//!         ◄─── stdout ───           {"ready": ..}    {"done": ..}
//!         ◄─── stderr ───  one message, and exit code 2 (bad spec) or 3 (the system refused)
//! ```
//!
//! The child asks for SIGKILL when its parent ends (prctl(2), PR_SET_PDEATHSIG). The kernel sends that when the *thread*
//! that started it ends, so a handle stays on its thread: it is not `Send`.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

mod ours;
mod theirs;

pub(crate) use ours::Child;
pub(crate) use theirs::Conversation;
pub use theirs::ServeError;

/// Why a child did not do what it was started for.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("cannot start {} as a child: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("{reason}")]
    BadSpec { reason: String },
    #[error("{reason}")]
    Refused { reason: String },
    #[error("the {what} ended before it was done ({status}){}{message}", if message.is_empty() { "" } else { ": " })]
    Ended {
        what: &'static str,
        status: ExitStatus,
        message: String,
    },
    #[error(
        "the {what} answered with something else than expected ({source}): is its program another version of nearfar?"
    )]
    Nonsense {
        what: &'static str,
        /// Where the answer stops making sense.
        source: serde_json::Error,
    },
    #[error("the conversation with the {what} failed: {source}")]
    Pipe {
        what: &'static str,
        source: io::Error,
    },
    #[error("the {what} was cancelled")]
    Cancelled { what: &'static str },
}

/// The first line of a child: it is prepared.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReadyLine<T> {
    pub(crate) ready: T,
}

/// The last line of a child.
#[derive(Serialize, Deserialize)]
pub(crate) struct DoneLine<T> {
    pub(crate) done: T,
}
