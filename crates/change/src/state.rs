//! The state directory: the lock, and a journal for each change set or lease.
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

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Dir, Mode, OFlags, fstat, fsync, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use nearfar_proc::error_text;

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
pub(crate) const LOCK_FILE: &str = "lock";

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

    pub(crate) fn open_lock(&self) -> io::Result<File> {
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
