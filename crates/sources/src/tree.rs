//! Reading files below a root: `/` for the live system, any directory for an extracted tree, or one in memory.
//!
//! An extracted tree comes from another machine and is not trusted. Its symbolic links are resolved as if the root were `/` (openat2 with
//! `RESOLVE_IN_ROOT`), so none leads out of it; only regular files are read, so a FIFO or a device in it cannot make
//! nearfar hang; and a file that is larger than any the kernel writes is refused. What is wrong with a file is noted in the
//! tree, and becomes a warning of the machine.
//!
//! A [`Directory`] stays open, for reading many small files in it: no path is walked twice, nothing is allocated. A
//! [`Folder`] is a directory in memory, as an archive is read into it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearfar_machine::{Known, Machine, PciAddress, Warning};
use nearfar_proc::rooted::{self, MAX_LINKS};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::value::ValueError;

/// The largest file that is read at once, in bytes.
pub(crate) const LARGEST: usize = 64 << 20;

/// A root below which files are read.
#[derive(Debug)]
pub struct Tree {
    root: Root,
    place: PathBuf,
    live: bool,
    notes: Mutex<Notes>,
}

#[derive(Debug)]
enum Root {
    Disk(OwnedFd),
    Memory(Folder),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Unreadable {
    /// The file as a person would name it: with the root before it.
    pub path: String,
    pub reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("no such file")]
    Absent,
    #[error("permission denied")]
    Denied,
    #[error("not a regular file")]
    NotAFile,
    /// It is larger than any such file the kernel writes: 64 MiB, or 1 MiB for one read from a [`Directory`].
    #[error("larger than any such file of the kernel")]
    TooLarge,
    #[error("not text")]
    NotText,
    #[error("{0}")]
    Other(String),
}

impl Tree {
    /// The running system.
    ///
    /// # Errors
    /// When `/` cannot be opened.
    pub fn live() -> Result<Self, Unreadable> {
        Self::open(Path::new("/"), true)
    }

    /// A directory that holds `sys` and `proc`.
    ///
    /// # Errors
    /// When it cannot be opened as a directory.
    pub fn at(root: &Path) -> Result<Self, Unreadable> {
        Self::open(root, false)
    }

    /// A directory in memory, of which messages say that it is at `place`.
    pub fn in_memory(root: Folder, place: PathBuf) -> Self {
        Self {
            root: Root::Memory(root),
            place,
            live: false,
            notes: Mutex::default(),
        }
    }

