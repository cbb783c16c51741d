//! What the readers of one tree find wrong with it, and which files they read instead of the usual ones, gathered from all
//! threads.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearfar_machine::{Known, Machine, Warning};

use crate::tree::{Directory, Reason, Tree, Unreadable};
use crate::value::ValueError;

/// How many warnings are kept: a tree in which every file is broken needs no line for each.
const MOST: usize = 200;

#[derive(Debug, Default)]
pub(crate) struct Notes {
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    kept: BTreeMap<String, String>,
    dropped: usize,
    read_instead: BTreeMap<String, String>,
}

impl Notes {
    /// Notes what is wrong with a place; only the first message about a place is kept.
    pub(crate) fn note(&self, place: impl Into<String>, message: impl Into<String>) {
        let mut found = self.found();
        let place = place.into();
        if found.kept.len() < MOST || found.kept.contains_key(&place) {
            found.kept.entry(place).or_insert_with(|| message.into());
        } else {
            found.dropped += 1;
        }
    }

    /// Notes that a value comes from another file than it usually does; both below the root.
    pub(crate) fn read_instead(&self, usual: impl Into<String>, read: impl Into<String>) {
        let (usual, read) = (usual.into(), read.into());
        if usual != read {
            let map = &mut self.found().read_instead;
            let read = map.get(&read).cloned().unwrap_or(read);
            map.insert(usual, read);
        }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        // A thread that panicked while noting left maps that are whole.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a file could not be read, unless it simply is not there.
    pub(crate) fn unless_absent(&self, error: Unreadable) {
        if error.reason != Reason::Absent {
            self.note(error.path, error.reason.to_string());
        }
    }

    /// What a parser made of a file; what it refuses is noted, and unknown for that reason.
    pub(crate) fn known<T>(
        &self,
        place: impl FnOnce() -> String,
        parsed: Result<T, ValueError>,
    ) -> Known<T> {
        match parsed {
            Ok(value) => Known::Yes(value),
            Err(error) => {
                let place = place();
                let because = format!("{place}: {error}");
                self.note(place, error.to_string());
                Known::no(because)
            }
        }
    }

    /// Gives the machine its warnings, by place, and the files that were read.
    pub(crate) fn finish(self, tree: &Tree, machine: &mut Machine) {
        let found = self
            .found
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut warnings: Vec<_> = found
            .kept
            .into_iter()
            .map(|(place, message)| Warning::new(place, message))
            .collect();
        if found.dropped > 0 {
            let message = format!(
                "{} more things are wrong with this tree than are shown",
                found.dropped
            );
            warnings.push(Warning::new(tree.display(""), message));
        }
        machine.warnings = warnings;
        machine.origin.read_instead = found.read_instead;
    }
}

/// Reads a file of a directory: absent is `None` without a warning, anything else that fails is `None` with one that
/// names the file.
pub(crate) fn read_noted<R>(
    directory: &Directory<'_>,
    name: &str,
    notes: &Notes,
    parse: impl FnOnce(&[u8]) -> Result<R, ValueError>,
) -> Option<R> {
    match directory.with_bytes(name, parse) {
        Ok(parsed) => notes.known(|| directory.display(name), parsed).known(),
        Err(reason) => {
            notes.unless_absent(directory.unreadable(name, reason));
            None
        }
    }
}
