//! The folder in which the lab keeps what it fetched and found out: kernels, foreign programs, answers of probes.
//!
//! ```text
//! ~/.cache/nearfar/
//! ├─ lock                     held by the one process that adds something
//! ├─ making-XXXX/             what it is working on; has no owner once the lock is free
//! ├─ packages/ARCH/           package lists of the machine's distribution for that architecture
//! ├─ builds/NAME-ARCH-HASH/   a repository's checkout, and what was compiled of it
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

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock, utimensat,
};
use serde::{Deserialize, Serialize, Serializer};
use tempfile::{NamedTempFile, TempDir};

use crate::error::LabError;
use crate::guest::SavedRecord;
use crate::kernels;

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
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || std::env::home_dir().filter(|home| home.is_absolute());
        let base = base.filter(|path| path.is_absolute());
        let base = base.or_else(|| Some(home()?.join(".cache")));
        let base = base.ok_or_else(|| LabError::Missing {
            what: "a folder for fetched kernels".to_owned(),
            hint: "set XDG_CACHE_HOME to an absolute path".to_owned(),
        })?;
        Ok(Self::at(base.join("nearfar")))
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
    /// large file. Folders that processes are working in and files that are not nearfar's are left out. A folder in `saved/` that
    /// is damaged or not a saved guest has a `problem`; what another process removes meanwhile is left out.
    ///
    /// # Errors
    /// When a folder of the cache cannot be read. A cache that does not exist has no entries.
    pub fn entries(&self) -> Result<Vec<CacheEntry>, LabError> {
        let root = &self.root;
        match fs::read_dir(root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            found => _ = found.map_err(LabError::at("cannot read", root))?,
        }
        let now = SystemTime::now();
        let mut entries = Vec::new();
        for path in children(&root.join("saved"))? {
            entries.extend(saved_guest(path, now));
        }
        for path in children(&root.join("unpacked"))? {
            entries.extend(unpacked(path, now));
        }
        for path in children(&root.join(kernels::build::BUILDS))? {
            let name = file_name(&path);
            entries.extend(entry(Kind::Build, name, path, now));
        }
        for arch in children(&root.join("kernels"))? {
            for path in children(&arch)? {
                entries.extend(kernel(path, &file_name(&arch), now));
            }
        }
        for path in children(&root.join("foreign"))? {
            let name = format!("programs for {} guests", file_name(&path));
            entries.extend(entry(Kind::Foreign, name, path, now));
        }
        for path in children(&root.join("packages"))? {
            let name = format!("package lists ({})", file_name(&path));
            entries.extend(entry(Kind::Other, name, path, now));
        }
        let name = "results of probes of QEMU and KVM".to_owned();
        entries.extend(entry(Kind::Other, name, root.join("probes"), now));
        entries.sort_by(|a, b| (a.kind, b.last_used, &a.path).cmp(&(b.kind, a.last_used, &b.path)));
        Ok(entries)
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
    fn try_lock(&self) -> Result<Option<CacheLock<'_>>, LabError> {
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
        let root = &self.cache.root;
        let made = tempfile::Builder::new().prefix(MAKING).tempdir_in(root);
        made.map_err(|error| self.cache.refused("creating a folder in", root, error))
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
pub(crate) fn read_small(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let invalid = |problem: String| io::Error::new(ErrorKind::InvalidData, problem);
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    let mut file = File::open(path)?.take(max_bytes + 1);
    file.read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(invalid(format!("larger than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}

/// Writes a file under another name in its folder, which is made, and renames it, so that no process reads half of it.
pub(crate) fn write_renamed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// The file whose modification time says when a kernel or a saved guest was last used.
const RECORD: &str = "record.json";

/// Unfinished files in `unpacked/` that are younger than this belong to a process that still writes them.
const MAX_WRITE_TIME: Duration = Duration::from_secs(3600);

/// The size of a block in `st_blocks`, whatever the file system's own blocks are (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// The kinds of entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A folder in `saved/`: the state and memory of a guest that has booted.
    SavedGuest,
    /// A file in `unpacked/`: a kernel or module without its compression.
    Unpacked,
    /// A folder in `builds/`: a repository's checkout, and what was compiled of it.
    Build,
    /// A folder in `kernels/ARCH/`.
    Kernel,
    /// A folder in `foreign/`: the static programs for one architecture.
    Foreign,
    /// Package lists and the results of probes of QEMU and KVM.
    Other,
}

impl Kind {
    /// All kinds, in the order of [`Cache::entries`].
    pub const ALL: [Self; 6] = [
        Self::SavedGuest,
        Self::Unpacked,
        Self::Build,
        Self::Kernel,
        Self::Foreign,
        Self::Other,
    ];

    /// The kinds that nearfar makes again soon, without the network.
    pub const LOCAL: [Self; 2] = [Self::SavedGuest, Self::Unpacked];

    /// As tables and JSON show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SavedGuest => "saved-guest",
            Self::Unpacked => "unpacked",
            Self::Build => "build",
            Self::Kernel => "kernel",
            Self::Foreign => "foreign",
            Self::Other => "other",
        }
    }

    /// Whether [`Cache::trim`] may remove entries of this kind.
    pub fn is_trimmed(self) -> bool {
        Self::LOCAL.contains(&self)
    }
}

/// One thing that the cache holds, removed as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CacheEntry {
    /// What it is.
    pub kind: Kind,
    /// A name for people. Not unique.
    pub name: String,
    /// The file or folder. In JSON, bytes that are not UTF-8 are replaced.
    #[serde(serialize_with = "lossy_path")]
    pub path: PathBuf,
    /// The disk space in use: allocated blocks, so the holes of sparse files do not count.
    pub bytes: u64,
    /// When a guest last used it; never later than the time of the listing.
    #[serde(rename = "last_used_at_s", serialize_with = "seconds_since_1970")]
    pub last_used: SystemTime,
    /// Why it cannot be used: damaged, made by another version of nearfar, or not readable.
    pub problem: Option<String>,
}

fn lossy_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

fn seconds_since_1970<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    serializer.serialize_u64(since_1970.as_secs())
}

