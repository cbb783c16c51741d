//! The system as apply sees it: files below a root. A trait, so that tests can put a kernel in between that says no,
//! answers late, or dies.
//!
//! A target is the live system, or the same files below a directory. Such a tree may come from another system, with links that point out of it: every path is
//! resolved as if the root were `/` ([`nearfar_proc::rooted`]), so no link leads outside.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nearfar_proc::{damon, rooted};
use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, ftruncate, open, readlinkat};
use rustix::io::Errno;

use crate::apply::ApplyError;
use crate::journal;
use crate::state::{Location, STATE_DIR};

/// The files of a system. Paths are absolute and mean "below the root".
pub trait System {
    /// A file's whole content.
    ///
    /// # Errors
    /// The system's answer; also for what is not a regular file or has more than 4 MiB.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The begin of a file, at least its first line: the kernel makes the rest of a sequence file only when it is read.
    ///
    /// # Errors
    /// As [`System::read`].
    fn begin(&self, path: &str) -> io::Result<Vec<u8>> {
        self.read(path)
    }

    /// Gives a file this content, with a single write as sysfs and procfs need it.
    ///
    /// # Errors
    /// The system's answer. The kernel's files are then as before; a file of a tree may hold the new bytes followed by
    /// the rest of the longer old ones.
    fn write(&self, path: &str, content: &[u8]) -> io::Result<()>;

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// The system's answer.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Where a symbolic link points, as it is written.
    ///
    /// # Errors
    /// The system's answer.
    fn link(&self, path: &str) -> io::Result<String>;

    /// Whether something has a disk open exclusively: a mount in any namespace, a file system of several devices, a volume manager.
    /// Of a tree that is none.
    fn is_claimed(&self, _disk: &str) -> bool {
        false
    }

    /// Appends a line to a journal; the page cache may hold it: it survives a kill, not a power failure. Part of this trait, as
    /// [`System::sync`], only so that tests can let the disk be full and the process end.
    ///
    /// # Errors
    /// The system's answer; some of the line may have been written.
    fn append(&self, mut journal: &File, line: &[u8]) -> io::Result<()> {
        journal.write_all(line)
    }

    /// Returns when a journal is on disk.
    ///
    /// # Errors
    /// The system's answer.
    fn sync(&self, journal: &File) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(journal)?)
    }
}

/// The first line of a file without white space around it; `None` where there is none or the file cannot be read.
pub(crate) fn first_line(system: &dyn System, path: &str) -> Option<String> {
    let text = String::from_utf8(system.read(path).ok()?).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// A setting's text.
///
/// # Errors
/// As [`System::read`]; also for what is no text.
pub(crate) fn text(system: &dyn System, path: &str) -> io::Result<String> {
    String::from_utf8(system.read(path)?).map_err(|_| io::Error::other("it does not hold text"))
}

/// More than any setting, /proc/swaps or mountinfo of a machine full of containers has.
const LONGEST: u64 = 4 << 20;

/// The files below a directory: `/` for the live system.
#[derive(Debug)]
pub struct Rooted {
    root: OwnedFd,
    tree: bool,
}

impl Rooted {
    /// The live system.
    ///
    /// # Errors
    /// When `/` cannot be opened.
    pub fn live() -> io::Result<Self> {
        Ok(Self {
            root: open_directory(Path::new("/"))?,
            tree: false,
        })
    }

    /// A directory tree.
    ///
    /// # Errors
    /// When it cannot be opened, or is no directory.
    pub fn tree(root: &Path) -> io::Result<Self> {
        Ok(Self {
            root: open_directory(root)?,
            tree: true,
        })
    }

    /// Opens a path below the root, creating nothing.
    pub(crate) fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        // A tree may hold a FIFO or a terminal. With O_PATH, which opens nothing, openat2 refuses these two (EINVAL).
        let harmless = OFlags::NOCTTY | OFlags::NONBLOCK;
        let flags = if flags.contains(OFlags::PATH) {
            flags
        } else {
            flags | harmless
        };
        match rooted::open(&self.root, path, flags) {
            // A container's filter that knows no openat2. The live root needs no fence.
            Err(Errno::PERM) if !self.tree => {
                let path = format!("/{path}");
                Ok(open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
            }
            opened => Ok(opened?),
        }
    }

    fn open_file(&self, path: &str, flags: OFlags) -> io::Result<File> {
        let file = self.open(path, flags | OFlags::NOFOLLOW)?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("not a regular file"));
        }
        if self.tree && flags.contains(OFlags::WRONLY) && stat.st_nlink > 1 {
            // The other name may lie outside the tree, or in the tree this one was copied from.
            return Err(io::Error::other(
                "the file has a second name (hard link): copy the tree without hard links",
            ));
        }
        Ok(file.into())
    }
}

