//! Finding QEMU, and finding out what it can do here.

mod accelerate;
mod answers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::advice;
use crate::arch::Arch;
use crate::doctor::Installer;
use crate::error::LabError;
use crate::programs;
use answers::Answers;

pub use accelerate::{Accelerated, acceleration, acceleration_with};

/// The oldest QEMU that loads the delay plugin, which speaks version 2 of the interface (`qemu-plugin.h`): 9.0 brought
/// it, the stable 8.2.4 took it over. Debian 12's own 7.2 has version 1.
pub const PLUGINS_SINCE: (u32, u32, u32) = (8, 2, 4);

/// An installed QEMU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qemu {
    /// For which guests.
    pub arch: Arch,
    pub program: PathBuf,
    /// `(10, 0, 2)`.
    pub version: (u32, u32, u32),
    /// Whether it loads TCG plugins whose interface the delay plugin speaks.
    pub plugins: bool,
}

impl Qemu {
    /// Finds the QEMU for guests of an architecture on `PATH`, and asks it for its version and options.
    pub fn find(arch: Arch) -> Result<Self, LabError> {
        let name = arch.qemu_program();
        let program = programs::find(name).ok_or_else(|| LabError::Missing {
            what: name.to_owned(),
            hint: match advice::install_qemu(&Installer::of_system(), arch) {
                Some(command) => format!("run: {command}"),
                None => format!("install QEMU (Debian's package is {})", package(arch)),
            },
        })?;
        Self::at(program, arch)
    }

    /// The QEMU of a given file.
    pub fn at(program: PathBuf, arch: Arch) -> Result<Self, LabError> {
        let answers = Answers::of(&program)?;
        let text = &answers.version;
        let version = version_in(text).ok_or_else(|| LabError::Content {
            path: program.clone(),
            problem: format!(
                "its --version does not say which QEMU it is: {}",
                text.lines().next().unwrap_or_default()
            ),
        })?;
        let plugins = version >= PLUGINS_SINCE && answers.has_plugins;
        Ok(Self {
            arch,
            program,
            version,
            plugins,
        })
    }

    /// Whether it knows a device (`igb` came with 8.0). One that does not answer has none.
    pub fn has_device(&self, name: &str) -> bool {
        Answers::of(&self.program).is_ok_and(|answers| answers.devices.contains(name))
    }

    /// As people write it: `10.0.2`.
    pub fn version_text(&self) -> String {
        dotted(self.version)
    }
}

/// A version as people write it.
pub(crate) fn dotted((major, minor, micro): (u32, u32, u32)) -> String {
    format!("{major}.{minor}.{micro}")
}

/// The package with QEMU for an architecture (and, for arm64 guests, without firmware: the lab boots kernels directly).
pub const fn package(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "qemu-system-x86",
        Arch::Aarch64 => "qemu-system-arm",
        Arch::Powerpc64le => "qemu-system-ppc",
    }
}

/// The version in `QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)`.
pub fn version_in(text: &str) -> Option<(u32, u32, u32)> {
    let (_, rest) = text.split_once("QEMU emulator version ")?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let mut numbers = rest[..end].split('.').map(|number| number.parse().ok());
    let (major, minor) = (numbers.next()??, numbers.next()??);
    Some((major, minor, numbers.next().flatten().unwrap_or(0)))
}

/// The devices in what `-device help` prints: `name "igb", bus PCI, desc "..."`, and other names in `alias
/// "e1000-82540em"`.
pub fn devices_in(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("name \"")) {
        let quoted = |key: &str| {
            line.split_once(key)?
                .1
                .split_once('"')
                .map(|(name, _)| name.to_owned())
        };
        names.extend(quoted("name \""));
        names.extend(quoted(", alias \""));
    }
    names
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String, LabError> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output
        .map_err(|error| LabError::system(format!("running {}", program.display()), error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("it said nothing").to_owned();
    Err(LabError::Content {
        path: program.to_owned(),
        problem: format!("{} failed: {said}", arguments.join(" ")),
    })
}