    /// Whether it was unpacked from an archive: nothing else is read in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.root, Root::Memory(_))
    }

    pub fn into_memory(self) -> Option<Folder> {
        match self.root {
            Root::Memory(root) => Some(root),
            Root::Disk(_) => None,
        }
    }

    fn open(root: &Path, live: bool) -> Result<Self, Unreadable> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(root, flags, Mode::empty());
        let opened = opened.map_err(|errno| Unreadable {
            path: root.display().to_string(),
            reason: reason(errno),
        });
        Ok(Self {
            root: Root::Disk(opened?),
            place: root.to_owned(),
            live,
            notes: Mutex::default(),
        })
    }

    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The root, as it was given.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// A path of the tree as a person would name it.
    pub fn display(&self, path: &str) -> String {
        self.place.join(path).display().to_string()
    }

    /// The whole text of a file, as it stands there.
    ///
    /// # Errors
    /// When it cannot be read or is not text.
    pub fn text(&self, path: &str) -> Result<String, Unreadable> {
        String::from_utf8(self.bytes(path)?).map_err(|_| self.unreadable(path, Reason::NotText))
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Unreadable> {
        self.with_bytes(path, <[u8]>::to_vec)
    }

    /// Hands the content of a file to `read`, without allocating when it is at most a page long.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn with_bytes<R>(
        &self,
        path: &str,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Unreadable> {
        let read = |bytes: &[u8]| {
            tracing::trace!(path = %self.display(path), bytes = bytes.len(), "read");
            read(bytes)
        };
        let read = match &self.root {
            Root::Disk(_) => {
                let file = self.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK);
                file.and_then(|file| with_content(file, self.live, LARGEST, read))
            }
            Root::Memory(root) => root.file(path).map(read),
        };
        read.map_err(|reason| self.unreadable(path, reason))
    }

    /// A directory opened once, for reading many files in it.
    ///
    /// # Errors
    /// When it cannot be opened as a directory.
    pub fn directory(&self, path: &str) -> Result<Directory<'_>, Unreadable> {
        let path = path.trim_end_matches('/');
        let handle = match &self.root {
            Root::Disk(_) => self
                .open_below(path, OFlags::PATH | OFlags::DIRECTORY)
                .map(Some),
            Root::Memory(root) => root.folder(path).map(|_| None),
        };
        let handle = handle.map_err(|reason| self.unreadable(path, reason))?;
        Ok(Directory::new(self, handle, path.to_owned()))
    }

    /// A file opened for reading piece by piece, for those that grow with the machine (`/proc/interrupts`).
    ///
    /// # Errors
    /// When it cannot be opened or is not a regular file.
    pub fn file(&self, path: &str) -> Result<Box<dyn Read + '_>, Unreadable> {
        if let Root::Memory(root) = &self.root {
            let content = root.file(path);
            let content = content.map_err(|reason| self.unreadable(path, reason))?;
            return Ok(Box::new(content));
        }
        let file = self.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK);
        let file = file.map_err(|reason| self.unreadable(path, reason))?;
        // The kernel's own files are what they are; an extracted tree may hold anything.
        if !self.live {
            let size = regular_size(&file);
            size.map_err(|reason| self.unreadable(path, reason))?;
        }
        Ok(Box::new(File::from(file)))
    }

    /// The names in a directory, in the order of their bytes.
    ///
    /// # Errors
    /// When it cannot be read as a directory.
    pub fn list(&self, path: &str) -> Result<Vec<String>, Unreadable> {
        if let Root::Memory(root) = &self.root {
            let folder = root.folder(path);
            let folder = folder.map_err(|reason| self.unreadable(path, reason))?;
            return Ok(folder.0.keys().cloned().collect());
        }
        let directory = self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY);
        let directory = directory.map_err(|reason| self.unreadable(path, reason))?;
        let entries = rustix::fs::Dir::new(directory)
            .map_err(|errno| self.unreadable(path, reason(errno)))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|errno| self.unreadable(path, reason(errno)))?;
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// What a symbolic link says, without following it.
    ///
    /// # Errors
    /// When it is not a link or not text.
    pub fn link(&self, path: &str) -> Result<String, Unreadable> {
        let target = match &self.root {
            Root::Disk(_) => self
                .open_below(path, OFlags::PATH | OFlags::NOFOLLOW)
                .and_then(|link| rustix::fs::readlinkat(link, "", Vec::new()).map_err(reason))
                .and_then(|target| target.into_string().map_err(|_| Reason::NotText)),
            Root::Memory(root) => root.link(path).map(str::to_owned),
        };
        target.map_err(|reason| self.unreadable(path, reason))
    }

    /// The last part of what a symbolic link says: a driver's or a subsystem's name.
    ///
    /// # Errors
    /// As [`Tree::link`].
    pub fn link_name(&self, path: &str) -> Result<String, Unreadable> {
        self.link(path).map(last_part)
    }

    pub fn exists(&self, path: &str) -> bool {
        match &self.root {
            Root::Disk(_) => self.open_below(path, OFlags::PATH).is_ok(),
            Root::Memory(root) => root.exists(path),
        }
    }

    /// The error of a path, for callers that find fault with a file's content.
    pub fn unreadable(&self, path: &str, reason: Reason) -> Unreadable {
        let unreadable = Unreadable {
            path: self.display(path),
            reason,
        };
        tracing::debug!(path = unreadable.path, reason = ?unreadable.reason, "cannot read");
        unreadable
    }

    /// Of a tree on disk.
    fn open_below(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Reason> {
        let Root::Disk(root) = &self.root else {
            return Err(Reason::Absent);
        };
        let flags = flags | OFlags::CLOEXEC;
        let opened = if self.live {
            rustix::fs::openat(root, path, flags, Mode::empty())
        } else {
            rooted::open(root, path, flags)
        };
        opened.map_err(reason)
    }
}

fn last_part(path: String) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

fn reason(errno: Errno) -> Reason {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NXIO => Reason::Absent,
        Errno::ACCESS | Errno::PERM => Reason::Denied,
        Errno::ISDIR => Reason::NotAFile,
        other => Reason::Other(std::io::Error::from(other).to_string()),
    }
}

