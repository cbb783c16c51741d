//! Directories and files that no other user can replace: state, locks and configurations.
//!
//! ```text
//! /run/nearfar/prefer-service.lock
//! │ │   │       └ opened relative to its directory, never through a link, owned by root or this user
//! │ │   └──────── owned by root or this user, writable by no other user
//! └─┴──────────── owned by root or this user; writable by others only with the sticky bit (/tmp)
//! ```
//!
//! A path is walked one name at a time, each opened relative to the directory that was checked before it, so a check and
//! the use that follows it are of the same directory. A symbolic link on the way (`/var/run`) is followed only where root
//! or this user made it. In a sticky directory others can make entries and cannot replace ours, and theirs are refused by
//! their owner.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fsync, mkdirat, open, openat, readlinkat};
use rustix::io::Errno;

use nearfar_proc::error_text;

/// As many as the kernel follows in one path (`MAXSYMLINKS`, include/linux/namei.h).
const MAX_LINKS: u32 = 40;
/// Written by its group, written by others. Of a file with an ACL the bits of the group are its mask, the most that any of
/// the users and groups named in it has (acl(5)): without these bits no other user can write it. With them others can, even
/// where the group is this user's own.
const SHARED: u32 = 0o022;
/// A directory that every user can read: 0755. Given when it is made, it also bounds what a default ACL above it grants.
pub(crate) const READABLE_DIR: Mode = Mode::RWXU
    .union(READABLE)
    .union(Mode::XGRP)
    .union(Mode::XOTH);
/// Read by its group and by others.
const READABLE: Mode = Mode::RGRP.union(Mode::ROTH);
/// A file of this user's alone: 0600.
pub(crate) const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// A file that every user can read: 0644.
pub(crate) const READABLE_FILE: Mode = PRIVATE_FILE.union(READABLE);

/// Why a path is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    #[error("{}", error_text(.0))]
    System(#[from] io::Error),
    /// Another user's directory, link or file.
    #[error(
        "{}it belongs to user {user}, and this is user {me}: run as that user, or give another {what}",
        on_the_way(place)
    )]
    OtherOwner {
        /// What was found there: "directory", "link" or "file".
        what: &'static str,
        /// The directory or link on the way to the path; none for the path itself.
        place: Option<PathBuf>,
        /// Its owner.
        user: u32,
        /// The user this process acts for.
        me: u32,
    },
    /// Other users can change what is in it.
    #[error(
        "{}others may write there: chmod go-w it after looking at what is in it",
        on_the_way(place)
    )]
    Shared {
        /// The directory on the way to the path; none for the path itself.
        place: Option<PathBuf>,
    },
    /// Other users can write the file.
    #[error("others may write it: chmod go-w it after looking at what is in it")]
    SharedFile,
    /// A directory, a pipe, a device.
    #[error("not a regular file")]
    NotRegular,
}

impl TrustError {
    /// The kind of the system's answer; [`io::ErrorKind::Other`] for what this module refused itself.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::System(error) => error.kind(),
            _ => io::ErrorKind::Other,
        }
    }
}

impl From<Errno> for TrustError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<TrustError> for io::Error {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::System(error) => error,
            error => Self::other(error),
        }
    }
}

fn on_the_way(place: &Option<PathBuf>) -> String {
    place
        .as_ref()
        .map_or_else(String::new, |place| format!("{}: ", place.display()))
}

/// An open directory whose entries only root and this user can change.
#[derive(Debug)]
pub struct TrustedDir {
    dir: OwnedFd,
}

impl TrustedDir {
    /// Opens a directory.
    ///
    /// # Errors
    /// When there is none, when it or a directory above it can be changed by other users, or the system refuses.
    pub fn open(path: &Path) -> Result<Self, TrustError> {
        Self::walk(path, None)
    }

    /// Opens a directory; makes it, and those above it, where they are missing, for this user alone. What is made is on
    /// disk when this returns.
    ///
    /// # Errors
    /// As [`TrustedDir::open`].
    pub fn make(path: &Path) -> Result<Self, TrustError> {
        Self::walk(path, Some(Mode::RWXU))
    }

    /// As [`TrustedDir::make`]; other users can read what is made.
    ///
    /// # Errors
    /// As [`TrustedDir::open`].
    pub fn make_readable(path: &Path) -> Result<Self, TrustError> {
        Self::walk(path, Some(READABLE_DIR))
    }

    fn walk(path: &Path, make: Option<Mode>) -> Result<Self, TrustError> {
        let mut walk = Walk::begin(make)?;
        walk.follow(path)?;
        walk.last_directory()
    }

    /// Opens a regular file in this directory, never through a link. A file that is created is for this user alone.
    ///
    /// # Errors
    /// When it is a link, not a regular file, belongs to another user, or the system refuses.
    pub fn open_file(&self, name: &str, flags: OFlags) -> Result<File, TrustError> {
        own_regular_file(openat(&self.dir, name, flags | CAREFUL, PRIVATE_FILE)?)
    }

    /// The open directory.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.dir
    }
}

