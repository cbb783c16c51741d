//! The system as apply sees it: files below a root. A trait, so that tests can put a kernel in between that says no,
//! answers late, or dies.

mod rooted;

use std::fs::File;
use std::io::{self, Write};

pub use rooted::Rooted;

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