/// How many warnings are kept: a tree in which every file is broken needs no line for each.
const MOST_WARNINGS: usize = 200;

/// What is wrong with a tree, and which of its files are read instead of the usual ones, gathered from all threads.
#[derive(Debug, Default)]
struct Notes {
    warnings: BTreeMap<String, String>,
    dropped: usize,
    read_instead: BTreeMap<String, String>,
}

pub(crate) type Parser<T> = fn(&[u8]) -> Result<T, ValueError>;

/// Values of files. What is wrong with one is noted: `Tree::finish` gives the machine its warnings.
impl Tree {
    /// Notes what is wrong with a path; only the first message about a path is kept.
    pub(crate) fn note(&self, path: &str, message: impl Into<String>) {
        self.note_at(self.display(path), message.into());
    }

    fn note_at(&self, place: String, message: String) {
        let mut notes = self.notes();
        if notes.warnings.len() < MOST_WARNINGS || notes.warnings.contains_key(&place) {
            notes.warnings.entry(place).or_insert(message);
        } else {
            notes.dropped += 1;
        }
    }

    /// Notes that a file could not be read, unless it simply is not there.
    pub(crate) fn unless_absent(&self, error: Unreadable) {
        if error.reason != Reason::Absent {
            self.note_at(error.path, error.reason.to_string());
        }
    }

    /// Notes that a value comes from another file than it usually does; both below the root.
    pub(crate) fn read_instead(&self, usual: impl Into<String>, read: impl Into<String>) {
        let (usual, read) = (usual.into(), read.into());
        if usual != read {
            let map = &mut self.notes().read_instead;
            let read = map.get(&read).cloned().unwrap_or(read);
            map.insert(usual, read);
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // A thread that panicked while noting left maps that are whole.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a parser made of a file; what it refuses is noted, and unknown for that reason.
    pub(crate) fn parsed<T>(&self, path: &str, parsed: Result<T, ValueError>) -> Known<T> {
        parsed.map_or_else(
            |error| {
                self.note(path, error.to_string());
                Known::no(format!("{}: {error}", self.display(path)))
            },
            Known::Yes,
        )
    }

    /// A file's value. A content that the parser refuses is also noted.
    pub(crate) fn known<T>(
        &self,
        path: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
    ) -> Known<T> {
        match self.with_bytes(path, parse) {
            Ok(parsed) => self.parsed(path, parsed),
            Err(error) => Known::no(error.to_string()),
        }
    }

    /// A file's value, where it has one; nothing is noted.
    pub(crate) fn value<T>(
        &self,
        path: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
    ) -> Option<T> {
        self.with_bytes(path, parse).ok()?.ok()
    }

    /// The innermost PCI function that one of these links leads below.
    pub(crate) fn function_behind(&self, links: &[String]) -> Option<PciAddress> {
        let mut links = links.iter();
        links.find_map(|link| PciAddress::innermost(&self.link(link).ok()?))
    }

    pub(crate) fn forget_notes(&self) {
        drop(std::mem::take(&mut *self.notes()));
    }

    /// Gives the machine the warnings about this tree so far, by place, and the files that were read; forgets them.
    pub(crate) fn finish(&self, machine: &mut Machine) {
        let notes = std::mem::take(&mut *self.notes());
        let warnings = notes.warnings.into_iter();
        machine.warnings = warnings
            .map(|(place, message)| Warning::new(place, message))
            .collect();
        if notes.dropped > 0 {
            let message = format!(
                "{} more things are wrong with this tree than are shown",
                notes.dropped
            );
            let warning = Warning::new(self.display(""), message);
            machine.warnings.push(warning);
        }
        machine.origin.read_instead = notes.read_instead;
    }
}

/// As those of [`Tree`], of files in the directory.
impl Directory<'_> {
    pub(crate) fn note(&self, name: &str, message: impl Into<String>) {
        self.tree.note(&self.below(name), message);
    }

    pub(crate) fn read_instead(&self, usual: &str, read: &str) {
        self.tree.read_instead(self.below(usual), self.below(read));
    }

    pub(crate) fn known<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
    ) -> Known<T> {
        let absent = || Known::no(self.unreadable(name, Reason::Absent).to_string());
        self.known_or(name, parse, absent)
    }

