//! Where a machine's description comes from, and what was wrong with input that was read all the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::emulation::Emulation;
use crate::known::Known;

/// The source of a [`Machine`](crate::Machine).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub kind: SourceKind,
    /// The file, directory or text it was read from; "this system" for the live one.
    pub place: String,
    /// Host name, where the source has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Identifier of the boot (`/proc/sys/kernel/random/boot_id`), where the source is the running system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Kernel release, `6.12.0-1-amd64`.
    pub kernel: Known<String>,
    /// The kernel.org version that a distribution's kernel was built from, `6.1.90`, where the source has it and the
    /// release does not say it (Debian's release is `6.1.0-21-amd64`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_base: Option<String>,
    /// Machine architecture as `uname -m` says it.
    pub architecture: Known<String>,
    /// Vendor and product, from DMI or the device tree.
    pub product: Known<String>,
    /// Version and date of the firmware, `2.3 (2023-03-15)`, from DMI; `None` if the source does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// The model of the first CPU as `/proc/cpuinfo` names it; `None` if the source does not say or was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// When the source was read, in seconds since 1970; `None` if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at_s: Option<u64>,
    /// Where a value was read from another file than it usually is in: that file, and the one that was read, both below
    /// the root (`proc/irq/24/smp_affinity_list`, `proc/irq/24/smp_affinity`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub read_instead: BTreeMap<String, String>,
    /// What lies over the real machine, such as "fake: 2U"; outermost last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
    /// What an emulated machine consists of; `None` for a real one.
    #[serde(default, alias = "emulated", skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl Origin {
    /// An origin of which only the kind and the place are known.
    pub fn new(kind: SourceKind, place: impl Into<String>) -> Self {
        let reason = "the source does not tell";
        Self {
            kind,
            place: place.into(),
            host: None,
            boot: None,
            kernel: Known::no(reason),
            kernel_base: None,
            architecture: Known::no(reason),
            product: Known::no(reason),
            firmware: None,
            cpu_model: None,
            taken_at_s: None,
            read_instead: BTreeMap::new(),
            overlays: Vec::new(),
            emulation: None,
        }
    }

    /// Whether it is a guest whose clocks follow the instructions that it executes.
    pub fn is_simulated(&self) -> bool {
        self.emulation.as_ref().is_some_and(Emulation::is_simulated)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// sysfs and procfs of the running system.
    Live,
    /// The same files below a directory.
    Tree,
    /// The same files in an archive, such as a support bundle.
    Archive,
    Snapshot,
    HwlocXml,
    /// The text that `numactl -H` prints.
    NumactlText,
    /// Text that other programs print, such as `lscpu`, or several together.
    Text,
    Description,
    /// A synthetic string.
    Synthetic,
    /// Sources of several kinds that describe one machine together.
    Joined,
}

impl SourceKind {
    /// Whether it was read from files of /sys and /proc.
    pub fn has_files(self) -> bool {
        matches!(
            self,
            Self::Live | Self::Tree | Self::Archive | Self::Snapshot
        )
    }
}

impl std::fmt::Display for SourceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Live => "live system",
            Self::Tree => "directory tree",
            Self::Archive => "archive",
            Self::Snapshot => "snapshot",
            Self::HwlocXml => "hwloc XML",
            Self::NumactlText => "numactl -H text",
            Self::Text => "text",
            Self::Description => "description file",
            Self::Synthetic => "synthetic string",
            Self::Joined => "sources",
        })
    }
}

/// A contradiction or oddity in the input. It travels with the machine, so that results keep the warnings that were
/// true when they were made.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Warning {
    /// Where: a file, a line ("line 3"), an element.
    pub place: String,
    /// What is wrong, naming both sides of a contradiction and what was assumed.
    pub message: String,
}

impl Warning {
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
