//! Removing entries: the least recently used ones for the limit, or those of chosen kinds.

use std::cmp::Reverse;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{Cache, CacheEntry, CacheLock, Kind};
use crate::error::LabError;

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
        let mut candidates: Vec<_> = entries
            .into_iter()
            .filter(|entry| is_removable(entry, now))
            .collect();
        candidates.retain(|entry| !is_kept(entry));
        candidates.sort_by_key(|entry| {
            (
                Reverse(entry.problem.is_some()),
                entry.last_used,
                entry.path.clone(),
            )
        });
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
    /// a guest that is just being started fails to boot when its unpacked kernel or its kernel is removed.
    pub fn clear(&self, kinds: &[Kind]) -> Result<Removed, LabError> {
        let mut done = Removed::default();
        for entry in self
            .cache
            .entries()?
            .into_iter()
            .filter(|entry| kinds.contains(&entry.kind))
        {
            match self.remove(&entry.path) {
                Ok(is_removed) => done.removed.extend(is_removed.then_some(entry)),
                Err(error) => done.warnings.push(error.to_string()),
            }
        }
        Ok(done)
    }

    /// Removes a file or folder; `false` when it no longer exists.
    pub(crate) fn remove(&self, path: &Path) -> Result<bool, LabError> {
        let failed = |path: &Path, error| {
            LabError::system(format!("cannot remove {}", path.display()), error)
        };
        let workshop = self.workshop()?;
        let aside = workshop.path().join("removed");
        match fs::rename(path, &aside) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            renamed => renamed.map_err(|error| failed(path, error))?,
        }
        let is_folder = fs::symlink_metadata(&aside).is_ok_and(|metadata| metadata.is_dir());
        let removed = if is_folder {
            fs::remove_dir_all(&aside)
        } else {
            fs::remove_file(&aside)
        };
        removed.map_err(|error| failed(&aside, error))?;
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
pub(super) fn total<'a>(entries: impl IntoIterator<Item = &'a CacheEntry>) -> u64 {
    entries
        .into_iter()
        .fold(0, |sum, entry| sum.saturating_add(entry.bytes))
}
