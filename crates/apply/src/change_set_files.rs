//! The journals in the state directory.

use std::fs::File;
use std::io;

use nearfar_lease::StateDir;
use nearfar_proc::error_text;
use rustix::fs::OFlags;

use crate::change_set_id::ChangeSetId;
use crate::error::ApplyError;

/// The journals of a state directory.
pub(crate) trait ChangeSetFiles {
    /// The numbers of all change sets, oldest first.
    fn runs(&self) -> Result<Vec<ChangeSetId>, ApplyError>;

    /// The path of a change set's journal, for messages.
    fn journal_place(&self, run: ChangeSetId) -> String;

    /// Creates the journal of a new change set. Not on disk until [`StateDir::sync`].
    fn create(&self, run: ChangeSetId) -> io::Result<File>;

    /// Takes back a journal that could not be begun.
    fn remove(&self, run: ChangeSetId) -> io::Result<()>;

    fn open_journal(&self, run: ChangeSetId, to_append: bool) -> io::Result<File>;
}

impl ChangeSetFiles for StateDir {
    fn runs(&self) -> Result<Vec<ChangeSetId>, ApplyError> {
        let names = self.names();
        let names = names.map_err(|error| ApplyError::Unreadable {
            file: self.place.clone(),
            because: error_text(&error),
        })?;
        let mut runs: Vec<ChangeSetId> = names.iter().filter_map(|name| run_of(name)).collect();
        runs.sort_unstable();
        Ok(runs)
    }

    fn journal_place(&self, run: ChangeSetId) -> String {
        format!("{}/{}", self.place, file_of(run))
    }

    fn create(&self, run: ChangeSetId) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.open_readable_file(&file_of(run), flags)
    }

    fn remove(&self, run: ChangeSetId) -> io::Result<()> {
        self.remove_file(&file_of(run))
    }

    fn open_journal(&self, run: ChangeSetId, to_append: bool) -> io::Result<File> {
        let flags = if to_append {
            OFlags::RDWR | OFlags::APPEND
        } else {
            OFlags::RDONLY
        };
        self.open_file(&file_of(run), flags)
    }
}

fn file_of(run: ChangeSetId) -> String {
    format!("run-{run}.journal")
}

fn run_of(name: &str) -> Option<ChangeSetId> {
    let digits = name.strip_prefix("run-")?.strip_suffix(".journal")?;
    let run = ChangeSetId(digits.parse().ok()?);
    (file_of(run) == name).then_some(run)
}
