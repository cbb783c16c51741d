//! The entries of the cache: what each is, how much disk space it uses, when it was last used.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

use super::{Cache, saved};
use crate::error::LabError;
use crate::kernels;

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
    /// A folder in `kernels/ARCH/`.
    Kernel,
    /// A folder in `foreign/`: the static programs for one architecture.
    Foreign,
    /// Package lists and the results of probes of QEMU and KVM.
    Other,
}

impl Kind {
    /// All kinds, in the order of [`Cache::entries`].
    pub const ALL: [Self; 5] = [
        Self::SavedGuest,
        Self::Unpacked,
        Self::Kernel,
        Self::Foreign,
        Self::Other,
    ];

    /// The kinds that nearfar makes again without the network.
    pub const LOCAL: [Self; 2] = [Self::SavedGuest, Self::Unpacked];

    /// As tables and JSON show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SavedGuest => "saved-guest",
            Self::Unpacked => "unpacked",
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
    serializer.serialize_u64(
        time.duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
    )
}

/// The entries of a cache by kind, within a kind the most recently used first. Folders that processes are working in and
/// files that are not nearfar's are left out, and so is what another process removes meanwhile.
pub(super) fn entries(cache: &Cache) -> Result<Vec<CacheEntry>, LabError> {
    let root = cache.root();
    match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot_read(root, error)),
        Ok(_) => {}
    }
    let now = SystemTime::now();
    let mut entries = Vec::new();
    for path in children(&root.join("saved"))? {
        entries.extend(saved_guest(path, now));
    }
    for path in children(&root.join("unpacked"))? {
        entries.extend(unpacked(path, now));
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
    entries.extend(entry(
        Kind::Other,
        "results of probes of QEMU and KVM".to_owned(),
        root.join("probes"),
        now,
    ));
    entries.sort_by(|a, b| (a.kind, b.last_used, &a.path).cmp(&(b.kind, a.last_used, &b.path)));
    Ok(entries)
}

/// What a folder holds; nothing for one that does not exist or is a file.
fn children(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let found = fs::read_dir(folder)
        .and_then(|found| found.map(|child| child.map(|child| child.path())).collect());
    match found {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        other => other.map_err(|error| cannot_read(folder, error)),
    }
}

fn saved_guest(path: PathBuf, now: SystemTime) -> Option<CacheEntry> {
    let mut entry = entry(Kind::SavedGuest, file_name(&path), path, now)?;
    match saved::SavedRecord::read(&entry.path) {
        Ok(record) => {
            entry.name = record.to_string();
            entry.problem = entry.problem.or_else(|| record.damage(&entry.path));
        }
        Err(problem) => entry.problem = Some(problem.to_string()),
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
    name.rsplit_once('-')
        .filter(|(_, hash)| is_hash(hash))
        .map_or(name, |(stem, _)| stem)
}

fn kernel(path: PathBuf, arch: &str, now: SystemTime) -> Option<CacheEntry> {
    let mut entry = entry(
        Kind::Kernel,
        format!("{} ({arch})", file_name(&path)),
        path,
        now,
    )?;
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
        usage.bytes = usage
            .bytes
            .saturating_add(metadata.blocks().saturating_mul(STAT_BLOCK_BYTES));
        if !metadata.is_dir() {
            continue;
        }
        let children = fs::read_dir(&path).and_then(|found| found.collect::<io::Result<Vec<_>>>());
        let children = children.and_then(|found| {
            let with_metadata =
                |child: fs::DirEntry| child.metadata().map(|metadata| (child.path(), metadata));
            let found = found.into_iter().map(with_metadata);
            found
                .filter(|child| !child.as_ref().is_err_and(is_gone))
                .collect::<io::Result<Vec<_>>>()
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
    path.file_name()
        .unwrap_or(OsStr::new(""))
        .to_string_lossy()
        .into_owned()
}

fn cannot_read(path: &Path, error: io::Error) -> LabError {
    LabError::system(format!("cannot read {}", path.display()), error)
}
