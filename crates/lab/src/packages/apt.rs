//! A private apt: the system's program and configuration with all state in a folder of ours.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::arch::Arch;
use crate::packages::PackageError;
use crate::packages::control::{self, Stanza};

/// An apt whose lists, cache and list of installed packages (none) are in one folder.
#[derive(Debug)]
pub(super) struct Apt {
    folder: PathBuf,
    apt_get: PathBuf,
    apt_cache: PathBuf,
}

impl Apt {
    /// Writes its configuration. `program` finds a program or says that it is missing.
    pub fn new(
        folder: PathBuf,
        arch: Arch,
        program: &dyn Fn(&'static str) -> Result<PathBuf, PackageError>,
    ) -> Result<Self, PackageError> {
        let (apt_get, apt_cache) = (program("apt-get")?, program("apt-cache")?);
        let place = folder
            .to_str()
            .filter(|path| !path.contains(['"', '\\', '\n', ';']));
        let place = place.ok_or_else(|| PackageError::Path(folder.clone()))?;
        let written = [
            "sources.list.d",
            "lists/partial",
            "cache/archives/partial",
            "state",
        ]
        .iter()
        .try_for_each(|sub| fs::create_dir_all(folder.join(sub)))
        .and_then(|()| fs::write(folder.join("status"), ""))
        .and_then(|()| fs::write(folder.join("apt.conf"), configuration(place, arch.debian())));
        written.map_err(PackageError::system(folder.display()))?;
        Ok(Self {
            folder,
            apt_get,
            apt_cache,
        })
    }

    /// Fetches the lists of these sources; `report` gets 0 to 100. Returns apt's complaints: one suite may be missing
    /// while the others are there.
    pub fn update(
        &self,
        sources: &str,
        report: &mut dyn FnMut(f32),
    ) -> Result<String, PackageError> {
        let file = self.folder.join("sources.list.d/lab.sources");
        fs::write(&file, sources).map_err(PackageError::system(file.display()))?;
        let mut command = self.command(&self.apt_get);
        command.arg("update");
        let (success, errors) = run(command, report)?;
        let complains = !success || errors.contains("Failed to fetch");
        Ok(if complains { errors } else { String::new() })
    }

    /// The packages whose name starts so and that are wanted, in all their versions.
    pub fn packages(
        &self,
        prefix: &str,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Stanza>, PackageError> {
        let names = self.ask(&["pkgnames", prefix])?;
        let mut arguments = vec!["show"];
        arguments.extend(names.lines().map(str::trim).filter(|name| wanted(name)));
        if arguments.len() == 1 {
            return Ok(Vec::new());
        }
        Ok(control::packages(&self.ask(&arguments)?))
    }

    /// Fetches a package's file into a new folder; apt checks it against the signed lists.
    pub fn download(
        &self,
        package: &Stanza,
        folder: &Path,
        report: &mut dyn FnMut(f32),
    ) -> Result<PathBuf, PackageError> {
        fs::create_dir_all(folder).map_err(PackageError::system(folder.display()))?;
        let mut command = self.command(&self.apt_get);
        command
            .arg("download")
            .arg(format!("{}={}", package.package, package.version))
            .current_dir(folder);
        let (success, errors) = run(command, report)?;
        let file = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let file = file
            .into_iter()
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"));
        match file {
            Some(file) if success => Ok(file),
            _ => Err(PackageError::failed(
                format!("apt-get download {}", package.package),
                errors.as_bytes(),
            )),
        }
    }

    fn ask(&self, arguments: &[&str]) -> Result<String, PackageError> {
        let output = self.command(&self.apt_cache).args(arguments).output();
        let output = output.map_err(PackageError::system(self.apt_cache.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let program = format!("apt-cache {}", arguments[0]);
        Err(PackageError::failed(program, &output.stderr))
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
fn run(mut command: Command, report: &mut dyn FnMut(f32)) -> Result<(bool, String), PackageError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let refused = |error| PackageError::system(&program)(error);
    command
        .args(["-qq", "-o", "APT::Status-Fd=1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(refused)?;
    let errors = child.stderr.take().map(|mut pipe| {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = pipe.read_to_end(&mut text);
            text
        })
    });
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|pipe| BufReader::new(pipe).lines())
        .map_while(Result::ok)
    {
        percent_in(&line).into_iter().for_each(&mut *report);
    }
    let success = child.wait().map_err(refused)?.success();
    let errors = errors
        .and_then(|thread| thread.join().ok())
        .unwrap_or_default();
    let errors = String::from_utf8_lossy(&errors);
    let relevant: Vec<_> = errors
        .lines()
        .map(str::trim)
        .filter(|line| !line.contains("unsandboxed"))
        .collect();
    Ok((success, relevant.join("; ")))
}

/// The number in `dlstatus:1:27.3451:Retrieving file 1 of 1` (apt's README.progress-reporting).
fn percent_in(line: &str) -> Option<f32> {
    let percent: f32 = line
        .strip_prefix("dlstatus:")?
        .split(':')
        .nth(1)?
        .parse()
        .ok()?;
    percent.is_finite().then_some(percent.clamp(0.0, 100.0))
}
