//! The state directory: its locks, and a journal for each change set or lease.
//!
//! ```text
//! /var/lib/nearfar/        0755
//!   lock                   0600, held by the process that changes something; holds its number
//!   change-1.journal       0644, of a change set, readable by every user
//!   leases/
//!     lock
//!     lease-4711-0.journal 0600, of a lease
//!     measuring-4711       0600, of a process that measures, locked by it
//! ```
//!
//! What is locked only its owner can open: a process that can open a file can lock it. Each change set has its own journal,
//! so a damaged one costs one change set and not the history.
//!
//! One at a time: a process that changes the system, and one that does so under a label, holds a lock that the kernel releases when it
//! dies. That of a label also says whether the label was undone.
//!
//! A rollback of many systems can come while an apply of the same label has not begun on one of them, waits or measures. It would find
//! nothing to undo, and the apply would come after it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_proc::error_text;
use rustix::fs::{
    Dir, FlockOperation, Mode, OFlags, flock, fstat, fsync, mkdirat, openat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use crate::apply::ApplyError;
use crate::system::Target;
use crate::trusted::{
    PRIVATE_FILE, READABLE_DIR, READABLE_FILE, TrustError, TrustedDir, is_private, own_regular_file,
};

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be opened or made, or other users can write to it.
    #[error("cannot use the state directory {place}: {reason}")]
    Directory {
        place: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// Another nearfar is changing this system.
    #[error(
        "{holder} is changing this system now ({lock} is locked): wait for it, or use --wait SECONDS"
    )]
    Locked {
        /// "process 4711", where the lock tells.
        holder: String,
        lock: String,
    },
    /// Interrupted while waiting for the lock.
    #[error("interrupted before anything was changed")]
    Cancelled,
}

/// Where the state of the running system is kept.
pub const STATE_DIR: &str = "/var/lib/nearfar";

/// The file that a process that changes something holds locked, with its number.
const LOCK_FILE: &str = "lock";

/// How a file of records is made.
pub(crate) const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::APPEND)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL);

/// Which state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// This one.
    Directory(PathBuf),
    /// [`STATE_DIR`] below the root of a tree, which no link may lead out of.
    InTree(PathBuf),
}

impl Location {
    /// Its path, for messages.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Directory(directory) => directory.clone(),
            Self::InTree(root) => root.join(&STATE_DIR[1..]),
        }
    }
}

/// The open state directory.
pub struct StateDir {
    dir: OwnedFd,
    /// For messages.
    pub place: String,
}

impl StateDir {
    /// Opens it, or makes it with its parents. What is made is on disk when this returns.
    ///
    /// # Errors
    /// When it cannot be made, or other users can write to it or to a directory above it.
    pub fn make(location: &Location) -> Result<Self, StateError> {
        let way = Way::of(location)?;
        let dir = way.make().map_err(|error| way.refused(&error))?;
        Ok(Self {
            dir,
            place: way.place(),
        })
    }

    /// Opens it where it exists.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn find(location: &Location) -> Result<Option<Self>, StateError> {
        let way = Way::of(location)?;
        match way.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(way.refused(&error)),
            Ok(dir) => Ok(Some(Self {
                dir,
                place: way.place(),
            })),
        }
    }

    /// The names in the directory that are text.
    ///
    /// # Errors
    /// The system's answer.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Returns when the names in the directory are on disk.
    ///
    /// # Errors
    /// The system's answer.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.dir)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The system's answer.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.dir, name, rustix::fs::AtFlags::empty())?)
    }

    fn open_lock(&self) -> io::Result<File> {
        self.open_file(LOCK_FILE, OFlags::RDWR | OFlags::CREATE)
    }

    /// A regular file in the directory, never through a link, and not of another user: what they wrote is not to be
    /// acted on.
    ///
    /// # Errors
    /// The system's answer; also for a file of another user.
    pub fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        self.open_with(name, flags, PRIVATE_FILE)
    }

    /// As [`Self::open_file`]; every user can read a file that is created.
    ///
    /// # Errors
    /// As [`Self::open_file`].
    pub fn open_readable_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        self.open_with(name, flags, READABLE_FILE)
    }

    fn open_with(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat(&self.dir, name, flags, mode)?;
        Ok(own_regular_file(file)?)
    }
}

