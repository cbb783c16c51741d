//! Why a start of a guest failed, and whether it is tried again.

use std::time::Duration;

use thiserror::Error;

use super::last_words;
use crate::error::{BootProblem, LabError};
use crate::guest::Guest;
use crate::guest::crash::Crash;
use crate::guest::health::Unhealthy;

/// A failure by chance: the same start may succeed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BootFailure {
    /// QEMU ended, and the guest's console was empty.
    #[error("QEMU ended before its kernel printed anything")]
    Silent,
    /// It gets no further.
    #[error("it got no further: its CPUs slept or stalled, or it took too long")]
    Stuck,
    /// The guest's kernel crashed, and QEMU ended.
    #[error("{0}")]
    Crashed(Crash),
    /// It is up, and a part of it does not work.
    #[error("{0}")]
    Unhealthy(Unhealthy),
    /// A saved state cannot be loaded, or the guest does not get ready from there. Has the detail.
    #[error("the saved guest did not start: {0}")]
    NotLoaded(String),
}

impl BootFailure {
    /// A word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Stuck => "stuck",
            Self::Crashed(_) => "crashed",
            Self::Unhealthy(_) => "unhealthy",
            Self::NotLoaded(_) => "not-loaded",
        }
    }
}

/// Why an attempt gave no guest.
#[derive(Debug)]
pub(super) enum Ending {
    ByChance(BootFailure),
    /// QEMU ended.
    Ended,
    /// The boot timeout is over.
    Late,
    Cancelled,
    /// The system refused.
    Refused(LabError),
}

/// An attempt that did not give a guest.
pub(super) struct Failure {
    pub ending: Ending,
    /// The last words of QEMU and the console, and the bytes of the console.
    said: (String, u64),
}

impl Failure {
    pub fn of(ending: Ending, guest: &Guest) -> Self {
        let words = last_words(&guest.console, &guest.qemu_said);
        Self {
            ending,
            said: (words, guest.console.bytes()),
        }
    }

    pub fn by_chance(&self) -> Option<&BootFailure> {
        match &self.ending {
            Ending::ByChance(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the same guest may come up where it is not saved and does not start from a saved one.
    pub fn is_of_saving(&self) -> bool {
        matches!(
            self.by_chance(),
            Some(BootFailure::Unhealthy(_) | BootFailure::NotLoaded(_))
        )
    }

    /// The same failure while a saved state was loaded.
    pub fn while_loading(mut self) -> Self {
        let detail = match &self.ending {
            Ending::ByChance(BootFailure::NotLoaded(_)) => return self,
            Ending::ByChance(failure) => failure.to_string(),
            Ending::Ended => "it ended".to_owned(),
            Ending::Late | Ending::Cancelled | Ending::Refused(_) => return self,
        };
        self.ending = Ending::ByChance(BootFailure::NotLoaded(detail));
        self
    }

    pub fn error(self, attempts: usize, limit: Duration) -> LabError {
        let (console, console_bytes) = self.said;
        let problem = match self.ending {
            Ending::Refused(error) => return error,
            Ending::Cancelled => return LabError::Interrupted,
            Ending::Late => BootProblem::TimedOut {
                limit,
                console_bytes,
            },
            Ending::ByChance(failure) => BootProblem::Repeated { failure, attempts },
            Ending::Ended => BootProblem::Ended,
        };
        LabError::Boot { problem, console }
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Self {
            ending: Ending::Refused(error),
            said: (String::new(), 0),
        }
    }
}
