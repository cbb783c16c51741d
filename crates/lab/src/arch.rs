//! The three architectures a guest can have, and what each is called where.

use std::fmt;
use std::str::FromStr;

use nearfar_machine::Machine;
use serde::{Deserialize, Serialize};

/// A guest's architecture.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Arch {
    /// 64-bit x86, on QEMU's `q35`.
    #[serde(rename = "x86_64")]
    X86_64,
    /// 64-bit Arm, on QEMU's `virt`.
    #[serde(rename = "aarch64")]
    Aarch64,
    /// 64-bit little-endian Power, on QEMU's `pseries`.
    #[serde(rename = "ppc64le")]
    Powerpc64le,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::X86_64, Self::Aarch64, Self::Powerpc64le];

    /// The architecture this program was built for, where a guest can have it.
    pub const fn host() -> Option<Self> {
        if cfg!(target_arch = "x86_64") {
            Some(Self::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Aarch64)
        } else if cfg!(all(target_arch = "powerpc64", target_endian = "little")) {
            Some(Self::Powerpc64le)
        } else {
            None
        }
    }

    /// The architecture a machine's description names; `None` where it names none or another.
    pub fn of(machine: &Machine) -> Option<Self> {
        machine.origin.architecture.get()?.parse().ok()
    }

    /// As `uname -m` says it.
    pub const fn uname(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Powerpc64le => "ppc64le",
        }
    }

    /// As Debian names it.
    pub const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
            Self::Powerpc64le => "ppc64el",
        }
    }

    /// QEMU's program for it.
    pub const fn qemu_program(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
            Self::Powerpc64le => "qemu-system-ppc64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uname())
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "x86_64" | "x86-64" | "amd64" => Ok(Self::X86_64),
            "aarch64" | "arm64" => Ok(Self::Aarch64),
            "ppc64le" | "ppc64el" | "powerpc64le" => Ok(Self::Powerpc64le),
            other => Err(format!(
                "{other}: not an architecture of the lab (x86_64, aarch64 or arm64, ppc64le or powerpc64le)"
            )),
        }
    }
}