/// The way down to the state directory.
enum Way {
    /// A directory that the user named, or the system's: walked and checked name by name.
    Trusted(PathBuf),
    /// Below the root of a tree, which no link may lead out of.
    Tree { root: OwnedFd, place: String },
}

impl Way {
    fn of(location: &Location) -> Result<Self, StateError> {
        let tree = match location {
            Location::Directory(directory) => return Ok(Self::Trusted(directory.clone())),
            Location::InTree(root) => root,
        };
        let place = tree.join(&STATE_DIR[1..]).display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(tree, flags, Mode::empty()) {
            Ok(root) => Ok(Self::Tree { root, place }),
            Err(error) => Err(StateError::Directory {
                place: tree.display().to_string(),
                reason: error_text(&error),
            }),
        }
    }

    fn place(&self) -> String {
        match self {
            Self::Trusted(path) => path.display().to_string(),
            Self::Tree { place, .. } => place.clone(),
        }
    }

    /// Opens it, if no other user can write there: a journal says what to write with the rights of its reader.
    fn open(&self) -> Result<OwnedFd, TrustError> {
        match self {
            Self::Trusted(path) => Ok(TrustedDir::open(path)?.into_fd()),
            Self::Tree { root, .. } => {
                let dir = in_tree(root, &STATE_DIR[1..])?;
                is_private(&fstat(&dir)?)?;
                Ok(dir)
            }
        }
    }

    /// Opens it, or makes it with its parents. What is made is on disk when this returns.
    fn make(&self) -> Result<OwnedFd, TrustError> {
        match self {
            Self::Trusted(path) => Ok(TrustedDir::make_readable(path)?.into_fd()),
            Self::Tree { root, .. } => {
                make_in_tree(root)?;
                self.open()
            }
        }
    }

    fn refused(&self, error: &TrustError) -> StateError {
        let next = match error.kind() {
            io::ErrorKind::PermissionDenied => ": run as root, or give another directory",
            _ => "",
        };
        StateError::Directory {
            place: self.place(),
            reason: format!("{error}{next}"),
        }
    }
}