    /// The same, and something else where the file is not there.
    pub(crate) fn known_or<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
        otherwise: impl FnOnce() -> Known<T>,
    ) -> Known<T> {
        match self.with_bytes(name, parse) {
            Ok(parsed) => self.tree.parsed(&self.below(name), parsed),
            Err(Reason::Absent) => otherwise(),
            Err(reason) => Known::no(self.unreadable(name, reason).to_string()),
        }
    }

    /// The first of several files that is there, which stand in for the usual one; the reason why none is known names the
    /// first one.
    pub(crate) fn first_known<T>(&self, usual: &str, candidates: &[(&str, Parser<T>)]) -> Known<T> {
        let mut because = None;
        for &(name, parse) in candidates {
            match self.known(name, parse) {
                Known::Yes(value) => {
                    self.read_instead(usual, name);
                    return Known::Yes(value);
                }
                Known::No { unknown_reason } => {
                    because.get_or_insert(unknown_reason);
                }
            }
        }
        Known::no(because.unwrap_or_default())
    }

    /// Absent is `None` without a warning, anything else that fails is `None` with one that names the file.
    pub(crate) fn noted<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
    ) -> Option<T> {
        match self.with_bytes(name, parse) {
            Ok(parsed) => self.tree.parsed(&self.below(name), parsed).known(),
            Err(reason) => {
                self.tree.unless_absent(self.unreadable(name, reason));
                None
            }
        }
    }

    /// The names in it; none where it cannot be read, which is noted.
    pub(crate) fn names_noted(&self) -> Vec<String> {
        self.names().unwrap_or_else(|error| {
            self.tree.unless_absent(error);
            Vec::new()
        })
    }

    pub(crate) fn tree(&self) -> &Tree {
        self.tree
    }
}

/// What most attributes fit into: the kernel gives a sysfs attribute one page.
const PAGE: usize = 4096;
/// The largest attribute of a directory that is read, in bytes: a list of every second of 65536 CPUs fits.
const LARGEST_ATTRIBUTE: usize = 1 << 20;

/// An open directory of a [`Tree`].
#[derive(Debug)]
pub struct Directory<'t> {
    tree: &'t Tree,
    /// None in memory, where a path costs nothing to walk.
    handle: Option<OwnedFd>,
    path: String,
}

impl<'t> Directory<'t> {
    pub(super) fn new(tree: &'t Tree, handle: Option<OwnedFd>, path: String) -> Self {
        Self { tree, handle, path }
    }

    /// Its path within the tree, without a slash at the end.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A file in it as a person would name it.
    pub fn display(&self, name: &str) -> String {
        self.tree.display(&self.below(name))
    }

