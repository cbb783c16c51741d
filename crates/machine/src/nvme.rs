//! NVMe subsystems: one disk, several controllers, a path through each.

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, PciAddress};
use crate::known::Known;
use crate::set::NodeSet;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NvmeSubsystem {
    /// The kernel's name, `nvme-subsys0`.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How the kernel picks a path; unknown where native multipath is off.
    pub iopolicy: Known<IoPolicy>,
    /// Its controllers, by name.
    pub controllers: Vec<NvmeController>,
    /// Its namespaces, by name.
    pub namespaces: Vec<NvmeNamespace>,
}

/// How a path is picked (Documentation/admin-guide/nvme-multipath.rst in the kernel).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoPolicy {
    /// The path whose controller is nearest to the submitting CPU's node.
    Numa,
    /// Every usable path in turn.
    RoundRobin,
    /// The path with the fewest commands in flight (since Linux 6.11).
    QueueDepth,
    /// One this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl IoPolicy {
    /// The word the kernel's `iopolicy` file uses.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Numa => "numa",
            Self::RoundRobin => "round-robin",
            Self::QueueDepth => "queue-depth",
            Self::Other(word) => word,
        }
    }
}

impl std::fmt::Display for IoPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for IoPolicy {
    fn from(word: &str) -> Self {
        match word {
            "numa" => Self::Numa,
            "round-robin" => Self::RoundRobin,
            "queue-depth" => Self::QueueDepth,
            other => Self::Other(other.to_owned()),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NvmeController {
    /// The kernel's name, `nvme0`.
    pub name: String,
    /// `live`, `connecting`, `resetting` and so on.
    pub state: Known<String>,
    /// `pcie`, `tcp`, `rdma`, `fc`, `loop`.
    pub transport: Known<String>,
    /// The PCI function it is, for `pcie`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PciAddress>,
    /// The node the kernel gives it; `null` where the kernel says none.
    pub node: Known<Option<NodeId>>,
    /// Number of I/O and admin queues.
    pub queues: Known<u32>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NvmeNamespace {
    /// The disk's name, `nvme0n1`.
    pub name: String,
    /// The paths to it, by name; one with no name of its own where native multipath is off.
    pub paths: Vec<NvmePath>,
    /// Why it is unknown which paths there are; `None` where `paths` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths_unknown_reason: Option<String>,
}

/// One way to a namespace, through one controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NvmePath {
    /// The kernel's name, `nvme0c1n1`.
    pub name: String,
    pub controller: String,
    /// Asymmetric namespace access; decides before locality does.
    pub ana_state: Known<AnaState>,
    /// The nodes whose I/O the kernel sends through it under the policy `numa` (`numa_nodes`, since Linux 6.15); empty
    /// under other policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<NodeSet>,
    /// Commands in flight when the source looked (`queue_depth`, since Linux 6.15); known under the policy `queue-depth`
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
}

/// How well a controller can serve a namespace (NVMe base specification, ANA).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnaState {
    /// At full speed.
    Optimized,
    /// With a detour inside the device.
    NonOptimized,
    /// Not now.
    Inaccessible,
    /// Never again.
    PersistentLoss,
    /// About to be one of the others.
    Change,
    /// One this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl AnaState {
    /// The word the kernel's `ana_state` file uses.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
            Self::Other(word) => word,
        }
    }
}

impl From<&str> for AnaState {
    fn from(word: &str) -> Self {
        match word {
            "optimized" => Self::Optimized,
            "non-optimized" => Self::NonOptimized,
            "inaccessible" => Self::Inaccessible,
            "persistent-loss" => Self::PersistentLoss,
            "change" => Self::Change,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl std::fmt::Display for AnaState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
