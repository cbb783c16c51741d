//! Programs of this machine: where they are, and the commands that bring those that are missing. `lab doctor` and the errors of
//! `lab run` take the commands from here.

use std::path::{Path, PathBuf};

use nearfar_proc::{child, program};

use crate::arch::Arch;
use crate::kernels::Series;
use crate::packages::sources::Archive;
use crate::qemu;

/// A program on `PATH`, or where the system keeps those for administrators, which users' `PATH`s leave out.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let by_administrators = || {
        let folders = ["/usr/sbin", "/sbin"].into_iter();
        folders
            .map(|folder| format!("{folder}/{name}"))
            .find_map(|path| program::find(&path).ok())
    };
    program::find(name).ok().or_else(by_administrators)
}

/// Whether guests, which have this system's root, find the program of a command: on `PATH`, where administrators have theirs, or in the
/// guests' own folder. Which programs their busybox has is unknown where this system has none: then they may.
///
/// # Errors
/// Why not.
pub fn check_command(name: &str) -> Result<(), String> {
    if find_program(name).is_some() || name == "nearfar-lab" {
        return Ok(());
    }
    let applets = child::output("busybox", &["--list"]).ok();
    match applets.is_none_or(|all| all.lines().any(|applet| applet == name)) {
        true => Ok(()),
        false => program::find(name).map(|_| ()),
    }
}

/// How packages are installed here.
#[derive(Debug)]
pub struct Installer {
    apt: bool,
    /// The machine's Debian, or why there is none to fetch from.
    pub archive: Result<Archive, String>,
}

impl Installer {
    /// Looks for apt and its sources.
    pub fn of_system() -> Self {
        Self {
            apt: find_program("apt-get").is_some(),
            archive: Archive::of_system(Path::new("/")),
        }
    }

    /// An installer for a described archive; for tests.
    pub fn with(archive: Result<Archive, String>) -> Self {
        Self { apt: true, archive }
    }

    /// The command that installs packages; `None` without apt, where the packages' names may be others.
    pub fn install(&self, packages: &str) -> Option<String> {
        self.apt
            .then(|| format!("sudo apt-get install --no-install-recommends {packages}"))
    }

    /// The command that installs packages in a newer version than the release's own, from its backports, on the mirror
    /// that the machine's own sources name. `None` where that is not known.
    pub fn install_newer(&self, packages: &str) -> Option<String> {
        let archive = self.archive.as_ref().ok().filter(|_| self.apt)?;
        let suite = format!("{}-backports", archive.codename);
        let install = format!("sudo apt-get install --no-install-recommends -t {suite} {packages}");
        if archive.has_backports {
            return Some(format!("sudo apt-get update && {install}"));
        }
        let main = &archive.main;
        let mut fields = vec![
            "Types: deb".to_owned(),
            format!("URIs: {}", main.uris.join(" ")),
            format!("Suites: {suite}"),
            "Components: main".to_owned(),
        ];
        let keys = main.signed_by.as_ref();
        fields.extend(keys.map(|keys| format!("Signed-By: {keys}")));
        // No field of apt's may hold a quotation mark; one that does is not put into a shell's hands.
        if fields.iter().any(|field| field.contains('\'')) {
            return None;
        }
        let lines: Vec<_> = fields.iter().map(|field| format!("'{field}'")).collect();
        Some(format!(
            "printf '%s\\n' {} | sudo tee /etc/apt/sources.list.d/nearfar-backports.sources && sudo apt-get update && {install}",
            lines.join(" ")
        ))
    }

    /// The command that installs QEMU for guests of an architecture; where the release's own is known to be too old for the delays,
    /// the newer one. `None` where packages are not installed by apt.
    pub(crate) fn install_qemu(&self, arch: Arch) -> Option<String> {
        // Debian 12 has 7.2; later releases have 10.0 and newer.
        let is_old = |archive: &Archive| archive.codename == "bookworm";
        let is_old = self.archive.as_ref().is_ok_and(is_old);
        let newer = is_old.then(|| self.newer_qemu(arch)).flatten();
        newer.or_else(|| self.install(qemu::package(arch)))
    }

    /// The command that installs a QEMU newer than the release's own, for plugins and the devices it lacks.
    pub(crate) fn newer_qemu(&self, arch: Arch) -> Option<String> {
        self.install_newer(qemu::package(arch))
    }
}

/// Fetches a kernel of the distribution.
pub fn get_kernel(series: Series, arch: Arch) -> String {
    let option = match Arch::host() == Some(arch) {
        true => String::new(),
        false => format!(" --arch {arch}"),
    };
    format!("nearfar lab kernels get {series}{option}")
}

/// Fetches what the tests use, and what guests of other architectures need to run this host's programs.
pub(crate) const GET_ALL: &str = "nearfar lab kernels get --all";