/// Makes the state directory below the root of a tree, with its parents.
fn make_in_tree(root: &OwnedFd) -> io::Result<()> {
    let names: Vec<&str> = STATE_DIR[1..].split('/').collect();
    for (depth, name) in names.iter().enumerate() {
        match in_tree(root, &names[..=depth].join("/")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => {
                opened?;
                continue;
            }
        }
        let parent = in_tree(root, &names[..depth].join("/"))?;
        match mkdirat(&parent, *name, READABLE_DIR) {
            Ok(()) => fsync(&parent)?,
            // Made by another nearfar meanwhile.
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A directory below the root of a tree; its links lead no further than the root.
fn in_tree(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    Ok(nearfar_proc::rooted::open(root, path, flags)?)
}

const POLL: Duration = Duration::from_millis(20);

/// Takes the lock of a file until it is closed, if no other process has it. Whether it did.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    let lock = || flock(file, FlockOperation::NonBlockingLockExclusive);
    match retry_on_intr(lock) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Held until dropped.
pub struct Lock(File);

impl Lock {
    /// Takes the lock, waiting for it at most this long.
    ///
    /// # Errors
    /// When another process holds it for that long, or `cancel` is set meanwhile.
    pub fn take(
        state: &StateDir,
        wait: Option<Duration>,
        cancel: Option<&AtomicBool>,
    ) -> Result<Self, StateError> {
        let refused = |reason: String| StateError::Directory {
            place: state.place.clone(),
            reason,
        };
        let mut file = state
            .open_lock()
            .map_err(|error| refused(format!("lock: {}", error_text(&error))))?;
        let begun = Instant::now();
        loop {
            let locked = try_lock(&file);
            if locked.map_err(|error| refused(format!("lock: {}", error_text(&error))))? {
                break;
            }
            if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(StateError::Cancelled);
            }
            if wait.is_none_or(|wait| begun.elapsed() >= wait) {
                tracing::warn!(path = %format_args!("{}/lock", state.place), "lock refused: another process holds it");
                return Err(StateError::Locked {
                    holder: holder(&mut file),
                    lock: format!("{}/lock", state.place),
                });
            }
            sleep(POLL);
        }
        // The holder is written for people; a full disk must not prevent a rollback.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "{}", std::process::id());
        tracing::debug!(path = %format_args!("{}/lock", state.place), "lock taken");
        Ok(Self(file))
    }
}

/// The process whose number is in the lock file and that is alive; `None` also where this user may not read the file. Takes no
/// lock: that would be in the way of a process that is about to take it.
pub fn lock_holder(state: &StateDir) -> Option<u32> {
    let mut file = state.open_file(LOCK_FILE, OFlags::RDONLY).ok()?;
    let pid = read_pid(&mut file)?;
    let is_alive = i32::try_from(pid).is_ok_and(nearfar_proc::tasks::is_alive);
    is_alive.then_some(pid)
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.set_len(0);
        // Closing alone would not do: a process that another thread is just starting has a copy until its exec.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn holder(file: &mut File) -> String {
    match read_pid(file) {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// What the file says once the label was undone.
const UNDONE: &[u8] = b"undone\n";

/// Held until dropped, or until its process ends.
#[derive(Debug)]
pub struct LabelLock(std::fs::File);

impl LabelLock {
    /// Takes the lock of a label on the target. It is a file in the state directory: programs in other namespaces that share the
    /// journals share it.
    ///
    /// # Errors
    /// Another process holds it, or the state directory cannot be used.
    pub fn take(target: &Target, label: &str) -> Result<Self, ApplyError> {
        let state = StateDir::make(&target.location())?;
        let name = file_name(label);
        let failed = |error: &std::io::Error| StateError::Directory {
            place: state.place.clone(),
            reason: format!("{name}: {}", error_text(error)),
        };
        let file = state
            .open_file(&name, OFlags::RDWR | OFlags::CREATE)
            .map_err(|error| failed(&error))?;
        match try_lock(&file).map_err(|error| failed(&error))? {
            true => Ok(Self(file)),
            false => Err(ApplyError::LabelInUse {
                label: label.to_owned(),
            }),
        }
    }

    /// Whether the label was undone here: nothing is to be changed under it any more.
    pub fn is_undone(&mut self) -> bool {
        let mut text = Vec::new();
        let read = self.0.rewind().and_then(|()| {
            (&mut self.0)
                .take(UNDONE.len() as u64)
                .read_to_end(&mut text)
        });
        read.is_ok() && text == UNDONE
    }

    /// Notes that the label is undone, on disk when this returns.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn mark_undone(&mut self) -> std::io::Result<()> {
        self.0.rewind()?;
        self.0.write_all(UNDONE)?;
        self.0.sync_all()
    }
}

/// Of a label that is no name of a file its beginning, and a sum that tells it from others.
fn file_name(label: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let plain: String = label.chars().filter(|c| is_plain(*c)).take(60).collect();
    match plain == label {
        true => format!("label-{plain}.lock"),
        false => format!(
            "label-{plain}.{:08x}.lock",
            crc32fast::hash(label.as_bytes())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_a_label_and_an_undone_one_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::live(Some(directory.path().to_owned()));
        let mut first = LabelLock::take(&target, "fleet-1").unwrap();
        assert!(!first.is_undone());
        assert!(matches!(
            LabelLock::take(&target, "fleet-1"),
            Err(ApplyError::LabelInUse { .. })
        ));
        let other = LabelLock::take(&target, "../fleet 1").unwrap();
        first.mark_undone().unwrap();
        drop((first, other));
        assert!(LabelLock::take(&target, "fleet-1").unwrap().is_undone());
        assert!(!LabelLock::take(&target, "../fleet 1").unwrap().is_undone());
    }
}
