//! Kernels for guests: distribution kernels in a cache, or one of the user's own.
//!
//! ```text
//! "6.12" ─┬─ cached ────────────────────────────► Kernel { release, image, modules }
//!         └─ get: packages::fetch ─► unpacked ─► modules.dep ─► renamed into the cache, with a record
//! path ───── own: image, package folder, build tree ─► Kernel
//! ```

mod fetching;
pub mod image;
pub mod own;
mod record;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::LabError;
use crate::packages::Progress;
use record::Record;

/// A kernel that can be booted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Kernel {
    /// For which guests.
    pub arch: Arch,
    /// Its release, as `uname -r` says it.
    pub release: String,
    /// The image QEMU loads (`vmlinuz`, `Image`, `vmlinux`).
    pub image: PathBuf,
    /// The folder with `modules.dep` (`.../lib/modules/RELEASE`); `None` for a kernel without modules.
    pub modules: Option<PathBuf>,
}

/// A line of kernels with one long-term support: `6.12`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Series {
    /// The 6 of 6.12.
    pub major: u16,
    /// The 12 of 6.12.
    pub minor: u16,
}

impl Series {
    /// The last kernels before Linux learned to bring nodes without CPUs and memory online on Power.
    pub const V6_1: Self = Self { major: 6, minor: 1 };
    /// Debian 13's.
    pub const V6_12: Self = Self {
        major: 6,
        minor: 12,
    };

    /// The series of a release: that of `6.12.107+deb12-amd64` is 6.12.
    pub fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.splitn(3, |c: char| !c.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || format!("{text}: not a kernel series such as 6.12");
        let (major, minor) = text.split_once('.').ok_or_else(refused)?;
        // `parse` takes a sign.
        if ![major, minor]
            .iter()
            .all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
        {
            return Err(refused());
        }
        Ok(Self {
            major: major.parse().map_err(|_| refused())?,
            minor: minor.parse().map_err(|_| refused())?,
        })
    }
}

impl TryFrom<String> for Series {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Series> for String {
    fn from(series: Series) -> Self {
        series.to_string()
    }
}

/// The kernels that nearfar's own tests and examples use, in the order of their use.
pub const KNOWN: [(Series, Arch); 5] = [
    (Series::V6_12, Arch::X86_64),
    (Series::V6_1, Arch::X86_64),
    (Series::V6_12, Arch::Powerpc64le),
    (Series::V6_1, Arch::Powerpc64le),
    (Series::V6_12, Arch::Aarch64),
];

/// A kernel that is cached, or that could be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// Its series.
    pub series: Series,
    /// For which guests.
    pub arch: Arch,
    /// Its release; `None` while it is not cached, since the distribution says which it is.
    pub release: Option<String>,
    /// Whether it is there, whole.
    pub cached: bool,
    /// The distribution's package and its version, `linux-image-... 6.12.107-1`; `None` while it is not cached.
    pub package: Option<String>,
    /// What is wrong with it; `get` repairs it.
    pub damage: Option<String>,
}

/// The known kernels and whatever else is cached; by architecture, then newest first. Looks whether files are there and
/// have their recorded sizes; [`verify`] reads them.
pub fn list(cache: &Cache) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (folder, record) in record::all(cache) {
        let damage = record.damage(&folder);
        entries.push(Entry {
            series: record.series,
            arch: record.arch,
            release: Some(record.release),
            cached: damage.is_none(),
            package: Some(format!("{} {}", record.package, record.version)),
            damage,
        });
    }
    for (series, arch) in KNOWN {
        if !entries
            .iter()
            .any(|entry| (entry.series, entry.arch) == (series, arch))
        {
            entries.push(Entry {
                series,
                arch,
                release: None,
                cached: false,
                package: None,
                damage: None,
            });
        }
    }
    // Within a series the records come newest first, and sorting keeps that.
    entries.sort_by_key(|entry| (entry.arch, std::cmp::Reverse(entry.series)));
    entries
}

/// Reads the cached kernel images again and compares their SHA-256 with what was recorded when the package was
/// unpacked; returns those that differ.
pub fn verify(cache: &Cache) -> Vec<(PathBuf, String)> {
    let damaged = |(folder, record): (PathBuf, Record)| {
        record.damage_within(&folder).map(|damage| (folder, damage))
    };
    record::all(cache).into_iter().filter_map(damaged).collect()
}

