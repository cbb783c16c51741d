//! The journals in the state directory.

use std::fs::File;
use std::io;

use nearfar_lease::StateDir;
use nearfar_proc::error_text;
use rustix::fs::OFlags;

use crate::error::ApplyError;
use crate::run_id::RunId;

/// The journals of a state directory.
pub(crate) trait RunFiles {
    /// The numbers of all runs, oldest first.
    fn runs(&self) -> Result<Vec<RunId>, ApplyError>;

    /// The path of a run's journal, for messages.
    fn journal_place(&self, run: RunId) -> String;

    /// Creates the journal of a new run. Not on disk until [`StateDir::sync`].
    fn create(&self, run: RunId) -> io::Result<File>;

    /// Takes back a journal that could not be begun.
    fn remove(&self, run: RunId) -> io::Result<()>;

    fn open_journal(&self, run: RunId, to_append: bool) -> io::Result<File>;
}

impl RunFiles for StateDir {
    fn runs(&self) -> Result<Vec<RunId>, ApplyError> {
        let names = self.names();
        let names = names.map_err(|error| ApplyError::Unreadable {
            file: self.place.clone(),
            because: error_text(&error),
        })?;
        let mut runs: Vec<RunId> = names.iter().filter_map(|name| run_of(name)).collect();
        runs.sort_unstable();
        Ok(runs)
    }

    fn journal_place(&self, run: RunId) -> String {
        format!("{}/{}", self.place, file_of(run))
    }

    fn create(&self, run: RunId) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.open_readable_file(&file_of(run), flags)
    }

    fn remove(&self, run: RunId) -> io::Result<()> {
        self.remove_file(&file_of(run))
    }

    fn open_journal(&self, run: RunId, to_append: bool) -> io::Result<File> {
        let flags = if to_append {
            OFlags::RDWR | OFlags::APPEND
        } else {
            OFlags::RDONLY
        };
        self.open_file(&file_of(run), flags)
    }
}

fn file_of(run: RunId) -> String {
    format!("run-{run}.journal")
}

fn run_of(name: &str) -> Option<RunId> {
    let digits = name.strip_prefix("run-")?.strip_suffix(".journal")?;
    let run = RunId(digits.parse().ok()?);
    (file_of(run) == name).then_some(run)
}
