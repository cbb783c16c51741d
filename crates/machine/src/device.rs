//! Devices: PCI functions and where the kernel and the firmware say they are, what Linux makes of them (network devices, NVMe
//! subsystems, disks), by which names, and which tasks have them open.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::device_kind::DeviceKind;
use crate::id::{NodeId, PciAddress, RootBus};
use crate::known::Known;
use crate::machine::Machine;
use crate::set::{CpuSet, NodeSet};

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
    /// One of which nothing else is known, for this reason.
    pub fn unknown(
        address: PciAddress,
        root: RootBus,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            address,
            vendor: 0,
            device: 0,
            class: 0,
            class_name: None,
            name: None,
            driver: None,
            parent: None,
            root,
            node: Known::no(reason),
        }
    }

    /// Base class and subclass, such as `0x0108` for NVMe and other non-volatile memory.
    pub fn class_code(&self) -> u32 {
        self.class >> 8
    }

    /// Whether vendor, device and class are known.
    pub fn is_identified(&self) -> bool {
        self.vendor != 0
    }

    /// Whether it is a bridge of any kind (base class 06).
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == 0x06
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

/// A network device with hardware behind it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetworkDevice {
    pub name: String,
    /// The PCI function it belongs to; a virtio device's is its PCI parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PciAddress>,
    /// The hardware address it was made with, only if several interfaces have the same `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The node the kernel gives it (the PCI parent's, for a virtio device); `null` where the kernel says none.
    pub node: Known<Option<NodeId>>,
    /// Transmit queues, by ascending number. Each interface has queues both ways: none of either means that the source
    /// does not have them.
    pub transmit: Vec<TransmitQueue>,
    /// Receive queues, by ascending number.
    pub receive: Vec<ReceiveQueue>,
}

impl NetworkDevice {
    /// Whether its queues are known.
    pub fn has_queues(&self) -> bool {
        !self.transmit.is_empty() || !self.receive.is_empty()
    }
}

/// A transmit queue and the CPUs that use it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransmitQueue {
    pub queue: u32,
    /// XPS: the CPUs that send through it (`xps_cpus`); reading fails with ENOENT on one-queue devices.
    pub xps: Known<CpuSet>,
}

/// A receive queue and the CPUs its packets are handed to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveQueue {
    pub queue: u32,
    /// RPS: the CPUs that process its packets; empty means the CPU that took the interrupt (`rps_cpus`).
    pub rps: Known<CpuSet>,
}

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

/// How a path is picked: `iopolicy` (Documentation/admin-guide/nvme-multipath.rst in the kernel).
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

/// How well a controller can serve a namespace: `ana_state` (NVMe base specification, ANA).
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

