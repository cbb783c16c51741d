//! What is written next to a cached kernel: where it came from, and what makes it whole.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::cache::Cache;
use crate::kernels::{Kernel, Series};
use crate::packages::{Version, sha256};

/// The name of the file.
const NAME: &str = "record.json";

/// A cached kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub series: Series,
    pub arch: Arch,
    pub release: String,
    /// The package that it was unpacked from.
    pub package: String,
    pub version: String,
    /// The SHA-256 of the package, from the distribution's signed list.
    pub package_sha256: String,
    /// The image, relative to the record's folder.
    pub image: String,
    pub image_bytes: u64,
    pub image_sha256: String,
}

/// Where the kernels for an architecture are.
pub(super) fn folder(cache: &Cache, arch: Arch) -> PathBuf {
    cache.root().join("kernels").join(arch.uname())
}

/// All cached kernels with their folders, newest first. Folders without a readable record are none.
pub(super) fn all(cache: &Cache) -> Vec<(PathBuf, Record)> {
    let mut found = Vec::new();
    for arch in Arch::ALL {
        let Ok(entries) = fs::read_dir(folder(cache, arch)) else {
            continue;
        };
        for entry in entries.flatten() {
            let folder = entry.path();
            let record = fs::read(folder.join(NAME)).ok();
            let record: Option<Record> =
                record.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            found.extend(
                record
                    .filter(|record| record.arch == arch)
                    .map(|record| (folder, record)),
            );
        }
    }
    found.sort_by_key(|(_, record)| Reverse((record.series, Version::new(&record.version))));
    found
}

/// Why a folder in `kernels/ARCH/` is not a whole kernel.
pub(super) fn damage_of(folder: &Path) -> Option<String> {
    let record = fs::read(folder.join(NAME)).map_err(|error| error.to_string());
    let record =
        record.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
    match record {
        Ok(record) => Record::damage(&record, folder),
        Err(problem) => Some(format!("{NAME}: {problem}")),
    }
}

/// Sets the time of the last use of a cached kernel; nothing for a kernel of the user's own.
pub(super) fn mark_used(cache: &Cache, kernel: &Kernel) {
    let kernels = folder(cache, kernel.arch);
    let release = kernel
        .image
        .strip_prefix(&kernels)
        .ok()
        .and_then(|within| within.components().next());
    if let Some(release) = release {
        crate::cache::mark_used(&kernels.join(release).join(NAME));
    }
}

impl Record {
    /// Writes it into the kernel's folder.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        fs::write(folder.join(NAME), serde_json::to_vec_pretty(self)?)
    }

    /// The kernel, without looking whether it is there.
    pub fn kernel(&self, folder: &Path) -> Kernel {
        Kernel {
            arch: self.arch,
            release: self.release.clone(),
            image: folder.join(&self.image),
            modules: Some(self.modules(folder)),
        }
    }

    fn modules(&self, folder: &Path) -> PathBuf {
        folder.join("lib/modules").join(&self.release)
    }

    /// What is missing, by names and sizes.
    pub fn damage(&self, folder: &Path) -> Option<String> {
        let modules = self.modules(folder).join("modules.dep");
        match fs::metadata(folder.join(&self.image)) {
            Err(error) => Some(format!("{}: {error}", self.image)),
            Ok(metadata) if metadata.len() != self.image_bytes => Some(format!(
                "{}: {} bytes instead of {}",
                self.image,
                metadata.len(),
                self.image_bytes
            )),
            Ok(_) if !modules.is_file() => Some(format!("{} is missing", modules.display())),
            Ok(_) => None,
        }
    }

    /// What is missing or altered, by reading the image.
    pub fn damage_within(&self, folder: &Path) -> Option<String> {
        self.damage(folder)
            .or_else(|| match sha256::of_file(&folder.join(&self.image)) {
                Ok(sum) if sum == self.image_sha256 => None,
                Ok(_) => Some(format!("{} was altered", self.image)),
                Err(error) => Some(format!("{}: {error}", self.image)),
            })
    }
}