/// What a folder holds; nothing for one that does not exist or is a file.
fn children(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let found = fs::read_dir(folder)
        .and_then(|found| found.map(|child| child.map(|child| child.path())).collect());
    match found {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        other => other.map_err(LabError::at("cannot read", folder)),
    }
}

fn saved_guest(path: PathBuf, now: SystemTime) -> Option<CacheEntry> {
    let mut entry = entry(Kind::SavedGuest, file_name(&path), path, now)?;
    match SavedRecord::read(&entry.path) {
        Ok(record) => {
            entry.name = record.to_string();
            entry.problem = entry.problem.or_else(|| record.damage(&entry.path));
        }
        Err(problem) => entry.problem = Some(problem),
    }
    // Removed by another process while its files were read.
    fs::symlink_metadata(&entry.path).is_ok().then_some(entry)
}

fn unpacked(path: PathBuf, now: SystemTime) -> Option<CacheEntry> {
    let name = file_name(&path);
    let entry = entry(Kind::Unpacked, without_hash(&name).to_owned(), path, now)?;
    let age = now.duration_since(entry.last_used).unwrap_or_default();
    (!name.starts_with('.') || age > MAX_WRITE_TIME).then_some(entry)
}

/// `vmlinuz-6.12` of `vmlinuz-6.12-8dd5b23fe1b9e5b2`.
fn without_hash(name: &str) -> &str {
    let is_hash =
        |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = name.rsplit_once('-').filter(|(_, hash)| is_hash(hash));
    parts.map_or(name, |(stem, _)| stem)
}

fn kernel(path: PathBuf, arch: &str, now: SystemTime) -> Option<CacheEntry> {
    let name = format!("{} ({arch})", file_name(&path));
    let mut entry = entry(Kind::Kernel, name, path, now)?;
    entry.problem = entry.problem.or_else(|| kernels::damage_of(&entry.path));
    fs::symlink_metadata(&entry.path).is_ok().then_some(entry)
}

