//! Why a source could not be read: what was tried, on what, why it failed, what to do next.

use std::io;

use nearfar_machine::alternatives;

use crate::fake::FakeError;
use crate::snapshot::SnapshotError;
use crate::sysfs::SysfsError;
use crate::tree::Unreadable;

/// A source that could not be turned into a machine.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// `--root` and `--source` were both given.
    #[error(
        "both a root directory ({root}) and a source ({source_name}) were given: they are two machines; give one"
    )]
    TwoMachines {
        /// The directory.
        root: String,
        source_name: String,
    },
    /// The source is neither a file nor a name nor a synthetic string.
    #[error(
        "{source_name:?} is no file, no machine of the gallery and no synthetic string; \
         {}; a synthetic string looks like \"node:2 core:4 pu:2 distance:10,20\"",
        alternatives(source_name, gallery)
    )]
    NoSuchSource {
        /// What was asked for, cut to a readable length.
        source_name: String,
        gallery: Vec<&'static str>,
    },
    /// The file is there and cannot be read.
    #[error("cannot read {place}: {reason}")]
    Unreadable {
        /// The file.
        place: String,
        /// What the system says.
        #[source]
        reason: io::Error,
    },
    /// The file is larger than any description of a machine.
    #[error(
        "{place} holds more than {limit_mib} MiB; {kind} is never that large: is it the right file?"
    )]
    TooLarge {
        /// The file.
        place: String,
        /// What it was taken for.
        kind: &'static str,
        limit_mib: u64,
    },
    /// The content is of no kind that nearfar reads.
    #[error("cannot recognise {place}: {looks_like}; {next}")]
    NotRecognised {
        /// The file.
        place: String,
        /// What its content looks like.
        looks_like: String,
        /// What to do about it.
        next: &'static str,
    },
    /// A text that is of a known kind and has a fault.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A snapshot with a fault.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The fake layout cannot be laid over this machine.
    #[error(transparent)]
    Fake(#[from] FakeError),
    /// The root directory cannot be opened.
    #[error(transparent)]
    Root(#[from] Unreadable),
    /// The live system or a tree cannot be read.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
}

/// A fault in a text source (numactl, hwloc XML, description file, synthetic string) that leaves no machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}; {next}", self.located())]
pub struct TextError {
    /// The file, or the synthetic string itself.
    pub place: String,
    /// The line, counted from 1, where the fault has one.
    pub line: Option<usize>,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub next: String,
}

impl TextError {
    pub(crate) fn new(
        place: &str,
        line: Option<usize>,
        problem: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self {
            place: place.to_owned(),
            line,
            problem: problem.into(),
            next: next.into(),
        }
    }

    fn located(&self) -> String {
        match self.line {
            Some(line) => format!("{}, line {line}", self.place),
            None => self.place.clone(),
        }
    }
}
