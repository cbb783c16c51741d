//! Reading files below a root: `/` for the live system, any directory for an extracted tree, or one in memory.
//!
//! An extracted tree comes from another machine and is not trusted. Its symbolic links are resolved as if the root were `/` (openat2 with
//! `RESOLVE_IN_ROOT`), so none leads out of it; only regular files are read, so a FIFO or a device in it cannot make
//! nearfar hang; and a file that is larger than any the kernel writes is refused.

mod directory;
mod memory;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nearfar_proc::rooted;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use directory::Directory;
pub use memory::{Entry, Folder};

/// The largest file that is read at once, in bytes.
pub(crate) const LARGEST: usize = 64 << 20;

/// A root below which files are read.
#[derive(Debug)]
pub struct Tree {
    root: Root,
    place: PathBuf,
    live: bool,
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
        let unreadable = |errno| Unreadable {
            path: root.display().to_string(),
            reason: reason(errno),
        };
        Ok(Self {
            root: Root::Disk(opened.map_err(unreadable)?),
            place: root.to_owned(),
            live,
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
                file.and_then(|file| directory::with_content(file, self.live, LARGEST, read))
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
            Root::Disk(_) => {
                let opened = self.open_below(path, OFlags::PATH | OFlags::DIRECTORY);
                opened.map(Some)
            }
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
            let size = directory::regular_size(&file);
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
        let target = self.link(path)?;
        Ok(target.rsplit('/').next().unwrap_or_default().to_owned())
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

fn reason(errno: Errno) -> Reason {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NXIO => Reason::Absent,
        Errno::ACCESS | Errno::PERM => Reason::Denied,
        Errno::ISDIR => Reason::NotAFile,
        other => Reason::Other(std::io::Error::from(other).to_string()),
    }
}
