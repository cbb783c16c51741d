//! Packages of the machine's own distribution, for any architecture, fetched without root and without touching the
//! system.
//!
//! ```text
//! /etc/apt (read) ─► Archive ─► private apt: lists, cache, status in the lab's cache ─► .deb ─► SHA-256 ─► unpacked
//! ```
//!
//! apt checks the lists' signatures with the keys that the machine trusts for its own mirror, and each package against
//! those lists; what can be configured to weaken that is switched off. The package's SHA-256 is compared once more
//! here, because apt's own check cannot be seen from outside.

mod apt;
pub mod control;
pub mod sha256;
pub mod sources;
mod version;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use crate::cache::CacheLock;
use crate::error::LabError;
use apt::Apt;
pub use control::Stanza;
use sources::Archive;
pub use version::Version;

/// What is being done, for the user that waits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progress<'a> {
    /// Another process adds something to the cache.
    Waiting,
    /// The distribution's lists of packages are brought up to date.
    Lists {
        /// From 0 to 100.
        percent: f32,
    },
    /// A package is fetched.
    Download {
        /// The package.
        package: &'a str,
        /// Bytes so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A package is taken apart.
    Unpacking(&'a str),
    /// Something is made from what was unpacked.
    Preparing(&'a str),
}

/// The packages for one architecture. Errors are sentences that say what to do; the caller says for what.
#[derive(Debug)]
pub struct Repository {
    arch: Arch,
    archive: Archive,
    apt: Apt,
    dpkg_deb: PathBuf,
}

/// What to do where packages cannot be fetched.
const OTHERWISE: &str = "name a kernel of your own with --kernel PATH, which works everywhere";

/// Why a package is not there.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("{0}; {OTHERWISE}")]
    NoArchive(#[from] sources::ArchiveError),
    #[error("fetching needs {0}, which is not installed; {OTHERWISE}")]
    MissingProgram(&'static str),
    #[error("apt takes no path such as {0:?}; set XDG_CACHE_HOME")]
    Path(PathBuf),
    /// `what`: a file or a program.
    #[error("{what}: {error}")]
    System {
        what: String,
        #[source]
        error: io::Error,
    },
    /// A program failed, with these words.
    #[error("{program}: {words}")]
    Failed { program: String, words: String },
    #[error("{package} has the SHA-256 {found}, but the signed list says {expected}; try again")]
    Checksum {
        package: String,
        found: String,
        expected: String,
    },
    /// `lacks`: "image in /boot".
    #[error("the package {package} has no {lacks}")]
    Content {
        package: String,
        lacks: &'static str,
    },
    #[error("no depmod; install kmod")]
    NoDepmod,
    #[error(transparent)]
    Lab(#[from] Box<LabError>),
}

impl PackageError {
    /// What the system said of a file or a program.
    pub(crate) fn system(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |error| Self::System { what, error }
    }

    /// What a program said on standard error.
    pub(crate) fn failed(program: impl Into<String>, words: &[u8]) -> Self {
        Self::Failed {
            program: program.into(),
            words: String::from_utf8_lossy(words).trim().to_owned(),
        }
    }
}

impl Repository {
    /// Prepares a private apt in the cache.
    pub fn open(lock: &CacheLock<'_>, arch: Arch) -> Result<Self, PackageError> {
        let archive = Archive::of_system(Path::new("/"))?;
        let program = |name: &'static str| {
            crate::programs::find(name).ok_or(PackageError::MissingProgram(name))
        };
        let apt = Apt::new(
            lock.cache().root().join("packages").join(arch.uname()),
            arch,
            &program,
        )?;
        Ok(Self {
            arch,
            archive,
            apt,
            dpkg_deb: program("dpkg-deb")?,
        })
    }

    /// The distribution.
    pub fn name(&self) -> &str {
        &self.archive.name
    }

    /// The newest package whose name starts so and is wanted: from the machine's own release, or else from another
    /// release of the same distribution.
    pub fn newest(
        &self,
        prefix: &str,
        wanted: impl Fn(&str) -> bool,
        otherwise: Option<&str>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Option<Stanza>, PackageError> {
        let own = self.archive.codename.as_str();
        let mut complaints = Vec::new();
        for codename in [Some(own), otherwise.filter(|other| *other != own)]
            .into_iter()
            .flatten()
        {
            let sources = self.archive.sources_file(codename, self.arch.debian());
            complaints.push(self.apt.update(&sources, &mut |percent| {
                progress(Progress::Lists { percent })
            })?);
            let found = self.apt.packages(prefix, &wanted)?;
            let newest = found
                .into_iter()
                .max_by_key(|package| Version::new(&package.version));
            if newest.is_some() {
                return Ok(newest);
            }
        }
        // A suite that a mirror does not have is no reason to fail while another has the package.
        complaints.retain(|complaint| !complaint.is_empty());
        if complaints.is_empty() {
            Ok(None)
        } else {
            let complaints = complaints.join("; ");
            Err(PackageError::failed(
                "apt-get update",
                complaints.as_bytes(),
            ))
        }
    }

    /// Fetches a package, checks it, and unpacks its files into a new folder.
    pub fn unpack(
        &self,
        package: &Stanza,
        folder: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), PackageError> {
        let name = package.package.as_str();
        let downloads = folder.with_extension("download");
        let mut report = |percent: f32| {
            let done = (f64::from(percent) / 100.0 * package.bytes as f64) as u64;
            progress(Progress::Download {
                package: name,
                done,
                total: package.bytes,
            });
        };
        let file = self.apt.download(package, &downloads, &mut report)?;
        let sum = sha256::of_file(&file).map_err(PackageError::system(file.display()))?;
        if sum != package.sha256 {
            return Err(PackageError::Checksum {
                package: name.to_owned(),
                found: sum,
                expected: package.sha256.clone(),
            });
        }
        progress(Progress::Unpacking(name));
        let output = Command::new(&self.dpkg_deb)
            .arg("-x")
            .arg(&file)
            .arg(folder)
            .output();
        let output = output.map_err(PackageError::system("dpkg-deb"))?;
        if !output.status.success() {
            return Err(PackageError::failed("dpkg-deb -x", &output.stderr));
        }
        Ok(())
    }
}