/// Opens a file for reading that only root and this user can have written. The last name may be a link that root or this
/// user made.
///
/// # Errors
/// When it or a directory above it can be changed by other users, when it is not a regular file, or the system refuses.
pub fn open_to_read(path: &Path) -> Result<File, TrustError> {
    let mut walk = Walk::begin(None)?;
    walk.follow(path)?;
    let Some(name) = walk.file.take() else {
        return Err(TrustError::NotRegular);
    };
    let file = own_regular_file(openat(
        &walk.dir,
        &name,
        OFlags::RDONLY | CAREFUL,
        Mode::empty(),
    )?)?;
    match is_shared(&fstat(&file)?) {
        false => Ok(file),
        true => Err(TrustError::SharedFile),
    }
}

/// Never through a link, not waiting for the writer of a FIFO, not becoming the process of a terminal.
const CAREFUL: OFlags = OFlags::CLOEXEC
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

pub(crate) fn own_regular_file(file: OwnedFd) -> Result<File, TrustError> {
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(TrustError::NotRegular);
    }
    is_own(&stat, "file", None)?;
    Ok(file.into())
}

/// Refuses a directory that other users can change: the last one of a path.
pub(crate) fn is_private(stat: &Stat) -> Result<(), TrustError> {
    is_own(stat, "directory", None)?;
    match is_shared(stat) {
        false => Ok(()),
        true => Err(TrustError::Shared { place: None }),
    }
}

/// Refuses what belongs to neither root nor this user.
fn is_own(stat: &Stat, what: &'static str, place: Option<&Path>) -> Result<(), TrustError> {
    let (user, me) = (stat.st_uid, rustix::process::geteuid().as_raw());
    if user == 0 || user == me {
        return Ok(());
    }
    Err(TrustError::OtherOwner {
        what,
        place: place.map(Path::to_owned),
        user,
        me,
    })
}

/// Refuses a directory on the way whose entries other users can replace.
fn is_passable(stat: &Stat, place: &Path) -> Result<(), TrustError> {
    is_own(stat, "directory", Some(place))?;
    if is_shared(stat) && !Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX) {
        return Err(TrustError::Shared {
            place: Some(place.to_owned()),
        });
    }
    Ok(())
}

/// Whether other users can write it.
fn is_shared(stat: &Stat) -> bool {
    stat.st_mode & SHARED != 0
}

/// A way through the file system, as far as it was gone.
struct Walk {
    /// The directory reached, which is passable.
    dir: OwnedFd,
    at: PathBuf,
    /// The last name, where that is not a directory.
    file: Option<OsString>,
    /// The mode of directories that are made where they are missing.
    make: Option<Mode>,
}

impl Walk {
    fn begin(make: Option<Mode>) -> Result<Self, TrustError> {
        Ok(Self {
            dir: root()?,
            at: "/".into(),
            file: None,
            make,
        })
    }

    /// Goes along a path, a relative one from the working directory.
    fn follow(&mut self, path: &Path) -> Result<(), TrustError> {
        let path = std::path::absolute(path)?;
        let mut names: VecDeque<OsString> = names(&path).map(OsStr::to_owned).collect();
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            let entry = self.entry(&name)?;
            let (stat, place) = (fstat(&entry)?, self.at.join(&name));
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if names.is_empty() => {
                    // Judged by `is_private`, which says more strictly what it has to be.
                    (self.dir, self.at) = (entry, place);
                }
                FileType::Directory => {
                    is_passable(&stat, &place)?;
                    (self.dir, self.at) = (entry, place);
                }
                FileType::Symlink => {
                    is_own(&stat, "link", Some(&place))?;
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = PathBuf::from(OsString::from_vec(
                        readlinkat(&entry, "", Vec::new())?.into_bytes(),
                    ));
                    if target.is_absolute() {
                        (self.dir, self.at) = (root()?, "/".into());
                    }
                    self::names(&target)
                        .rev()
                        .for_each(|name| names.push_front(name.to_owned()));
                }
                _ if names.is_empty() => self.file = Some(name),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Ok(())
    }

    /// What has this name in the directory reached, opened without following it and without reading it.
    fn entry(&self, name: &OsStr) -> Result<OwnedFd, TrustError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = match (openat(&self.dir, name, flags, Mode::empty()), self.make) {
            (Err(Errno::NOENT), Some(mode)) => mode,
            (opened, _) => return Ok(opened?),
        };
        match mkdirat(&self.dir, name, mode) {
            // Made by another nearfar meanwhile.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        fsync(readable(&self.dir)?)?;
        Ok(openat(&self.dir, name, flags, Mode::empty())?)
    }

    fn last_directory(self) -> Result<TrustedDir, TrustError> {
        if self.file.is_some() {
            return Err(Errno::NOTDIR.into());
        }
        let dir = readable(&self.dir)?;
        is_private(&fstat(&dir)?)?;
        Ok(TrustedDir { dir })
    }
}

/// The same directory, opened so that it can be read: the others on the way need not be readable.
fn readable(dir: &OwnedFd) -> Result<OwnedFd, TrustError> {
    Ok(openat(
        dir,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn root() -> Result<OwnedFd, TrustError> {
    let root = open(
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    is_passable(&fstat(&root)?, Path::new("/"))?;
    Ok(root)
}

/// The names of a path, without its root.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = &OsStr> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        _ => None,
    })
}
