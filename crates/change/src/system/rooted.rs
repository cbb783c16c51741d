//! Real files below a real directory. A tree may come from another system, with links that point out of it: every path is
//! resolved as if the root were `/` ([`nearfar_proc::rooted`]), so no link leads outside.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nearfar_proc::rooted;
use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, ftruncate, open, readlinkat};
use rustix::io::Errno;

use super::System;

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
        let mut content = Vec::new();
        self.open_file(path, OFlags::RDONLY)?
            .take(LONGEST + 1)
            .read_to_end(&mut content)?;
        tracing::trace!(path, bytes = content.len(), "read");
        if content.len() as u64 > LONGEST {
            return Err(io::Error::other("it has more than 4 MiB"));
        }
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
        let written = (&file).write(content)?;
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