    /// A directory in it; `name` may have several parts.
    ///
    /// # Errors
    /// When it cannot be opened as a directory.
    pub fn directory(&self, name: &str) -> Result<Directory<'t>, Reason> {
        let Some(handle) = &self.handle else {
            let found = self.tree.directory(&self.below(name));
            return found.map_err(|unreadable| unreadable.reason);
        };
        let handle = self.open(handle, name, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Self::new(self.tree, Some(handle), self.below(name)))
    }

    /// Hands the content of a file in it to `read`, without allocating when it is at most a page long. `name` may
    /// have several parts (`topology/core_id`).
    ///
    /// This is for attributes, which the kernel hands out whole in one read: less than a page is taken as the end, and
    /// more than 1 MiB is refused. For files that grow with the machine there is [`Tree::with_bytes`].
    ///
    /// # Errors
    /// When it cannot be read; [`Directory::unreadable`] makes a message of it.
    pub fn with_bytes<R>(&self, name: &str, read: impl FnOnce(&[u8]) -> R) -> Result<R, Reason> {
        let Some(handle) = &self.handle else {
            let read = self.tree.with_bytes(&self.below(name), read);
            return read.map_err(|unreadable| unreadable.reason);
        };
        let file = self.open(handle, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mut page = [0; PAGE];
        let filled = read_some(&file, &mut page)?;
        if filled == 0 && !self.tree.live {
            // A FIFO reads as empty too. Asking only here saves a quarter of the system calls of a large tree.
            regular_size(&file)?;
        }
        let log = |bytes: usize| tracing::trace!(path = %self.display(name), bytes, "read");
        if filled < PAGE {
            log(filled);
            return Ok(read(&page[..filled]));
        }
        let mut content = page.to_vec();
        fill(&file, &mut content, None, LARGEST_ATTRIBUTE)?;
        log(content.len());
        Ok(read(&content))
    }

    /// The names in it, in the order of their bytes.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn names(&self) -> Result<Vec<String>, Unreadable> {
        self.tree.list(&self.path)
    }

    /// Whether something of that name is there, of whatever kind.
    pub fn exists(&self, name: &str) -> bool {
        match &self.handle {
            Some(handle) => self.open(handle, name, OFlags::PATH).is_ok(),
            None => self.tree.exists(&self.below(name)),
        }
    }

    /// What a symbolic link in it says, without following it.
    ///
    /// # Errors
    /// When it is not a link or not text.
    pub fn link(&self, name: &str) -> Result<String, Reason> {
        let Some(handle) = &self.handle else {
            let target = self.tree.link(&self.below(name));
            return target.map_err(|unreadable| unreadable.reason);
        };
        let target = if name.contains('/') {
            let link = self.open(handle, name, OFlags::PATH | OFlags::NOFOLLOW)?;
            rustix::fs::readlinkat(link, "", Vec::new())
        } else {
            rustix::fs::readlinkat(handle, name, Vec::new())
        };
        let target = target.map_err(reason)?.into_string();
        target.map_err(|_| Reason::NotText)
    }

    /// The last part of what a symbolic link in it says: a driver's or a subsystem's name.
    ///
    /// # Errors
    /// As [`Directory::link`].
    pub fn link_name(&self, name: &str) -> Result<String, Reason> {
        self.link(name).map(last_part)
    }

    pub fn unreadable(&self, name: &str, reason: Reason) -> Unreadable {
        self.tree.unreadable(&self.below(name), reason)
    }

    /// The path of a file in it within the tree.
    pub fn below(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Opens a name relative to the handle. In an extracted tree a symbolic link on the way is not followed from
    /// here, where the root is out of sight, but by walking the whole path below the root.
    fn open(&self, handle: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Reason> {
        let flags = flags | OFlags::CLOEXEC;
        if self.tree.live {
            return rustix::fs::openat(handle, name, flags, Mode::empty()).map_err(reason);
        }
        let opened = rooted::open_without_links(handle, name, flags);
        let is_walked = match opened {
            // Links, `..`, and kernels without openat2.
            Err(Errno::LOOP | Errno::NOSYS) => true,
            // O_DIRECTORY finds a link to be no directory before O_NOFOLLOW finds it to be a link.
            Err(Errno::NOTDIR) => flags.contains(OFlags::DIRECTORY),
            _ => false,
        };
        match is_walked {
            true => self.tree.open_below(&self.below(name), flags),
            false => opened.map_err(reason),
        }
    }
}

/// Hands the content of an open file of at most `largest` bytes to `read`.
fn with_content<R>(
    file: impl AsFd,
    live: bool,
    largest: usize,
    read: impl FnOnce(&[u8]) -> R,
) -> Result<R, Reason> {
    let file = file.as_fd();
    // The kernel's own files are what they are; an extracted tree may hold anything.
    let expected = match live {
        true => None,
        false => Some(regular_size(file)?),
    };
    let mut page = [0; PAGE];
    let mut filled = 0;
    while filled < PAGE {
        let got = read_some(file, &mut page[filled..])?;
        filled += got;
        if got == 0 || expected == Some(filled) {
            return Ok(read(&page[..filled]));
        }
    }
    let mut content = page.to_vec();
    fill(file, &mut content, expected, largest)?;
    Ok(read(&content))
}

fn read_some(file: impl AsFd, buffer: &mut [u8]) -> Result<usize, Reason> {
    loop {
        match rustix::io::read(&file, &mut *buffer) {
            Err(Errno::INTR) => {}
            got => return got.map_err(reason),
        }
    }
}

/// The size of a regular file; anything else is refused.
fn regular_size(file: impl AsFd) -> Result<usize, Reason> {
    let status = rustix::fs::fstat(file).map_err(reason)?;
    if !rustix::fs::FileType::from_raw_mode(status.st_mode).is_file() {
        return Err(Reason::NotAFile);
    }
    Ok(usize::try_from(status.st_size).unwrap_or(0))
}

/// Reads the rest of a file behind what is there of it already.
fn fill(
    file: impl AsFd,
    content: &mut Vec<u8>,
    expected: Option<usize>,
    largest: usize,
) -> Result<(), Reason> {
    if expected.is_some_and(|size| size > largest) {
        return Err(Reason::TooLarge);
    }
    loop {
        if content.len() > largest {
            return Err(Reason::TooLarge);
        }
        let rest = expected.map(|size| size.saturating_sub(content.len()));
        content.reserve(rest.unwrap_or(content.len()).max(PAGE));
        match rustix::io::read(&file, rustix::buffer::spare_capacity(content)) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(reason(errno)),
        }
    }
}

