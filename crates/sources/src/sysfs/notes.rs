//! What the readers of one tree find wrong with it, gathered from all threads.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use nearfar_machine::Warning;

use crate::tree::{Directory, Reason, Tree, Unreadable};

/// How many warnings are kept: a tree in which every file is broken needs no line for each.
const MOST: usize = 200;

/// A collector of warnings.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    kept: BTreeMap<String, String>,
    dropped: usize,
}

impl Notes {
    /// Notes what is wrong with a place; only the first message about a place is kept.
    pub(crate) fn note(&self, place: impl Into<String>, message: impl Into<String>) {
        // A thread that panicked while noting left a map that is whole.
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let place = place.into();
        if found.kept.len() < MOST || found.kept.contains_key(&place) {
            found.kept.entry(place).or_insert_with(|| message.into());
        } else {
            found.dropped += 1;
        }
    }

    /// Notes that a file could not be read, unless it simply is not there.
    pub(crate) fn unless_absent(&self, error: Unreadable) {
        if error.reason != Reason::Absent {
            self.note(error.path, error.reason.to_string());
        }
    }

    /// The warnings, by place.
    pub(crate) fn into_diagnostics(self, tree: &Tree) -> Vec<Warning> {
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
        warnings
    }
}

/// Reads a file of a directory with a parser whose error is a message: absent is `None` without a word, anything else
/// that fails is `None` with a note that names the file.
pub(crate) fn read_noted<R>(
    directory: &Directory<'_>,
    name: &str,
    notes: &Notes,
    parse: impl FnOnce(&[u8]) -> Result<R, String>,
) -> Option<R> {
    match directory.with_bytes(name, parse) {
        Ok(Ok(value)) => Some(value),
        Ok(Err(message)) => {
            notes.note(directory.display(name), message);
            None
        }
        Err(reason) => {
            notes.unless_absent(directory.unreadable(name, reason));
            None
        }
    }
}
