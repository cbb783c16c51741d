//! A directory that stays open, for reading many small files in it: no path is walked twice, nothing is allocated.

use std::os::fd::{AsFd, OwnedFd};

use nearfar_proc::rooted;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Reason, Tree, Unreadable, reason};

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
        target
            .map_err(reason)?
            .into_string()
            .map_err(|_| Reason::NotText)
    }

    /// The last part of what a symbolic link in it says: a driver's or a subsystem's name.
    ///
    /// # Errors
    /// As [`Directory::link`].
    pub fn link_name(&self, name: &str) -> Result<String, Reason> {
        let target = self.link(name)?;
        Ok(target.rsplit('/').next().unwrap_or_default().to_owned())
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
        match opened {
            // Links, `..`, and kernels without openat2.
            Err(Errno::LOOP | Errno::NOSYS) => self.tree.open_below(&self.below(name), flags),
            // O_DIRECTORY finds a link to be no directory before O_NOFOLLOW finds it to be a link.
            Err(Errno::NOTDIR) if flags.contains(OFlags::DIRECTORY) => {
                self.tree.open_below(&self.below(name), flags)
            }
            opened => opened.map_err(reason),
        }
    }
}

/// Hands the content of an open file of at most `largest` bytes to `read`.
pub(super) fn with_content<R>(
    file: impl AsFd,
    live: bool,
    largest: usize,
    read: impl FnOnce(&[u8]) -> R,
) -> Result<R, Reason> {
    let file = file.as_fd();
    // The kernel's own files are what they are; an extracted tree may hold anything.
    let expected = if live {
        None
    } else {
        Some(regular_size(file)?)
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
pub(super) fn regular_size(file: impl AsFd) -> Result<usize, Reason> {
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
        content.reserve(
            expected
                .map_or(content.len(), |size| size.saturating_sub(content.len()))
                .max(PAGE),
        );
        match rustix::io::read(&file, rustix::buffer::spare_capacity(content)) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(reason(errno)),
        }
    }
}