/// An entry without a look at its content; `None` when the path does not exist.
fn entry(kind: Kind, name: String, path: PathBuf, now: SystemTime) -> Option<CacheEntry> {
    let usage = usage(&path)?;
    let record = fs::symlink_metadata(path.join(RECORD)).and_then(|metadata| metadata.modified());
    // A time in the future, from before the clock was set, must not protect the entry for as long.
    let last_used = record.unwrap_or(usage.modified).min(now);
    Some(CacheEntry {
        kind,
        name,
        path,
        bytes: usage.bytes,
        last_used,
        problem: usage.problem,
    })
}

struct Usage {
    bytes: u64,
    /// Of the file or folder itself.
    modified: SystemTime,
    /// What could not be read, so that `bytes` is too small.
    problem: Option<String>,
}

/// The disk space of a file or folder with everything in it; links are not followed.
fn usage(path: &Path) -> Option<Usage> {
    let own = fs::symlink_metadata(path).ok()?;
    let mut usage = Usage {
        bytes: 0,
        modified: own.modified().unwrap_or(UNIX_EPOCH),
        problem: None,
    };
    // Not recursive: nothing limits the depth of a folder.
    let mut pending = vec![(path.to_owned(), own)];
    while let Some((path, metadata)) = pending.pop() {
        let bytes = metadata.blocks().saturating_mul(STAT_BLOCK_BYTES);
        usage.bytes = usage.bytes.saturating_add(bytes);
        if !metadata.is_dir() {
            continue;
        }
        let children = fs::read_dir(&path).and_then(|found| found.collect::<io::Result<Vec<_>>>());
        let with_metadata =
            |child: fs::DirEntry| child.metadata().map(|metadata| (child.path(), metadata));
        let children = children.and_then(|found| {
            let found = found.into_iter().map(with_metadata);
            let found = found.filter(|child| !child.as_ref().is_err_and(is_gone));
            found.collect::<io::Result<Vec<_>>>()
        });
        match children {
            Ok(children) => pending.extend(children),
            Err(error) if is_gone(&error) => {}
            Err(error) => usage.problem = Some(format!("cannot read {}: {error}", path.display())),
        }
    }
    Some(usage)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The limit of a cache without `limit.json`.
pub const DEFAULT_LIMIT_BYTES: u64 = 8 << 30;

const LIMIT_FILE: &str = "limit.json";

/// The version of `limit.json` that this nearfar reads and writes.
const LIMIT_FORMAT: u64 = 1;

/// The file that nearfar writes has 50 bytes.
const MAX_LIMIT_FILE_BYTES: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct LimitFile {
    format: u64,
    bytes: u64,
}

/// Reads the content of `limit.json`: the limit in bytes.
///
/// # Errors
/// What is wrong with it.
pub fn parse_limit(bytes: &[u8]) -> Result<u64, String> {
    let read = serde_json::from_slice(bytes);
    let LimitFile { format, bytes } = read.map_err(|error| error.to_string())?;
    match format {
        LIMIT_FORMAT => Ok(bytes),
        _ => Err(of_another_version(format)),
    }
}

/// What is wrong with a file of the cache that has another version of its format.
pub(crate) fn of_another_version(format: u64) -> String {
    format!("format {format} is of another version of nearfar")
}

impl Cache {
    /// The limit in bytes: what `limit.json` says, or [`DEFAULT_LIMIT_BYTES`] without that file.
    ///
    /// # Errors
    /// [`LabError::Content`] when the file is damaged or not a regular file, [`LabError::System`] when it cannot be read.
    pub fn limit(&self) -> Result<u64, LabError> {
        let path = self.root().join(LIMIT_FILE);
        let problem = match read_small(&path, MAX_LIMIT_FILE_BYTES) {
            Ok(bytes) => match parse_limit(&bytes) {
                Ok(limit) => return Ok(limit),
                Err(problem) => problem,
            },
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(DEFAULT_LIMIT_BYTES),
            Err(error) if error.kind() == ErrorKind::InvalidData => error.to_string(),
            Err(error) => return Err(LabError::at("cannot read", &path)(error)),
        };
        Err(LabError::Content { path, problem })
    }

    /// [`Cache::limit`], or the default with a warning when the limit cannot be read.
    pub fn limit_or_default(&self) -> (u64, Option<String>) {
        let warning = |error| format!("the default limit applies: {error}");
        match self.limit() {
            Ok(limit) => (limit, None),
            Err(error) => (DEFAULT_LIMIT_BYTES, Some(warning(error))),
        }
    }

    /// [`CacheLock::set_limit`], waiting for the lock.
    pub fn set_limit(&self, bytes: u64) -> Result<(), LabError> {
        self.lock(&mut || {})?.set_limit(bytes)
    }
}

impl CacheLock<'_> {
    /// Replaces the limit; removes nothing. The file is written in a workshop and renamed, so no reader finds half of it.
    pub fn set_limit(&self, bytes: u64) -> Result<(), LabError> {
        let place = self.cache.root.join(LIMIT_FILE);
        let workshop = self.workshop()?;
        let made = workshop.path().join(LIMIT_FILE);
        let format = LIMIT_FORMAT;
        let text = serde_json::to_vec(&LimitFile { format, bytes }).unwrap_or_default();
        fs::write(&made, text).map_err(LabError::at("cannot write", &made))?;
        self.put(&made, &place)
    }
}

