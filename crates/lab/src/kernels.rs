//! Kernels for guests: distribution kernels and kernels built from a repository in a cache, or one of the user's own.
//!
//! ```text
//! "6.12" ─┬─ cached ────────────────────────────► Kernel { release, image, modules }
//!         └─ get: packages::fetch ─► unpacked ─► modules.dep ─► renamed into the cache, with a record
//! git:REV ── build: cached, or checked out and compiled ─► the cache
//! path ───── own: image, package folder, build tree ─► Kernel
//! ```

pub mod bisection;
pub mod build;
pub mod image;
pub mod own;

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::cache::{self, Cache, CacheLock};
use crate::error::LabError;
use crate::packages::control::{Stanza, Version};
use crate::packages::{self, Progress, Repository, sha256_of_file};
use crate::{advice, foreign};

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
        if !(major.bytes().chain(minor.bytes())).all(|byte| byte.is_ascii_digit()) {
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
    /// The distribution's package and its version, `linux-image-... 6.12.107-1`, or `git` and the revision that it was built from;
    /// `None` while it is not cached.
    pub package: Option<String>,
    /// What is wrong with it; `get` repairs it.
    pub damage: Option<String>,
}

/// The known kernels and whatever else is cached; by architecture, then newest first. Looks whether files are there and
/// have their recorded sizes; [`verify`] reads them.
pub fn list(cache: &Cache) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (folder, record) in cached(cache) {
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
        let mut known = entries.iter().map(|entry| (entry.series, entry.arch));
        if !known.any(|it| it == (series, arch)) {
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
    entries.sort_by_key(|entry| (entry.arch, Reverse(entry.series)));
    entries
}

/// Reads the cached kernel images again and compares their SHA-256 with what was recorded when the package was
/// unpacked; returns those that differ.
pub fn verify(cache: &Cache) -> Vec<(PathBuf, String)> {
    let damaged = |(folder, record): (PathBuf, Record)| {
        record.damage_within(&folder).map(|damage| (folder, damage))
    };
    cached(cache).into_iter().filter_map(damaged).collect()
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
    fetch(&lock, series, arch, progress)
}

/// What a user writes for a kernel: a series of the distribution (`6.12`), `host` for the running kernel, a path to an
/// image, a package's folder or a build tree ([`own`]); nothing for the newest cached series. Kernels of the user's own making are
/// found by their release.
pub fn find_in(cache: &Cache, spec: Option<&str>, arch: Arch) -> Result<Kernel, LabError> {
    let there = |record: &Record, folder: &Path| record.damage(folder).is_none();
    let refused = LabError::kernel(spec.unwrap_or("of any series"), arch);
    let Some(spec) = spec else {
        let hint = how_to_get(Series::V6_12, arch);
        let newest = newest(cache, None, arch, there);
        return newest.ok_or_else(|| refused(format!("none is cached; {hint}")));
    };
    if spec == "host" {
        return own::of_host(arch);
    }
    // A file of that name wins only when it is written as a path.
    if let Ok(series) = spec.parse::<Series>() {
        let newest = newest(cache, Some(series), arch, there);
        return newest.ok_or_else(|| {
            let (others, hint) = (cached_series(cache, arch), how_to_get(series, arch));
            refused(format!("not cached{others}; {hint}"))
        });
    }
    let is_release = |record: &Record| record.arch == arch && record.release == spec;
    let mut kernels = cached(cache).into_iter();
    let release = kernels.find(|(_, record)| is_release(record));
    if let Some((folder, record)) = release.filter(|(folder, record)| there(record, folder)) {
        return Ok(record.kernel(&folder));
    }
    own::at_path(Path::new(spec), arch)
}

/// " (cached: 6.12, 6.1)", or nothing where none is.
fn cached_series(cache: &Cache, arch: Arch) -> String {
    let of_arch = list(cache)
        .into_iter()
        .filter(|entry| entry.arch == arch && entry.cached);
    let series: Vec<String> = of_arch.map(|entry| entry.series.to_string()).collect();
    match series.is_empty() {
        true => String::new(),
        false => format!(" (cached: {})", series.join(", ")),
    }
}

/// In words, with the command.
fn how_to_get(series: Series, arch: Arch) -> String {
    format!(
        "run: {} (if the distribution has it: nearfar lab kernels list; --kernel PATH takes one of your own)",
        advice::get_kernel(series, arch)
    )
}

fn newest(
    cache: &Cache,
    series: Option<Series>,
    arch: Arch,
    good: impl Fn(&Record, &Path) -> bool,
) -> Option<Kernel> {
    let is_wanted = |record: &Record| {
        let is_of_series = series.is_none_or(|series| record.series == series);
        record.arch == arch && is_of_series && !record.is_built
    };
    let mut kernels = cached(cache).into_iter();
    let found = kernels.find(|(folder, it)| is_wanted(it) && good(it, folder));
    found.map(|(folder, record)| record.kernel(&folder))
}

/// What is written next to a cached kernel: where it came from, and what makes it whole.
const RECORD: &str = "record.json";

/// A cached kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    series: Series,
    arch: Arch,
    release: String,
    /// The package that it was unpacked from.
    package: String,
    version: String,
    /// The SHA-256 of the package, from the distribution's signed list; of what a built one was built from.
    package_sha256: String,
    /// The image, relative to the record's folder.
    image: String,
    image_bytes: u64,
    image_sha256: String,
    /// Whether it was built here ([`build`]): such a kernel has no modules.
    #[serde(default)]
    is_built: bool,
}

