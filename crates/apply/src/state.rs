//! The state directory: the lock, and one journal for each run.
//!
//! ```text
//! /var/lib/nearfar/        0700
//!   lock                   held by the one that changes something; says who
//!   run-1.journal          0600, see crate::journal
//!   run-2.journal
//! ```
//!
//! A journal for each run, so that a damaged one costs one run and not the history.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, fsync, mkdirat, openat, openat2, unlinkat};
use rustix::io::Errno;

use crate::error::ApplyError;
use crate::run_id::RunId;
use crate::target::{STATE_DIR, Target, plain};

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
        for depth in 1..=way.names.len() {
            way.make(depth).map_err(|error| way.refused(&error))?;
        }
        way.open_state()
    }

    /// Opens it where it exists.
    pub(crate) fn find(target: &Target) -> Result<Option<Self>, ApplyError> {
        let way = Way::of(target)?;
        match way.open(way.names.len()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => way.open_state().map(Some),
        }
    }

    /// The numbers of all runs, oldest first.
    pub(crate) fn runs(&self) -> Result<Vec<RunId>, ApplyError> {
        let names = self.names();
        let names =
            names.map_err(|error| ApplyError::Unreadable { file: self.place.clone(), because: plain(&error) })?;
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
        self.open_file(&file_of(run), flags)
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
        let flags = if to_append { OFlags::RDWR | OFlags::APPEND } else { OFlags::RDONLY };
        self.open_file(&file_of(run), flags)
    }

    pub(crate) fn open_lock(&self) -> io::Result<File> {
        self.open_file("lock", OFlags::RDWR | OFlags::CREATE)
    }

    /// A regular file in the directory, never through a link, and not of another user: what they wrote is not to be
    /// acted on.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?);
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is no regular file"));
        }
        if !is_trusted(stat.st_uid) {
            return Err(io::Error::other(format!("it belongs to user {}", stat.st_uid)));
        }
        Ok(file)
    }
}

/// Whether what this user wrote may be acted on.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

fn file_of(run: RunId) -> String {
    format!("run-{run}.journal")
}

fn run_of(name: &str) -> Option<RunId> {
    let digits = name.strip_prefix("run-")?.strip_suffix(".journal")?;
    let run = RunId(digits.parse().ok()?);
    (file_of(run) == name).then_some(run)
}

/// The way down to the state directory, name by name.
struct Way {
    start: OwnedFd,
    /// Below a tree's root no link may lead out; a directory the user names is the user's business.
    fenced: bool,
    names: Vec<String>,
    place: String,
}

impl Way {
    fn of(target: &Target) -> Result<Self, ApplyError> {
        let bad = |place: &Path, because: String| ApplyError::StateDir { place: place.display().to_string(), because };
        let (start, path, place, fenced) = match (&target.state_dir, &target.root) {
            (Some(dir), _) => {
                let path = std::path::absolute(dir).map_err(|error| bad(dir, plain(&error)))?;
                (Path::new("/"), path.clone(), path, false)
            }
            (None, Some(root)) => (root.as_path(), STATE_DIR.into(), root.join(&STATE_DIR[1..]), true),
            (None, None) => (Path::new("/"), STATE_DIR.into(), STATE_DIR.into(), false),
        };
        let start = crate::system::open_directory(start).map_err(|error| bad(start, plain(&error)))?;
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => {
                    names.push(name.to_str().ok_or_else(|| bad(&place, "its name is no text".to_owned()))?.to_owned());
                }
                Component::ParentDir => names.push("..".to_owned()),
                _ => {}
            }
        }
        Ok(Self { start, fenced, names, place: place.display().to_string() })
    }

    /// Opens the directory after this many names.
    fn open(&self, depth: usize) -> io::Result<OwnedFd> {
        let path = self.names.get(..depth).unwrap_or_default().join("/");
        let path = if path.is_empty() { "." } else { &path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if self.fenced {
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            return Ok(openat2(&self.start, path, flags, Mode::empty(), resolve)?);
        }
        Ok(openat(&self.start, path, flags, Mode::empty())?)
    }

    /// Makes the directory after this many names where it is missing.
    fn make(&self, depth: usize) -> io::Result<()> {
        let Some(name) = depth.checked_sub(1).and_then(|last| self.names.get(last)) else { return Ok(()) };
        match self.open(depth) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened.map(|_| ()),
        }
        let parent = self.open(depth - 1)?;
        match mkdirat(&parent, name.as_str(), Mode::RWXU) {
            // Made by another nearfar meanwhile.
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(fsync(&parent)?),
        }
    }

    /// The last directory, if nobody else can write there: a journal says what to write with the rights of its reader.
    fn open_state(&self) -> Result<StateDir, ApplyError> {
        let dir = self.open(self.names.len()).map_err(|error| self.refused(&error))?;
        let stat = fstat(&dir).map_err(|error| self.refused(&error.into()))?;
        let because = if !is_trusted(stat.st_uid) {
            let me = rustix::process::geteuid();
            format!(
                "it belongs to user {}, and this is user {}: run as that user, or give another directory",
                stat.st_uid,
                me.as_raw()
            )
        } else if stat.st_mode & 0o022 != 0 {
            "others may write there: chmod go-w it after looking at what is in it".to_owned()
        } else {
            return Ok(StateDir { dir, place: self.place.clone() });
        };
        Err(ApplyError::StateDir { place: self.place.clone(), because })
    }

    fn refused(&self, error: &io::Error) -> ApplyError {
        let next = match error.kind() {
            io::ErrorKind::PermissionDenied => ": run as root, or give another directory",
            _ => "",
        };
        ApplyError::StateDir { place: self.place.clone(), because: format!("{}{next}", plain(error)) }
    }
}