/// [`Cache::trim`] keeps unpacked files that were used within this time: another nearfar passes such a file to QEMU by its
/// name, and QEMU may not have opened it yet.
const MIN_UNUSED_TIME: Duration = Duration::from_secs(60);

/// What [`Cache::clear`] removed.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Removed {
    /// The removed entries, with the sizes they had.
    pub removed: Vec<CacheEntry>,
    /// What could not be removed, and why.
    pub warnings: Vec<String>,
}

impl Removed {
    /// The disk space that the removed entries used. The file system frees the memory of a saved guest that another process
    /// still runs when that process ends.
    pub fn freed_bytes(&self) -> u64 {
        total(&self.removed)
    }
}

/// What [`Cache::trim`] removed, and what is left.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Trimmed {
    /// The removed entries in the order of removal, with the sizes they had.
    pub removed: Vec<CacheEntry>,
    /// The limit that was applied.
    pub limit_bytes: u64,
    /// What the cache uses now.
    pub total_bytes: u64,
    /// The part of it that only [`Cache::clear`] removes: kernels, foreign programs, package lists, probe results.
    pub untrimmed_bytes: u64,
    /// What could not be removed, and a limit that could not be read.
    pub warnings: Vec<String>,
}

impl Trimmed {
    /// Whether the cache is still larger than its limit.
    pub fn is_over_limit(&self) -> bool {
        self.total_bytes > self.limit_bytes
    }

    /// The disk space that the removed entries used; see [`Removed::freed_bytes`].
    pub fn freed_bytes(&self) -> u64 {
        total(&self.removed)
    }
}

impl Cache {
    /// [`CacheLock::trim`], waiting for the lock. A caller that holds the lock uses that one: a second lock of the same
    /// process waits for the first one forever.
    pub fn trim(&self, keep: &[PathBuf]) -> Result<Trimmed, LabError> {
        if !self.root.exists() {
            let (limit_bytes, warning) = self.limit_or_default();
            return Ok(Trimmed {
                limit_bytes,
                warnings: warning.into_iter().collect(),
                ..Trimmed::default()
            });
        }
        self.lock(&mut || {})?.trim(keep)
    }

    /// [`CacheLock::clear`], waiting for the lock.
    pub fn clear(&self, kinds: &[Kind]) -> Result<Removed, LabError> {
        if !self.root.exists() {
            return Ok(Removed::default());
        }
        self.lock(&mut || {})?.clear(kinds)
    }
}