/// The words of the kernel's file for the variants of an enumeration.
macro_rules! words {
    ($name:ident: $($word:literal = $variant:ident),*) => {
        impl $name {
            /// The word of the kernel's file.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words!(IoPolicy: "numa" = Numa, "round-robin" = RoundRobin, "queue-depth" = QueueDepth);
words!(
    AnaState: "optimized" = Optimized, "non-optimized" = NonOptimized, "inaccessible" = Inaccessible,
    "persistent-loss" = PersistentLoss, "change" = Change
);

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

/// A disk below a PCI function: `sda`, `vda`. Namespaces of NVMe subsystems have several paths and are listed
/// [there](crate::NvmeSubsystem).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Disk {
    /// The kernel's name, without `/dev/`.
    pub name: String,
    /// The innermost PCI function above it.
    pub device: PciAddress,
}

impl Machine {
    /// The names of disks, network interfaces and [`OsDevice`]s, each with its PCI function.
    fn named_functions(&self) -> impl Iterator<Item = (&str, PciAddress)> {
        let disks = self.disks.iter().map(|it| (it.name.as_str(), it.device));
        let networks = self.networks.items().iter();
        let networks = networks.filter_map(|it| Some((it.name.as_str(), it.device?)));
        let others = self.os_devices.iter();
        let others = others.map(|it| (it.name.as_str(), it.device));
        disks.chain(networks).chain(others)
    }

    /// The names that Linux has for what a PCI function serves: disks, network interfaces, the namespaces of its
    /// NVMe controllers and [`OsDevice`]s, each once and in order.
    pub fn names_on(&self, address: PciAddress) -> Vec<&str> {
        let own = self.named_functions().filter(|(_, at)| *at == address);
        let mut names: BTreeSet<&str> = own.map(|(name, _)| name).collect();
        for subsystem in self.nvme.items() {
            let own = subsystem.controllers.iter();
            let own = own.filter(|it| it.device == Some(address));
            let own: Vec<&str> = own.map(|it| it.name.as_str()).collect();
            let serves = |path: &NvmePath| own.contains(&path.controller.as_str());
            let served = subsystem.namespaces.iter();
            let served = served.filter(|it| it.paths.iter().any(serves));
            names.extend(served.map(|it| it.name.as_str()));
        }
        names.into_iter().collect()
    }

    /// The names that [`Machine::functions_named`] knows, besides addresses and `gpuN`: each once and in order.
    pub fn device_names(&self) -> Vec<&str> {
        let mut names: BTreeSet<&str> = self.named_functions().map(|(name, _)| name).collect();
        for subsystem in self.nvme.items() {
            names.insert(&subsystem.name);
            names.extend(subsystem.controllers.iter().map(|it| it.name.as_str()));
            names.extend(subsystem.namespaces.iter().map(|it| it.name.as_str()));
        }
        names.into_iter().collect()
    }

    /// The PCI functions that a name stands for: an address (`41:00.0`), a disk (`vda`, `/dev/sda`), a network interface,
    /// an [`OsDevice`], an NVMe controller, namespace or subsystem; `gpu0` is the GPU or accelerator with the lowest address, as CUDA
    /// (`CUDA_DEVICE_ORDER=PCI_BUS_ID`), ROCm and nvidia-smi count. Empty where the machine has nothing of that name.
    pub fn functions_named(&self, name: &str) -> Vec<PciAddress> {
        if let Ok(address) = name.parse() {
            let device = self.pci_device(address).into_iter();
            return device.map(|device| device.address).collect();
        }
        let name = name.strip_prefix("/dev/").unwrap_or(name);
        let named = self.named_functions().filter(|(of, _)| *of == name);
        let mut found: BTreeSet<PciAddress> = named.map(|(_, at)| at).collect();
        let number = name.strip_prefix("gpu").and_then(|it| it.parse().ok());
        if let (true, Some(number)) = (found.is_empty(), number) {
            let accelerators = self.pci.items().iter().filter(|it| it.is(&DeviceKind::GPU));
            found.extend(accelerators.map(|it| it.address).nth(number));
        }
        found.extend(
            self.controllers_named(name)
                .iter()
                .filter_map(|it| it.device),
        );
        found.into_iter().collect()
    }

    /// The NVMe controllers that a name stands for: one of them, a namespace that they serve, or their subsystem.
    pub fn controllers_named(&self, name: &str) -> Vec<&NvmeController> {
        let mut found = Vec::new();
        for subsystem in self.nvme.items() {
            let namespace = subsystem.namespaces.iter().find(|it| it.name == name);
            let serves = |it: &&NvmeController| match namespace {
                Some(namespace) => namespace
                    .paths
                    .iter()
                    .any(|path| path.controller == it.name),
                None => subsystem.name == name || it.name == name,
            };
            found.extend(subsystem.controllers.iter().filter(serves));
        }
        found
    }
}

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

/// A PCI function that reads and writes the memory of a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenDevice {
    pub device: PciAddress,
    /// The kernel's names of its files that the task has open, each once: `renderD128`, `nvidia0`, `uverbs0`, `vfio/12`.
    pub files: Vec<String>,
}

/// The files of a device that a task has open or mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskFiles {
    pub pid: i32,
    /// By name and kind; not empty.
    pub files: Known<Vec<UsedFiles>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UsedFiles {
    /// The kernel's name of the block or character device: `nvme0n1p2`, `uverbs0`.
    pub name: String,
    pub kind: UseKind,
    /// Open descriptors, or mapped files.
    pub count: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UseKind {
    /// The device itself is open.
    Device,
    /// A file of the file system on it is open.
    File,
    /// It, or a file of the file system on it, is mapped.
    Mapping,
}
