//! The state directory: the lock, and one journal for each run.
//!
//! ```text
//! /var/lib/nearfar/        0755
//!   lock                   0600, held by the one that changes something; says who
//!   run-1.journal          0644, see crate::journal
//!   run-2.journal
//!   lease-4711-0.journal   0600, see crate::lease
//! ```
//!
//! Every user can read the history. What is locked only its owner can open: who can open a file can lock it.
//! A journal for each run, so that a damaged one costs one run and not the history.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Dir, Mode, OFlags, fstat, fsync, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use crate::error::ApplyError;
use crate::run_id::RunId;
use crate::target::{STATE_DIR, Target, plain};
use crate::trusted::{
    PRIVATE_FILE, READABLE_DIR, READABLE_FILE, TrustError, TrustedDir, is_private, own_regular_file,
};

/// The open state directory.
pub(crate) struct StateDir {
    dir: OwnedFd,
    /// For messages.
    pub(crate) place: String,
}

impl StateDir {
    /// Opens it, or makes it with its parents. What is made is on disk when this returns.
    pub(crate) fn make(target: &Target) -> Result<Self, ApplyError> {
        let way = Way::of(target)?;
        let dir = way.make().map_err(|error| way.refused(&error))?;
        Ok(Self {
            dir,
            place: way.place(),
        })
    }

    /// Opens it where it exists.
    pub(crate) fn find(target: &Target) -> Result<Option<Self>, ApplyError> {
        let way = Way::of(target)?;
        match way.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(way.refused(&error)),
            Ok(dir) => Ok(Some(Self {
                dir,
                place: way.place(),
            })),
        }
    }

    /// The numbers of all runs, oldest first.
    pub(crate) fn runs(&self) -> Result<Vec<RunId>, ApplyError> {
        let names = self.names();
        let names = names.map_err(|error| ApplyError::Unreadable {
            file: self.place.clone(),
            because: plain(&error),
        })?;
        let mut runs: Vec<RunId> = names.iter().filter_map(|name| run_of(name)).collect();
        runs.sort_unstable();
        Ok(runs)
    }

    /// The names in the directory that are text.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// The path of a run's journal, for messages.
    pub(crate) fn journal_place(&self, run: RunId) -> String {
        format!("{}/{}", self.place, file_of(run))
    }

    /// Creates the journal of a new run. Not on disk until [`Self::sync`].
    pub(crate) fn create(&self, run: RunId) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.open_with(&file_of(run), flags, READABLE_FILE)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.dir)?)
    }

    /// Takes back a journal that could not be begun.
    pub(crate) fn remove(&self, run: RunId) -> io::Result<()> {
        self.remove_file(&file_of(run))
    }

    pub(crate) fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.dir, name, rustix::fs::AtFlags::empty())?)
    }

    pub(crate) fn open_journal(&self, run: RunId, to_append: bool) -> io::Result<File> {
        let flags = if to_append {
            OFlags::RDWR | OFlags::APPEND
        } else {
            OFlags::RDONLY
        };
        self.open_file(&file_of(run), flags)
    }

    pub(crate) fn open_lock(&self) -> io::Result<File> {
        self.open_file("lock", OFlags::RDWR | OFlags::CREATE)
    }

    /// A regular file in the directory, never through a link, and not of another user: what they wrote is not to be
    /// acted on.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        self.open_with(name, flags, PRIVATE_FILE)
    }

    fn open_with(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat(&self.dir, name, flags, mode)?;
        own_regular_file(file).map_err(|error| match error {
            TrustError::System(error) => error,
            error => io::Error::other(error),
        })
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

/// The way down to the state directory.
enum Way {
    /// A directory that the user named, or the system's: walked and checked name by name.
    Trusted(PathBuf),
    /// Below the root of a tree, which no link may lead out of.
    Tree { root: OwnedFd, place: String },
}

impl Way {
    fn of(target: &Target) -> Result<Self, ApplyError> {
        let tree = match (&target.state_dir, &target.root) {
            (Some(dir), _) => return Ok(Self::Trusted(dir.clone())),
            (None, None) => return Ok(Self::Trusted(STATE_DIR.into())),
            (None, Some(root)) => root,
        };
        let place = tree.join(&STATE_DIR[1..]).display().to_string();
        match crate::system::open_directory(tree) {
            Ok(root) => Ok(Self::Tree { root, place }),
            Err(error) => Err(ApplyError::StateDir {
                place: tree.display().to_string(),
                because: plain(&error),
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

    fn refused(&self, error: &TrustError) -> ApplyError {
        let next = match error.kind() {
            io::ErrorKind::PermissionDenied => ": run as root, or give another directory",
            _ => "",
        };
        ApplyError::StateDir {
            place: self.place(),
            because: format!("{error}{next}"),
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
