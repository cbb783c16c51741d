//! The journals in the state directory: `change-N.journal`, in earlier versions `run-N.journal`.

use std::fs::File;
use std::io;

use nearfar_proc::error_text;
use rustix::fs::OFlags;

use crate::change_set_id::ChangeSetId;
use crate::error::ApplyError;
use crate::state::StateDir;

/// The journals of a state directory.
pub(crate) trait ChangeSetFiles {
    /// The numbers of all change sets, oldest first.
    fn change_sets(&self) -> Result<Vec<ChangeSetId>, ApplyError>;

    /// The path of a change set's journal, for messages.
    fn journal_place(&self, id: ChangeSetId) -> String;

    /// Creates the journal of a new change set. Not on disk until [`StateDir::sync`].
    fn create(&self, id: ChangeSetId) -> io::Result<File>;

    /// Takes back a journal that could not be begun.
    fn remove(&self, id: ChangeSetId) -> io::Result<()>;

    fn open_journal(&self, id: ChangeSetId, to_append: bool) -> io::Result<File>;
}

impl ChangeSetFiles for StateDir {
    fn change_sets(&self) -> Result<Vec<ChangeSetId>, ApplyError> {
        let names = self.names();
        let names = names.map_err(|error| ApplyError::Unreadable {
            file: self.place.clone(),
            reason: error_text(&error),
        })?;
        let mut ids: Vec<ChangeSetId> = names.iter().filter_map(|name| id_of(name)).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn journal_place(&self, id: ChangeSetId) -> String {
        let name = match self.names() {
            Ok(names) if names.contains(&earlier_file_of(id)) => earlier_file_of(id),
            _ => file_of(id),
        };
        format!("{}/{name}", self.place)
    }

    fn create(&self, id: ChangeSetId) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.open_readable_file(&file_of(id), flags)
    }

    fn remove(&self, id: ChangeSetId) -> io::Result<()> {
        self.remove_file(&file_of(id))
    }

    fn open_journal(&self, id: ChangeSetId, to_append: bool) -> io::Result<File> {
        let flags = if to_append {
            OFlags::RDWR | OFlags::APPEND
        } else {
            OFlags::RDONLY
        };
        match self.open_file(&file_of(id), flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.open_file(&earlier_file_of(id), flags)
            }
            opened => opened,
        }
    }
}

fn file_of(id: ChangeSetId) -> String {
    format!("change-{id}.journal")
}

fn earlier_file_of(id: ChangeSetId) -> String {
    format!("run-{id}.journal")
}

fn id_of(name: &str) -> Option<ChangeSetId> {
    let (_, digits) = name.strip_suffix(".journal")?.split_once('-')?;
    let id = ChangeSetId(digits.parse().ok()?);
    [file_of(id), earlier_file_of(id)]
        .iter()
        .any(|known| known == name)
        .then_some(id)
}
