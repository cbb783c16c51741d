//! PCI devices, and where the kernel and the firmware say they are.

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, PciAddress};
use crate::known::Known;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PciDevice {
    pub address: PciAddress,
    /// 0, which no vendor has, where vendor, device and class are unknown.
    pub vendor: u16,
    pub device: u16,
    /// Class, subclass and programming interface, as in `0x010802`.
    pub class: u32,
    /// Its class in words, from pci.ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// Vendor and device in words, from pci.ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The driver that is bound to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The device above it: a bridge or switch port; `None` for one that sits on a root bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<PciAddress>,
    /// Its root bus.
    pub root: RootBus,
    /// The node the kernel gives it (`numa_node`); `null` where the kernel says -1, "none".
    pub node: Known<Option<NodeId>>,
}

impl PciDevice {
    /// Base class and subclass, such as `0x0108` for NVMe and other non-volatile memory.
    pub fn kind(&self) -> u32 {
        self.class >> 8
    }

    /// Whether vendor, device and class are known.
    pub fn is_identified(&self) -> bool {
        self.vendor != 0
    }

    /// Whether devices of its class move data to or from memory (base classes and subclasses of the PCI Code and ID Assignment
    /// Specification).
    pub fn moves_data(&self) -> bool {
        const STORAGE: u32 = 0x01;
        const NETWORK: u32 = 0x02;
        const DISPLAY: u32 = 0x03;
        const PROCESSOR: u32 = 0x0b;
        const WIRELESS: u32 = 0x0d;
        const ENCRYPTION: u32 = 0x10;
        const ACCELERATOR: u32 = 0x12;
        const CXL_MEMORY: u32 = 0x0502;
        const FIBRE_CHANNEL: u32 = 0x0c04;
        const INFINIBAND: u32 = 0x0c06;
        matches!(
            self.class >> 16,
            STORAGE | NETWORK | DISPLAY | PROCESSOR | WIRELESS | ENCRYPTION | ACCELERATOR
        ) || matches!(self.kind(), CXL_MEMORY | FIBRE_CHANNEL | INFINIBAND)
    }

    /// Whether it is a bridge of any kind (base class 06).
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == 0x06
    }
}

/// A root bus: a host bridge's domain and first bus number, `0000:20`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RootBus {
    pub domain: u32,
    /// The bridge's first bus.
    pub bus: u8,
}

impl std::fmt::Display for RootBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}", self.domain, self.bus)
    }
}

impl std::str::FromStr for RootBus {
    type Err = crate::id::PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A root bus is the first part of the addresses on it, so the same rules hold.
        let address: PciAddress = format!("{text}:00.0").parse()?;
        Ok(Self {
            domain: address.domain,
            bus: address.bus,
        })
    }
}

impl Serialize for RootBus {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RootBus {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A host bridge: the root of a PCI tree, and the one place where the firmware says where its devices are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostBridge {
    /// Its root bus.
    pub root: RootBus,
    /// Its node by the firmware; `null` if the firmware can be read and has none.
    pub firmware: Known<Option<FirmwareLocality>>,
}

/// Where a device is by the firmware.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FirmwareLocality {
    /// The firmware's number: ACPI's proximity domain, or the device tree's associativity domain.
    pub domain: u32,
    /// The node number the kernel gives that domain, online or not.
    pub node: NodeId,
    pub told_by: FirmwareSource,
    /// The file it was read from.
    pub evidence: String,
}

/// The part of the firmware that has the node of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirmwareSource {
    /// The host bridge's `_PXM` object in ACPI's DSDT or an SSDT.
    AcpiPxm,
    /// `ibm,associativity` of the host bridge in the device tree.
    DeviceTree,
    /// `numa-node-id` of the host bridge in the device tree (arm64, RISC-V).
    NumaNodeId,
    /// A person, in a description file.
    Described,
}