impl CacheLock<'_> {
    /// Removes saved guests and unpacked files until the cache is within its limit: those with a problem first, then the
    /// least recently used. Keeps entries whose path, or a file of which, is in `keep`. Kernels, foreign programs, package
    /// lists and probe results count towards the limit but are never removed: they need the network.
    ///
    /// # Concurrency
    /// An entry is renamed into a `making-` folder before it is deleted, so another process finds all of it or nothing.
    /// Another process may be starting from a saved guest that is removed. That is safe: it opens all files of the guest
    /// first and then uses only the descriptors; when a file is gone before it is opened, the guest is not saved.
    ///
    /// # Errors
    /// When the cache cannot be read or its folder cannot be written. An entry that cannot be removed is a warning.
    pub fn trim(&self, keep: &[PathBuf]) -> Result<Trimmed, LabError> {
        let (limit_bytes, warning) = self.cache.limit_or_default();
        let entries = self.cache.entries()?;
        let now = SystemTime::now();
        let mut trimmed = Trimmed {
            removed: Vec::new(),
            limit_bytes,
            total_bytes: total(&entries),
            untrimmed_bytes: total(entries.iter().filter(|entry| !entry.kind.is_trimmed())),
            warnings: warning.into_iter().collect(),
        };
        let is_kept = |entry: &CacheEntry| keep.iter().any(|kept| kept.starts_with(&entry.path));
        let mut candidates = entries;
        candidates.retain(|entry| is_removable(entry, now) && !is_kept(entry));
        let order = |entry: &CacheEntry| (Reverse(entry.problem.is_some()), entry.last_used);
        candidates.sort_by(|a, b| (order(a), &a.path).cmp(&(order(b), &b.path)));
        for entry in candidates {
            if !trimmed.is_over_limit() {
                break;
            }
            match self.remove(&entry.path) {
                Ok(is_removed) => {
                    trimmed.total_bytes = trimmed.total_bytes.saturating_sub(entry.bytes);
                    trimmed.removed.extend(is_removed.then_some(entry));
                }
                Err(error) => trimmed.warnings.push(error.to_string()),
            }
        }
        Ok(trimmed)
    }

    /// Removes all entries of these kinds, whatever the limit. Concurrency and errors are those of [`CacheLock::trim`], but
    /// a guest that is just being started fails to boot when its unpacked kernel or its kernel is removed. A build that runs stays.
    pub fn clear(&self, kinds: &[Kind]) -> Result<Removed, LabError> {
        let mut done = Removed::default();
        let entries = self.cache.entries()?.into_iter();
        for entry in entries.filter(|entry| kinds.contains(&entry.kind)) {
            let lock = match entry.kind {
                Kind::Build => kernels::build::lock_of(&entry.path).ok(),
                _ => None,
            };
            if lock.is_some_and(|(_, is_free)| !is_free) {
                let folder = entry.path.display();
                done.warnings
                    .push(format!("{folder} stays: a kernel is being built in it"));
                continue;
            }
            match self.remove(&entry.path) {
                Ok(is_removed) => done.removed.extend(is_removed.then_some(entry)),
                Err(error) => done.warnings.push(error.to_string()),
            }
        }
        Ok(done)
    }

    /// Removes a file or folder; `false` when it no longer exists.
    pub(crate) fn remove(&self, path: &Path) -> Result<bool, LabError> {
        let workshop = self.workshop()?;
        let aside = workshop.path().join("removed");
        match fs::rename(path, &aside) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            renamed => renamed.map_err(LabError::at("cannot remove", path))?,
        }
        let is_folder = fs::symlink_metadata(&aside).is_ok_and(|metadata| metadata.is_dir());
        let removed = if is_folder {
            fs::remove_dir_all(&aside)
        } else {
            fs::remove_file(&aside)
        };
        removed.map_err(LabError::at("cannot remove", &aside))?;
        tracing::info!(path = %path.display(), "removed from the cache");
        Ok(true)
    }
}

fn is_removable(entry: &CacheEntry, now: SystemTime) -> bool {
    let unused_time = now.duration_since(entry.last_used).unwrap_or_default();
    match entry.kind {
        Kind::Unpacked => unused_time >= MIN_UNUSED_TIME,
        kind => kind.is_trimmed(),
    }
}

/// The disk space of these entries together.
fn total<'a>(entries: impl IntoIterator<Item = &'a CacheEntry>) -> u64 {
    let bytes = entries.into_iter().map(|entry| entry.bytes);
    bytes.fold(0, u64::saturating_add)
}