impl System for Rooted {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let content = journal::load(self.open_file(path, OFlags::RDONLY)?, LONGEST)?;
        tracing::trace!(path, bytes = content.len(), "read");
        Ok(content)
    }

    fn begin(&self, path: &str) -> io::Result<Vec<u8>> {
        // Longer than what stands before the name of a mapping's file. seq_read_iter() ends with the line that fills it.
        let mut begin = vec![0; 128];
        let length = self.open_file(path, OFlags::RDONLY)?.read(&mut begin)?;
        begin.truncate(length);
        Ok(begin)
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let file = self.open_file(path, OFlags::WRONLY)?;
        // Not pwrite: the kernel's sequence files, /proc/irq among them, refuse it (seq_open in fs/seq_file.c).
        let write = || (&file).write(content);
        let written = match path.starts_with(damon::KDAMONDS) {
            true => damon::once_free(write),
            false => write(),
        }?;
        if written != content.len() {
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                "only a part was written",
            ));
        }
        // Shortened after the write and not before: a kill in between leaves bytes that rollback can recognise.
        if fstat(&file)?.st_size as u64 > content.len() as u64 {
            let cut = ftruncate(&file, content.len() as u64);
            // Those of sysfs say that they have a page.
            if self.tree {
                cut?;
            }
        }
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn is_claimed(&self, disk: &str) -> bool {
        let opened = self.open(&format!("/dev/{disk}"), OFlags::RDONLY | OFlags::EXCL);
        opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let link = self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let target = readlinkat(&link, "", Vec::new())?;
        target
            .into_string()
            .map_err(|_| io::Error::other("the link does not hold text"))
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The live system or a directory tree, and where its journal is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub(crate) root: Option<PathBuf>,
    state_dir: Option<PathBuf>,
}

impl Target {
    /// The running system; the journal in `state_dir` or else /var/lib/nearfar.
    pub fn live(state_dir: Option<PathBuf>) -> Self {
        Self {
            root: None,
            state_dir,
        }
    }

    /// The sysfs and procfs files below `root`; the journal in `state_dir` or else in `root`/var/lib/nearfar.
    pub fn tree(root: PathBuf, state_dir: Option<PathBuf>) -> Self {
        Self {
            root: Some(root),
            state_dir,
        }
    }

    /// Whether this is a directory tree. A tree has no boots, no drivers, and is not restored by a reboot.
    pub fn is_tree(&self) -> bool {
        self.root.is_some()
    }

    /// The files of the target.
    ///
    /// # Errors
    /// When the tree's directory cannot be opened.
    pub fn system(&self) -> Result<Rooted, ApplyError> {
        let opened = match &self.root {
            Some(root) => Rooted::tree(root),
            None => Rooted::live(),
        };
        let place = || self.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        opened.map_err(|error| ApplyError::Root {
            root: place(),
            error,
        })
    }

    /// The boot the live system is in: what was written to sysfs and procfs in another boot is gone.
    pub(crate) fn boot(&self, system: &dyn System) -> Option<String> {
        let id = || first_line(system, "/proc/sys/kernel/random/boot_id");
        if self.is_tree() { None } else { id() }
    }

    /// Where its journals are kept.
    pub(crate) fn location(&self) -> Location {
        match (&self.state_dir, &self.root) {
            (Some(directory), _) => Location::Directory(directory.clone()),
            (None, Some(root)) => Location::InTree(root.clone()),
            (None, None) => Location::Directory(STATE_DIR.into()),
        }
    }

    /// The same, for messages.
    pub(crate) fn place(&self) -> String {
        self.location().path().display().to_string()
    }

    /// The target's host name, where it tells.
    pub(crate) fn host(&self, system: &dyn System) -> Option<String> {
        first_line(system, "/proc/sys/kernel/hostname")
            .or_else(|| first_line(system, "/etc/hostname"))
    }
}