#[derive(Debug, Clone)]
pub enum Entry {
    File(Vec<u8>),
    /// What a symbolic link says.
    Link(String),
    Folder(Folder),
}

/// The entries of a directory, by name.
#[derive(Debug, Clone, Default)]
pub struct Folder(pub BTreeMap<String, Entry>);

/// What a path leads to.
enum Found<'a> {
    File(&'a [u8]),
    Link(&'a str),
    Folder(&'a Folder),
}

impl Folder {
    /// The directory at a path without links and `..`, made where it is missing, and how many were made on the way; none
    /// where a file is in the way.
    pub fn make(&mut self, path: &str) -> Option<(&mut Self, u64)> {
        names(path).try_fold((self, 0), |(here, made), name| {
            let is_there = here.0.contains_key(name);
            let next = here.0.entry(name.to_owned());
            match next.or_insert_with(|| Entry::Folder(Self::default())) {
                Entry::Folder(next) => Some((next, made + u64::from(!is_there))),
                Entry::File(_) | Entry::Link(_) => None,
            }
        })
    }

    pub fn remove(&mut self, path: &str) {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some((folder, _)) = self.make(above) {
            folder.0.remove(name);
        }
    }

    /// The content of a file.
    pub fn file(&self, path: &str) -> Result<&[u8], Reason> {
        match self.find(path, true)? {
            Found::File(content) => Ok(content),
            Found::Link(_) | Found::Folder(_) => Err(Reason::NotAFile),
        }
    }

    pub(super) fn folder(&self, path: &str) -> Result<&Self, Reason> {
        match self.find(path, true)? {
            Found::Folder(folder) => Ok(folder),
            Found::File(_) | Found::Link(_) => Err(Reason::Absent),
        }
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.find(path, true).is_ok()
    }

    /// What a link says.
    pub(super) fn link(&self, path: &str) -> Result<&str, Reason> {
        match self.find(path, false)? {
            Found::Link(target) => Ok(target),
            // As of readlinkat(2).
            Found::File(_) | Found::Folder(_) => Err(reason(Errno::INVAL)),
        }
    }

    /// Follows links as if this directory were `/`, the last of them only if asked.
    fn find(&self, path: &str, follow_last: bool) -> Result<Found<'_>, Reason> {
        let mut parts: VecDeque<&str> = names(path).collect();
        let mut above: Vec<&Self> = Vec::new();
        let mut links = 0;
        while let Some(part) = parts.pop_front() {
            if part == ".." {
                above.pop();
                continue;
            }
            let here = above.last().copied().unwrap_or(self);
            match here.0.get(part).ok_or(Reason::Absent)? {
                Entry::Folder(next) => above.push(next),
                Entry::Link(target) if follow_last || !parts.is_empty() => {
                    links += 1;
                    if links > MAX_LINKS {
                        let reason = "too many levels of symbolic links".to_owned();
                        return Err(Reason::Other(reason));
                    }
                    if target.starts_with('/') {
                        above.clear();
                    }
                    names(target).rev().for_each(|name| parts.push_front(name));
                }
                Entry::Link(target) => return Ok(Found::Link(target)),
                Entry::File(content) if parts.is_empty() => return Ok(Found::File(content)),
                Entry::File(_) => return Err(Reason::Absent),
            }
        }
        Ok(Found::Folder(above.last().copied().unwrap_or(self)))
    }
}

fn names(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/')
        .filter(|name| !name.is_empty() && *name != ".")
}
