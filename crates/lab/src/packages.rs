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

pub mod control;
pub mod sources;

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use sha2::{Digest, Sha256};

use crate::advice::find_program;
use crate::arch::Arch;
use crate::cache::CacheLock;
use crate::packages::control::{Stanza, Version};
use crate::packages::sources::Archive;

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
    /// A kernel is compiled.
    Compiling {
        /// Source files so far; how many there are is not known.
        files: u64,
    },
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

/// What the system said of a file or a program.
pub(crate) fn refused(what: impl Display) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// What a program that failed said on standard error.
pub(crate) fn failed(program: impl Display, words: &[u8]) -> String {
    format!("{program}: {}", String::from_utf8_lossy(words).trim())
}

impl Repository {
    /// Prepares a private apt in the cache.
    pub fn open(lock: &CacheLock<'_>, arch: Arch) -> Result<Self, String> {
        let archive = Archive::of_system(Path::new("/"));
        let archive = archive.map_err(|problem| format!("{problem}; {OTHERWISE}"))?;
        let missing = |name| format!("fetching needs {name}, which is not installed; {OTHERWISE}");
        let program = |name: &'static str| find_program(name).ok_or_else(|| missing(name));
        let folder = lock.cache().root().join("packages").join(arch.uname());
        Ok(Self {
            arch,
            archive,
            apt: Apt::new(folder, arch, &program)?,
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
    ) -> Result<Option<Stanza>, String> {
        let own = self.archive.codename.as_str();
        let mut complaints = Vec::new();
        let other = otherwise.filter(|other| *other != own);
        for codename in [own].into_iter().chain(other) {
            let sources = self.archive.sources_file(codename, self.arch.debian());
            let mut report = |percent| progress(Progress::Lists { percent });
            complaints.push(self.apt.update(&sources, &mut report)?);
            let found = self.apt.packages(prefix, &wanted)?.into_iter();
            let newest = found.max_by_key(|package| Version::new(&package.version));
            if newest.is_some() {
                return Ok(newest);
            }
        }
        // A suite that a mirror does not have is no reason to fail while another has the package.
        complaints.retain(|complaint| !complaint.is_empty());
        match complaints.is_empty() {
            true => Ok(None),
            false => Err(failed("apt-get update", complaints.join("; ").as_bytes())),
        }
    }

    /// Fetches a package, checks it, and unpacks its files into a new folder.
    pub fn unpack(
        &self,
        package: &Stanza,
        folder: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), String> {
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
        let sum = sha256_of_file(&file).map_err(refused(file.display()))?;
        if sum != package.sha256 {
            let expected = &package.sha256;
            return Err(format!(
                "{name} has the SHA-256 {sum}, but the signed list says {expected}; try again"
            ));
        }
        progress(Progress::Unpacking(name));
        let mut command = Command::new(&self.dpkg_deb);
        let output = command.arg("-x").arg(&file).arg(folder).output();
        let output = output.map_err(refused("dpkg-deb"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed("dpkg-deb -x", &output.stderr)),
        }
    }
}

/// An apt whose lists, cache and list of installed packages (none) are in one folder.
#[derive(Debug)]
struct Apt {
    folder: PathBuf,
    apt_get: PathBuf,
    apt_cache: PathBuf,
}

impl Apt {
    /// Writes its configuration. `program` finds a program or says that it is missing.
    fn new(
        folder: PathBuf,
        arch: Arch,
        program: &dyn Fn(&'static str) -> Result<PathBuf, String>,
    ) -> Result<Self, String> {
        let (apt_get, apt_cache) = (program("apt-get")?, program("apt-cache")?);
        let place = folder.to_str();
        let place = place.filter(|path| !path.contains(['"', '\\', '\n', ';']));
        let place = place
            .ok_or_else(|| format!("apt takes no path such as {folder:?}; set XDG_CACHE_HOME"))?;
        let write = || {
            for sub in [
                "sources.list.d",
                "lists/partial",
                "cache/archives/partial",
                "state",
            ] {
                fs::create_dir_all(folder.join(sub))?;
            }
            fs::write(folder.join("status"), "")?;
            fs::write(folder.join("apt.conf"), configuration(place, arch.debian()))
        };
        write().map_err(refused(folder.display()))?;
        Ok(Self {
            folder,
            apt_get,
            apt_cache,
        })
    }

    /// Fetches the lists of these sources; `report` gets 0 to 100. Returns apt's complaints: one suite may be missing
    /// while the others are there.
    fn update(&self, sources: &str, report: &mut dyn FnMut(f32)) -> Result<String, String> {
        let file = self.folder.join("sources.list.d/lab.sources");
        fs::write(&file, sources).map_err(refused(file.display()))?;
        let mut command = self.command(&self.apt_get);
        command.arg("update");
        let (success, errors) = run(command, report)?;
        let complains = !success || errors.contains("Failed to fetch");
        Ok(if complains { errors } else { String::new() })
    }

    /// The packages whose name starts so and that are wanted, in all their versions.
    fn packages(&self, prefix: &str, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Stanza>, String> {
        let names = self.ask(&["pkgnames", prefix])?;
        let mut arguments = vec!["show"];
        arguments.extend(names.lines().map(str::trim).filter(|name| wanted(name)));
        if arguments.len() == 1 {
            return Ok(Vec::new());
        }
        Ok(control::packages(&self.ask(&arguments)?))
    }

    /// Fetches a package's file into a new folder; apt checks it against the signed lists.
    fn download(
        &self,
        package: &Stanza,
        folder: &Path,
        report: &mut dyn FnMut(f32),
    ) -> Result<PathBuf, String> {
        fs::create_dir_all(folder).map_err(refused(folder.display()))?;
        let mut command = self.command(&self.apt_get);
        command
            .arg("download")
            .arg(format!("{}={}", package.package, package.version))
            .current_dir(folder);
        let (success, errors) = run(command, report)?;
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files = entries.map(|entry| entry.path());
        match files.find(|path| path.extension().is_some_and(|it| it == "deb")) {
            Some(file) if success => Ok(file),
            _ => {
                let program = format!("apt-get download {}", package.package);
                Err(failed(program, errors.as_bytes()))
            }
        }
    }

    fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(&self.apt_cache).args(arguments).output();
        let output = output.map_err(refused(self.apt_cache.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(failed(
            format!("apt-cache {}", arguments[0]),
            &output.stderr,
        ))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .arg("-c")
            .arg(self.folder.join("apt.conf"))
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        command
    }
}

/// Read after the system's own configuration (apt.conf(5)), from which proxies and credentials are kept.
fn configuration(folder: &str, architecture: &str) -> String {
    format!(
        r#"Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources.list.d";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{folder}/state";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
APT::Architecture "{architecture}";
#clear APT::Architectures;
APT::Architectures {{ "{architecture}"; }};
// What the machine does after its own updates is not for these.
#clear APT::Update;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
Acquire::Languages "none";
// Signatures are checked whatever the machine's configuration allows for its own packages.
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
"#
    )
}

/// Runs apt with its progress on standard output; returns whether it succeeded and what it said on standard error in
/// one line, without warnings that root's downloads are not in a sandbox.
fn run(mut command: Command, report: &mut dyn FnMut(f32)) -> Result<(bool, String), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command
        .args(["-qq", "-o", "APT::Status-Fd=1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(refused(&program))?;
    let errors = child.stderr.take().map(|mut pipe| {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = pipe.read_to_end(&mut text);
            text
        })
    });
    let lines = child.stdout.take().map(|pipe| BufReader::new(pipe).lines());
    for line in lines.into_iter().flatten().map_while(Result::ok) {
        percent_in(&line).into_iter().for_each(&mut *report);
    }
    let success = child.wait().map_err(refused(&program))?.success();
    let errors = errors.and_then(|thread| thread.join().ok());
    let errors = errors.unwrap_or_default();
    let errors = String::from_utf8_lossy(&errors);
    let errors = errors.lines().map(str::trim);
    let relevant: Vec<_> = errors
        .filter(|line| !line.contains("unsandboxed"))
        .collect();
    Ok((success, relevant.join("; ")))
}

/// The number in `dlstatus:1:27.3451:Retrieving file 1 of 1` (apt's README.progress-reporting).
fn percent_in(line: &str) -> Option<f32> {
    let percent = line.strip_prefix("dlstatus:")?.split(':').nth(1)?;
    let percent: f32 = percent.parse().ok()?;
    percent.is_finite().then_some(percent.clamp(0.0, 100.0))
}

/// The SHA-256 of a file, in lower case hexadecimal digits.
pub fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => break,
            length => hasher.update(&block[..length]),
        }
    }
    Ok(digits(hasher))
}

/// The SHA-256 of some bytes.
pub fn sha256_of_bytes(bytes: &[u8]) -> String {
    digits(Sha256::new_with_prefix(bytes))
}

fn digits(hasher: Sha256) -> String {
    let sum = hasher.finalize();
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}
