//! The folder in which the lab keeps what it fetched and found out: kernels, foreign programs, answers of probes.
//!
//! ```text
//! ~/.cache/nearfar/
//! ├─ lock                     held by the one process that adds something
//! ├─ making-XXXX/             what it is working on; has no owner once the lock is free
//! ├─ packages/ARCH/           package lists of the machine's distribution for that architecture
//! ├─ kernels/ARCH/RELEASE/    boot/, lib/modules/RELEASE/, record.json
//! ├─ foreign/ARCH/PACKAGE/    static programs, record.json
//! ├─ unpacked/NAME-HASH       kernels and modules without their compression
//! ├─ saved/KEY/               guests that have booted: record.json, state, memory-0, ...
//! ├─ probes/                  what QEMU answers about itself, whether guests run under KVM
//! └─ limit.json               the size limit, if it is not the default
//! ```
//!
//! Kernels, foreign programs and saved guests are made in a `making-` folder under the lock and renamed when they are whole, so that
//! neither two runs at once nor Ctrl-C leave half of one. Single files (`unpacked/`, `probes/`, a record that is updated) are written in
//! their folder and renamed, without the lock. All of it can be deleted at any time; it is fetched again.

mod entries;
mod limit;
mod removal;
mod saved;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock, utimensat,
};
use tempfile::TempDir;

use crate::error::LabError;

pub use entries::{CacheEntry, Kind};
pub use limit::{DEFAULT_LIMIT_BYTES, parse_limit};
pub use removal::{Removed, Trimmed};
pub(crate) use saved::RECORD_FORMAT;
pub use saved::{MemoryFile, SavedRecord, StoredError};

/// How the names of unfinished folders begin.
const MAKING: &str = "making-";

/// The lab's cache folder. It need not exist before something is added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's own: `$XDG_CACHE_HOME/nearfar`, or `~/.cache/nearfar` (XDG Base Directory Specification, which says
    /// to ignore a relative `$XDG_CACHE_HOME`).
    pub fn of_user() -> Result<Self, LabError> {
        let base = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let home = || {
            std::env::home_dir()
                .filter(|path| path.is_absolute())
                .map(|home| home.join(".cache"))
        };
        match base.or_else(home) {
            Some(base) => Ok(Self {
                root: base.join("nearfar"),
            }),
            None => Err(LabError::Missing {
                what: "a folder for fetched kernels".to_owned(),
                hint: "set XDG_CACHE_HOME to an absolute path".to_owned(),
            }),
        }
    }

    /// A cache in a folder of the caller's choice.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the cache holds: by kind in the order of [`Kind::ALL`], within a kind the most recently used first. Reads no
    /// large file. A folder in `saved/` that is damaged or not a saved guest has a `problem`; what another process removes
    /// meanwhile is left out.
    ///
    /// # Errors
    /// When a folder of the cache cannot be read. A cache that does not exist has no entries.
    pub fn entries(&self) -> Result<Vec<CacheEntry>, LabError> {
        entries::entries(self)
    }

    /// Takes the cache for adding to it, waiting for another process that does; tells `waiting` before it waits.
    /// Unfinished work of processes that are gone is removed.
    pub fn lock(&self, waiting: &mut dyn FnMut()) -> Result<CacheLock<'_>, LabError> {
        if let Some(lock) = self.try_lock()? {
            return Ok(lock);
        }
        waiting();
        let file = self.lock_file()?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| self.not_locked(error.into()))?;
        Ok(CacheLock::new(self, file))
    }

    /// [`Self::lock`] where no other process has it.
    pub fn try_lock(&self) -> Result<Option<CacheLock<'_>>, LabError> {
        let file = self.lock_file()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(self.not_locked(error.into())),
            Ok(()) => Ok(Some(CacheLock::new(self, file))),
        }
    }

    /// [`Self::lock`], unless another process keeps it for so long: fetching a kernel takes minutes.
    pub fn lock_within(&self, patience: Duration) -> Result<Option<CacheLock<'_>>, LabError> {
        let started = Instant::now();
        loop {
            match self.try_lock()? {
                None if started.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                other => return Ok(other),
            }
        }
    }

    /// Never truncated or deleted: deleting it would leave two processes with a lock each.
    fn lock_file(&self) -> Result<File, LabError> {
        fs::create_dir_all(&self.root)
            .map_err(|error| self.refused("creating", &self.root, error))?;
        let open = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.root.join("lock"));
        open.map_err(|error| self.not_locked(error))
    }

    fn not_locked(&self, error: io::Error) -> LabError {
        self.refused("locking", &self.root.join("lock"), error)
    }

    fn refused(&self, doing: &str, path: &Path, error: io::Error) -> LabError {
        let hint = "set XDG_CACHE_HOME to use another folder";
        LabError::system(format!("{doing} {}; {hint}", path.display()), error)
    }
}

/// The right to add to a cache; given back when dropped.
#[derive(Debug)]
pub struct CacheLock<'a> {
    cache: &'a Cache,
    _file: File,
}

impl<'a> CacheLock<'a> {
    fn new(cache: &'a Cache, file: File) -> Self {
        let lock = Self { cache, _file: file };
        lock.sweep();
        lock
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        self.cache
    }

    /// A new folder to make something in; removed when dropped.
    pub fn workshop(&self) -> Result<TempDir, LabError> {
        tempfile::Builder::new()
            .prefix(MAKING)
            .tempdir_in(&self.cache.root)
            .map_err(|error| {
                self.cache
                    .refused("creating a folder in", &self.cache.root, error)
            })
    }

    /// Puts a finished folder or file where it belongs, in place of what is there.
    pub fn put(&self, made: &Path, place: &Path) -> Result<(), LabError> {
        let refused = |error| self.cache.refused("writing", place, error);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(refused)?;
        }
        if place.is_dir() {
            // Moved aside first: removing takes long, and a half removed kernel must not be found.
            let aside = self.workshop()?;
            fs::rename(place, aside.path().join("old")).map_err(refused)?;
        }
        tracing::info!(path = %place.display(), "write to the cache");
        fs::rename(made, place).map_err(refused)
    }

    /// Removes what processes left behind that were killed: with the lock held, no process works on it. What cannot be
    /// removed does no harm.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.cache.root) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(MAKING) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Sets a file's modification time, by which [`Cache::trim`] orders entries, to the current time. Best effort: a file whose
/// time cannot be set is removed earlier than it should be.
pub(crate) fn mark_used(path: &Path) {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps {
        last_access: time(UTIME_OMIT),
        last_modification: time(UTIME_NOW),
    };
    let _ = utimensat(CWD, path, &times, AtFlags::empty());
}

/// Reads a regular file of at most so many bytes. Never waits, as it would for a pipe.
///
/// # Errors
/// [`ErrorKind::InvalidData`] for what is larger or not a regular file.
fn read_small(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let invalid = |problem: String| io::Error::new(ErrorKind::InvalidData, problem);
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(max_bytes + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(invalid(format!("larger than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}