/// The newest cached kernel of a series, or else the distribution's newest, fetched into the cache. Asks no network
/// where it is cached, whole.
///
/// Needs `apt-get` and `dpkg-deb`, but not root. Errors: [`LabError::Kernel`] where the distribution has no such kernel
/// or no apt, [`LabError::System`] where the cache cannot be written.
pub fn get(
    cache: &Cache,
    series: Series,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Kernel, LabError> {
    let whole = |record: &Record, folder: &Path| record.damage_within(folder).is_none();
    if let Some(kernel) = newest(cache, Some(series), arch, whole) {
        return Ok(kernel);
    }
    let lock = cache.lock(&mut || progress(Progress::Waiting))?;
    // Another process may have fetched it while this one waited.
    if let Some(kernel) = newest(cache, Some(series), arch, whole) {
        return Ok(kernel);
    }
    fetching::fetch(&lock, series, arch, progress)
}

/// What a user writes for a kernel: a series of the distribution (`6.12`), `host` for the running kernel, a path to an
/// image, a package's folder or a build tree ([`own`]); nothing for the newest cached series.
pub fn find(spec: Option<&str>, arch: Arch) -> Result<Kernel, LabError> {
    find_in(&Cache::of_user()?, spec, arch)
}

/// [`find`] in a given cache.
pub fn find_in(cache: &Cache, spec: Option<&str>, arch: Arch) -> Result<Kernel, LabError> {
    let there = |record: &Record, folder: &Path| record.damage(folder).is_none();
    let refused = |problem: String| LabError::Kernel {
        spec: spec.unwrap_or("any").to_owned(),
        arch,
        problem,
    };
    let Some(spec) = spec else {
        return newest(cache, None, arch, there).ok_or_else(|| {
            refused(format!(
                "none is cached; {}",
                how_to_get(Series::V6_12, arch)
            ))
        });
    };
    if spec == "host" {
        return own::of_host(arch);
    }
    // A file of that name wins only when it is written as a path.
    if let Ok(series) = spec.parse::<Series>() {
        return newest(cache, Some(series), arch, there).ok_or_else(|| {
            refused(format!(
                "not cached{}; {}",
                cached_series(cache, arch),
                how_to_get(series, arch)
            ))
        });
    }
    let release = record::all(cache)
        .into_iter()
        .find(|(_, record)| record.arch == arch && record.release == spec);
    if let Some((folder, record)) = release.filter(|(folder, record)| there(record, folder)) {
        return Ok(record.kernel(&folder));
    }
    own::at_path(Path::new(spec), arch)
}

/// Notes that a guest uses a kernel, for the listing of the cache; best effort.
pub(crate) fn mark_used(cache: &Cache, kernel: &Kernel) {
    record::mark_used(cache, kernel);
}

/// Why a folder of the cache is not a whole kernel; reads no image.
pub(crate) fn damage_of(folder: &Path) -> Option<String> {
    record::damage_of(folder)
}

/// " (cached: 6.12, 6.1)", or nothing where none is.
fn cached_series(cache: &Cache, arch: Arch) -> String {
    let of_arch = list(cache)
        .into_iter()
        .filter(|entry| entry.arch == arch && entry.cached);
    let series: Vec<String> = of_arch.map(|entry| entry.series.to_string()).collect();
    if series.is_empty() {
        String::new()
    } else {
        format!(" (cached: {})", series.join(", "))
    }
}

/// In words, with the command.
fn how_to_get(series: Series, arch: Arch) -> String {
    format!(
        "run: {} (if the distribution has it: nearfar lab kernels list; --kernel PATH takes one of your own)",
        crate::advice::get_kernel(series, arch)
    )
}

fn newest(
    cache: &Cache,
    series: Option<Series>,
    arch: Arch,
    good: impl Fn(&Record, &Path) -> bool,
) -> Option<Kernel> {
    record::all(cache)
        .into_iter()
        .filter(|(_, record)| {
            record.arch == arch && series.is_none_or(|series| record.series == series)
        })
        .find(|(folder, record)| good(record, folder))
        .map(|(folder, record)| record.kernel(&folder))
}