/// Where the kernels for an architecture are.
fn folder_of(cache: &Cache, arch: Arch) -> PathBuf {
    cache.root().join("kernels").join(arch.uname())
}

/// All cached kernels with their folders, newest first. Folders without a readable record are none.
fn cached(cache: &Cache) -> Vec<(PathBuf, Record)> {
    let mut found = Vec::new();
    for arch in Arch::ALL {
        let Ok(entries) = fs::read_dir(folder_of(cache, arch)) else {
            continue;
        };
        for entry in entries.flatten() {
            let folder = entry.path();
            let record = Record::read(&folder).ok();
            let record = record.filter(|record| record.arch == arch);
            found.extend(record.map(|record| (folder, record)));
        }
    }
    found.sort_by_key(|(_, record)| Reverse((record.series, Version::new(&record.version))));
    found
}

/// Why a folder in `kernels/ARCH/` is not a whole kernel; reads no image.
pub(crate) fn damage_of(folder: &Path) -> Option<String> {
    match Record::read(folder) {
        Ok(record) => record.damage(folder),
        Err(problem) => Some(format!("{RECORD}: {problem}")),
    }
}

/// Sets the time of the last use of a cached kernel, for the listing of the cache; nothing for a kernel of the user's own.
pub(crate) fn mark_used(cache: &Cache, kernel: &Kernel) {
    let kernels = folder_of(cache, kernel.arch);
    let within = kernel.image.strip_prefix(&kernels).ok();
    if let Some(release) = within.and_then(|within| within.components().next()) {
        cache::mark_used(&kernels.join(release).join(RECORD));
    }
}

