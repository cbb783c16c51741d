//! The program with which Linux on Power configures devices that are plugged in at run time: `drmgr` of powerpc-utils.
//!
//! ```text
//! foreign/ppc64le/drmgr/   drmgr, its loader ld64.so.2, and the libraries it needs
//! ```
//! A guest runs it from the host's cache, by that loader: neither the host nor the first root has its libraries.

use std::fs;
use std::path::{Path, PathBuf};

use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::LabError;
use crate::packages::{Progress, Repository};

/// Packages, and the files that are taken from each.
const FILES: [(&str, &[&str]); 4] = [
    ("powerpc-ibm-utils", &["usr/sbin/drmgr"]),
    ("librtas2", &["usr/lib/powerpc64le-linux-gnu/librtas.so.2"]),
    ("libnuma1", &["usr/lib/powerpc64le-linux-gnu/libnuma.so.1"]),
    (
        "libc6",
        &[
            "lib/powerpc64le-linux-gnu/ld64.so.2",
            "lib/powerpc64le-linux-gnu/libc.so.6",
        ],
    ),
];

/// The folder, if it is cached.
pub fn cached(cache: &Cache) -> Option<PathBuf> {
    let folder = folder(cache);
    folder.join("drmgr").is_file().then_some(folder)
}

/// The folder, fetched unless it is cached.
///
/// # Errors
/// [`LabError::Missing`] where a package cannot be fetched, saying why.
pub fn get(cache: &Cache, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, LabError> {
    if let Some(folder) = cached(cache) {
        return Ok(folder);
    }
    let missing = |hint: String| LabError::Missing {
        what: "drmgr of powerpc-utils".to_owned(),
        hint,
    };
    let lock = cache.lock(&mut || progress(Progress::Waiting))?;
    let repository =
        Repository::open(&lock, Arch::Powerpc64le).map_err(|error| missing(error.to_string()))?;
    let workshop = lock.workshop()?;
    let made = workshop.path().join("drmgr");
    fs::create_dir(&made)
        .map_err(|error| LabError::system(format!("creating {}", made.display()), error))?;
    for (package, files) in FILES {
        let newest = repository.newest(package, |name| name == package, None, progress);
        let newest = newest.map_err(|error| missing(error.to_string()))?;
        let newest =
            newest.ok_or_else(|| missing(format!("{} has no {package}", repository.name())))?;
        let unpacked = workshop.path().join(package);
        repository
            .unpack(&newest, &unpacked, progress)
            .map_err(|error| missing(error.to_string()))?;
        for file in files {
            take(&unpacked, file, &made)
                .map_err(|error| missing(format!("{package} has no {file} ({error})")))?;
        }
    }
    let place = folder(cache);
    lock.put(&made, &place)?;
    Ok(place)
}

/// Copies a file of an unpacked package; newer packages have below `usr` what older ones have in the root.
fn take(package: &Path, file: &str, into: &Path) -> std::io::Result<()> {
    let name = Path::new(file).file_name().unwrap_or_default();
    let places = [package.join(file), package.join("usr").join(file)];
    let place = places.iter().find(|place| place.exists());
    fs::copy(place.unwrap_or(&places[0]), into.join(name)).map(drop)
}

fn folder(cache: &Cache) -> PathBuf {
    let arch = Arch::Powerpc64le.uname();
    cache.root().join("foreign").join(arch).join("drmgr")
}
