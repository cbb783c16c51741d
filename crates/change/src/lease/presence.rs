//! Which processes of nearfar measure at this moment: each has a file in the directory of leases, locked as long as it lives.
//!
//! The kernel releases the lock with the process, so a file without a lock is stale, of whatever boot, and is removed. Processes of
//! different PID namespaces may have one number: a random part makes their names different.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use nearfar_proc::tasks;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::lease::{LeaseError, Leases};
use crate::state::{StateDir, try_lock};

const PREFIX: &str = "measuring-";
/// Others hold a file for a moment, to see whether it is locked.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_INTERVAL: Duration = Duration::from_millis(2);
/// Of a file's text; longer ones are cut off.
const MAX_TEXT_BYTES: u64 = 256;

/// That this process measures, until this is dropped.
#[derive(Debug)]
pub struct Presence {
    leases: Leases,
    name: String,
    _locked: File,
}

/// Another process that measures.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Measuring {
    /// Its number.
    pub pid: u32,
    /// What it measures, in its own words.
    pub what: String,
}

impl std::fmt::Display for Measuring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pid, what } = self;
        write!(f, "process {pid} ({what})")
    }
}

impl Leases {
    /// Records that this process measures. `what` is for those who read about it.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn announce(&self, what: &str) -> Result<Presence, LeaseError> {
        let state = StateDir::make(&self.location())?;
        let random = RandomState::new().hash_one(std::process::id());
        let name = format!("{PREFIX}{}-{random:016x}", std::process::id());
        let unusable = |error: io::Error| LeaseError::Unreadable {
            file: format!("{}/{name}", state.place),
            reason: nearfar_proc::error_text(&error),
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mut file = state.open_file(&name, flags).map_err(unusable)?;
        lock(&file).map_err(unusable)?;
        file.write_all(what.as_bytes()).map_err(unusable)?;
        Ok(Presence {
            leases: self.clone(),
            name,
            _locked: file,
        })
    }
}

fn lock(file: &File) -> io::Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        if try_lock(file)? {
            return Ok(());
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
    Err(Errno::WOULDBLOCK.into())
}

impl Presence {
    /// The other processes of this user that measure now, in order; none where the directory cannot be read.
    pub fn others(&self) -> Vec<Measuring> {
        let Ok(Some(state)) = StateDir::find(&self.leases.location()) else {
            return Vec::new();
        };
        let names = state.names().unwrap_or_default();
        let others = names.iter().filter(|name| **name != self.name);
        let mut others: Vec<Measuring> = others.filter_map(|it| measuring(&state, it)).collect();
        others.sort();
        others
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Ok(Some(state)) = StateDir::find(&self.leases.location()) {
            let _ = state.remove_file(&self.name);
        }
    }
}

/// The process of a file, if it is one that measures; removes the file of one that has ended.
fn measuring(state: &StateDir, name: &str) -> Option<Measuring> {
    let pid: u32 = name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()?;
    let file = state.open_file(name, OFlags::RDONLY).ok()?;
    let is_locked = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
    let mut what = String::new();
    (&file)
        .take(MAX_TEXT_BYTES)
        .read_to_string(&mut what)
        .ok()?;
    if is_locked {
        return Some(Measuring { pid, what });
    }
    // One that has no text yet is about to be locked.
    let is_alive = i32::try_from(pid).is_ok_and(tasks::is_alive);
    if !what.is_empty() || !is_alive {
        let _ = state.remove_file(name);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_seen_while_they_hold_their_lock_and_stale_files_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let leases = Leases::at(place.path().join("leases"));
        let own = leases.announce("nearfar bench io").unwrap();
        assert_eq!(own.others(), []);
        let path = |name: &str| place.path().join("leases").join(name);
        let make = |name: &str, what: &str| {
            std::fs::write(path(name), what).unwrap();
            File::open(path(name)).unwrap()
        };
        let other = make("measuring-1", "nearfar bench probe");
        flock(&other, FlockOperation::LockExclusive).unwrap();
        make("measuring-2", "killed");
        make("measuring-999999999", "");
        let alive = format!("measuring-{}", std::os::unix::process::parent_id());
        make(&alive, "");
        make("measuring-x", "");
        let seen = own.others();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].to_string(), "process 1 (nearfar bench probe)");
        assert!(!path("measuring-2").exists() && !path("measuring-999999999").exists());
        assert!(path(&alive).exists(), "it is about to be locked");
        // A child that another test starts has a copy of the file until its exec.
        flock(&other, FlockOperation::Unlock).unwrap();
        assert_eq!(own.others(), []);
        // A process of another PID namespace with this one's number.
        let namesake = leases.announce("nearfar bench scale").unwrap();
        assert_eq!(own.others().len(), 1);
        drop((own, namesake));
        let names = std::fs::read_dir(path("")).unwrap();
        let names: Vec<_> = names.map(|it| it.unwrap().file_name()).collect();
        let prefix = format!("measuring-{}-", std::process::id());
        let is_own = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(&prefix);
        assert!(!names.iter().any(is_own), "{names:?}");
    }
}