impl Record {
    fn read(folder: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(folder.join(RECORD))?)?)
    }

    /// Writes it into the kernel's folder.
    fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(RECORD), serde_json::to_vec_pretty(self)?)
    }

    /// The kernel, without looking whether it is there.
    fn kernel(&self, folder: &Path) -> Kernel {
        Kernel {
            arch: self.arch,
            release: self.release.clone(),
            image: folder.join(&self.image),
            modules: (!self.is_built).then(|| self.modules(folder)),
        }
    }

    fn modules(&self, folder: &Path) -> PathBuf {
        folder.join("lib/modules").join(&self.release)
    }

    /// What is missing, by names and sizes.
    fn damage(&self, folder: &Path) -> Option<String> {
        let modules = self.modules(folder).join("modules.dep");
        match fs::metadata(folder.join(&self.image)) {
            Err(error) => Some(format!("{}: {error}", self.image)),
            Ok(metadata) if metadata.len() != self.image_bytes => {
                let (found, bytes) = (metadata.len(), self.image_bytes);
                Some(format!("{}: {found} bytes instead of {bytes}", self.image))
            }
            Ok(_) if !self.is_built && !modules.is_file() => {
                Some(format!("{} is missing", modules.display()))
            }
            Ok(_) => None,
        }
    }

    /// What is missing or altered, by reading the image.
    fn damage_within(&self, folder: &Path) -> Option<String> {
        let altered = || match sha256_of_file(&folder.join(&self.image)) {
            Ok(sum) if sum == self.image_sha256 => None,
            Ok(_) => Some(format!("{} was altered", self.image)),
            Err(error) => Some(format!("{}: {error}", self.image)),
        };
        self.damage(folder).or_else(altered)
    }
}

/// Fetches the newest kernel of a series that the distribution has.
fn fetch(
    lock: &CacheLock<'_>,
    series: Series,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Kernel, LabError> {
    let refused = LabError::kernel(series, arch);
    let repository = Repository::open(lock, arch).map_err(&refused)?;
    let wanted = |name: &str| release_of(name, series, arch).is_some();
    let prefix = format!("linux-image-{series}.");
    let package = repository
        .newest(&prefix, wanted, suite_with(series), progress)
        .map_err(&refused)?;
    let package = package.ok_or_else(|| {
        refused(format!(
            "the distribution ({}) has no such kernel; `nearfar lab kernels list` shows those it has, --kernel PATH takes your own",
            repository.name()
        ))
    })?;
    let workshop = lock.workshop()?;
    let folder = workshop.path().join("kernel");
    repository
        .unpack(&package, &folder, progress)
        .map_err(&refused)?;
    progress(Progress::Preparing("modules.dep"));
    let record = prepared(&folder, &package, series, arch).map_err(&refused)?;
    index_modules(lock, &folder, &record.release, progress).map_err(&refused)?;
    let place = folder_of(lock.cache(), arch).join(&record.release);
    lock.put(&folder, &place)?;
    Ok(record.kernel(&place))
}

/// The release of a package's kernel, if the package is an image of that series for ordinary machines: not of the
/// flavours `cloud` (no NVMe, no 9p) and `rt`, not the debug symbols or the unsigned twin.
fn release_of(package: &str, series: Series, arch: Arch) -> Option<&str> {
    let release = package.strip_prefix("linux-image-")?;
    let flavour = match arch {
        Arch::X86_64 => "amd64",
        Arch::Aarch64 => "arm64",
        Arch::Powerpc64le => "powerpc64le",
    };
    let number = release.strip_suffix(flavour)?.strip_suffix('-')?;
    // Debian 12 numbers its interfaces, 6.1.0-56; later releases name the kernel's own number, 6.12.107+deb12.
    let is_plain = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let plain = |part: &str| part.bytes().all(is_plain);
    let ordinary = match number.split_once('-') {
        Some((number, interface)) => plain(number) && plain(interface),
        None => true,
    };
    (ordinary && Series::of_release(release) == Some(series)).then_some(release)
}

/// The release of Debian whose own kernel that series is, for machines whose release has another.
fn suite_with(series: Series) -> Option<&'static str> {
    match series {
        Series::V6_1 => Some("bookworm"),
        Series::V6_12 => Some("trixie"),
        _ => None,
    }
}

