//! Further names that Linux and libraries have for PCI functions.

use serde::{Deserialize, Serialize};

use crate::id::PciAddress;

/// A name of a PCI function that is not in the lists of disks, network devices and NVMe subsystems: `mlx5_0`, `card0`,
/// `nvml0`, or `eth0` where the source has nothing else of an interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OsDevice {
    pub name: String,
    pub kind: OsDeviceKind,
    /// The innermost PCI function above it.
    pub device: PciAddress,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OsDeviceKind {
    /// An interface.
    Network,
    /// InfiniBand, RoCE, Omni-Path.
    OpenFabrics,
    Gpu,
    CoProcessor,
    /// An engine that copies memory.
    Dma,
    /// CXL or DAX memory that is not on a node.
    Memory,
}
