//! Leases of others: undone where their owner is dead, respected where it lives.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::OFlags;

use crate::lease::record::{LeaseContents, LeaseHeader};
use crate::lease::{LOCK_TIMEOUT, LeaseError, Recovered, claim, descendants, record};
use crate::lock::Lock;
use crate::state::Location;
use crate::state::StateDir;
use crate::system::System;
use nearfar_proc::TaskId;
use nearfar_proc::error_text;

/// Undoes all whose owner is dead. A journal that cannot be read or undone stays, and keeps no other from being undone.
pub(crate) fn recover(
    location: &Location,
    system: &dyn System,
) -> Result<Vec<Recovered>, LeaseError> {
    let Some(state) = StateDir::find(location)? else {
        return Ok(Vec::new());
    };
    if journals(&state)?.is_empty() {
        return Ok(Vec::new());
    }
    let lock = Lock::take(&state, Some(LOCK_TIMEOUT), None)?;
    let mut recovered = Vec::new();
    let mut bad = None;
    for name in journals(&state)? {
        match undo_if_dead(&state, system, &name) {
            Ok(undone) => recovered.extend(undone),
            Err(error) => bad = bad.or(Some(error)),
        }
    }
    drop(lock);
    bad.map_or(Ok(recovered), Err)
}

/// Fails where a living owner's lease, other than the one named, holds the file; undoes it where the owner is dead. The
/// directory's lock must be held.
pub(crate) fn no_other_holds(
    state: &StateDir,
    system: &dyn System,
    mine: &str,
    path: &Path,
) -> Result<(), LeaseError> {
    for name in journals(state)?.iter().filter(|name| *name != mine) {
        undo_if_dead(state, system, name)?;
        let Some(file) = open(state, name)? else {
            continue;
        };
        let contents = contents(state, name, &file)?;
        let header = contents
            .header
            .filter(|_| contents.files.iter().any(|held| held.path == path));
        if let Some(header) = header {
            return Err(LeaseError::Held {
                path: path.to_owned(),
                pid: header.pid,
                what: header.what,
            });
        }
    }
    Ok(())
}

/// The owner, alive, of a lease other than the one named that has confined this thread.
pub(crate) fn confined_by(
    state: &StateDir,
    mine: &str,
    task: TaskId,
    process: i32,
) -> Result<Option<LeaseHeader>, LeaseError> {
    for name in journals(state)?.iter().filter(|name| *name != mine) {
        let Some(file) = open(state, name)? else {
            continue;
        };
        let contents = contents(state, name, &file)?;
        let confines = |header| descendants::confines(&contents.masks, header, task, process);
        if contents.header.as_ref().is_some_and(confines) && !is_dead(state, name, &file)? {
            return Ok(contents.header);
        }
    }
    Ok(None)
}

/// Waits until this process has let go of its leases, then undoes what it left.
pub(crate) fn after(
    location: &Location,
    system: &dyn System,
    owner: u32,
) -> Result<Vec<Recovered>, LeaseError> {
    let Some(state) = StateDir::find(location)? else {
        return Ok(Vec::new());
    };
    for name in journals(&state)?
        .iter()
        .filter(|name| record::owner(name) == Some(owner))
    {
        if let Some(file) = open(&state, name)? {
            // The pipe ends a moment before the lock, in whatever order the kernel closes files.
            let _ = rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared);
        }
    }
    recover(location, system)
}

fn undo_if_dead(
    state: &StateDir,
    system: &dyn System,
    name: &str,
) -> Result<Option<Recovered>, LeaseError> {
    let Some(file) = open(state, name)? else {
        return Ok(None);
    };
    if !is_dead(state, name, &file)? {
        return Ok(None);
    }
    let contents = contents(state, name, &file)?;
    let recovered = contents.undo(system, true);
    if let Some(failed) = recovered.failed() {
        return Err(failed);
    }
    state
        .remove_file(name)
        .map_err(|error| unreadable(state, name, error_text(&error)))?;
    Ok(Some(recovered).filter(|recovered| !recovered.undone.is_empty()))
}

/// Whether a journal's owner is dead; the journal is then ours until the file is closed.
fn is_dead(state: &StateDir, name: &str, file: &File) -> Result<bool, LeaseError> {
    claim(file).map_err(|error| unreadable(state, name, error_text(&error)))
}

fn contents(
    state: &StateDir,
    name: &str,
    file: &File,
) -> Result<LeaseContents<'static>, LeaseError> {
    record::read(file, Path::new(&state.place))
        .map_err(|error| unreadable(state, name, error.to_string()))
}

/// None where its owner has just released it.
fn open(state: &StateDir, name: &str) -> Result<Option<File>, LeaseError> {
    match state.open_file(name, OFlags::RDWR) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened
            .map(Some)
            .map_err(|error| unreadable(state, name, error_text(&error))),
    }
}

fn journals(state: &StateDir) -> Result<Vec<String>, LeaseError> {
    let names = state
        .names()
        .map_err(|error| unreadable(state, "", error_text(&error)))?;
    Ok(names
        .into_iter()
        .filter(|name| record::owner(name).is_some())
        .collect())
}

fn unreadable(state: &StateDir, name: &str, reason: String) -> LeaseError {
    LeaseError::Unreadable {
        file: format!("{}/{name}", state.place),
        reason,
    }
}