/// Puts an unpacked package in the cache's form and describes it.
fn prepared(folder: &Path, package: &Stanza, series: Series, arch: Arch) -> Result<Record, String> {
    let failed = || packages::refused(format!("unpacked {}", package.package));
    let lacks = |lacks| format!("the package {} has no {lacks}", package.package);
    // Debian 13's packages know /usr/lib only.
    let (split, merged) = (folder.join("lib/modules"), folder.join("usr/lib/modules"));
    if !split.exists() && merged.exists() {
        fs::create_dir_all(folder.join("lib"))
            .and_then(|()| fs::rename(&merged, &split))
            .map_err(failed())?;
    }
    let release = release_of(&package.package, series, arch)
        .ok_or_else(|| lacks("kernel of that series"))?
        .to_owned();
    let (images, end) = (own::images_in(&folder.join("boot")), format!("-{release}"));
    let image = images
        .iter()
        .find(|image| image.to_string_lossy().ends_with(&end));
    let image = image.ok_or_else(|| lacks("image in /boot"))?;
    let bytes = fs::metadata(image).map_err(failed())?.len();
    let within = image.strip_prefix(folder).unwrap_or(image);
    let record = Record {
        series,
        arch,
        release,
        package: package.package.clone(),
        version: package.version.clone(),
        package_sha256: package.sha256.clone(),
        image: within.to_string_lossy().into_owned(),
        image_bytes: bytes,
        image_sha256: sha256_of_file(image).map_err(failed())?,
        is_built: false,
    };
    record.write(folder).map_err(failed())?;
    Ok(record)
}

/// Makes `modules.dep` and its like, which Debian's packages leave to the installation. kmod's `depmod` and busybox's
/// both work on a folder of any architecture and need no root.
fn index_modules(
    lock: &CacheLock<'_>,
    folder: &Path,
    release: &str,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), String> {
    let mut command = match advice::find_program("depmod") {
        Some(program) => Command::new(program),
        None => {
            let host = Arch::host().ok_or("no depmod; install kmod")?;
            let busybox = foreign::busybox_under(lock, host, progress);
            let mut command = Command::new(busybox.map_err(|error| error.to_string())?);
            command.arg("depmod");
            command
        }
    };
    let output = command.arg("-b").arg(folder).arg(release).output();
    let output = output.map_err(packages::refused("depmod"))?;
    let index = folder.join("lib/modules").join(release).join("modules.dep");
    match fs::metadata(&index) {
        Ok(metadata) if output.status.success() && metadata.len() > 0 => Ok(()),
        _ => {
            let program = "depmod made no list of modules";
            Err(packages::failed(program, &output.stderr))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signed_kernels_for_ordinary_machines_are_taken() {
        let release = |name, series, arch| release_of(name, series, arch);
        let (v1, v12) = (Series::V6_1, Series::V6_12);
        assert_eq!(
            release("linux-image-6.1.0-56-amd64", v1, Arch::X86_64),
            Some("6.1.0-56-amd64")
        );
        assert_eq!(
            release("linux-image-6.12.90+deb12.1-arm64", v12, Arch::Aarch64),
            Some("6.12.90+deb12.1-arm64")
        );
        let power = "linux-image-6.12.95+deb12-powerpc64le";
        assert_eq!(
            release(power, v12, Arch::Powerpc64le),
            Some("6.12.95+deb12-powerpc64le")
        );
        for other in [
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-56-rt-amd64",
            "linux-image-6.1.0-56-amd64-unsigned",
            "linux-image-6.1.0-56-amd64-dbg",
            "linux-image-6.12.107+deb12-amd64",
            "linux-image-6.12.107+deb12-rt-amd64",
            "linux-image-6.1-amd64-signed-template",
            "linux-image-amd64",
        ] {
            assert_eq!(release(other, v1, Arch::X86_64), None, "{other}");
        }
        assert_eq!(
            release("linux-image-6.12.107+deb12-cloud-arm64", v12, Arch::Aarch64),
            None
        );
        assert_eq!(
            release("linux-image-6.12.107+deb12-arm64-16k", v12, Arch::Aarch64),
            None
        );
    }
}
