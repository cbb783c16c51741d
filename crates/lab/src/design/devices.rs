//! From the devices of a machine to what QEMU can emulate, each behind a host bridge on the same node.
//!
//! | described | in the guest |
//! |---|---|
//! | NVMe controllers of a subsystem | `nvme` controllers with shared namespaces |
//! | network cards | a multi-queue card, or `virtio-net` for one queue |
//! | other storage (class 01) | multi-queue `virtio-blk` |
//! | graphics (03), accelerators (0b, 12) | something that is merely there |
//! | bridges, system functions, the rest | nothing |

use std::collections::BTreeMap;

use nearfar_machine::{
    HostBridge, Machine, NetworkDevice, NodeId, NvmeSubsystem, PciAddress, PciDevice, RootBus,
};

use super::Disk;
use super::hardware::{Device, StandIn, Subsystem};
use super::numbers::Numbers;

/// The most devices of all kinds: each takes a bus number, of which there are 256, and time to find.
const MOST: usize = 96;
/// The most namespaces of a subsystem.
const MOST_NAMESPACES: usize = 16;
/// The most queues QEMU's NVMe controller has interrupts for (`msix_qsize`).
const MOST_NVME_QUEUES: u32 = 64;
/// The most queues of a virtio block device here.
const MOST_BLOCK_QUEUES: usize = 64;
/// The queues of QEMU's `igb`, which uses one a CPU.
pub(super) const IGB_QUEUES: usize = 8;
/// Sparse, so that a large one costs nothing.
const DISK_BYTES: u64 = 1 << 30;

/// Which devices there are, by the host bridge and the guest's node they are on, with the disks behind them.
#[derive(Default)]
pub(super) struct Devices {
    /// In the order of root buses.
    pub places: BTreeMap<Place, Vec<Device>>,
    pub subsystems: Vec<Subsystem>,
    pub disks: Vec<Disk>,
    nvme: usize,
    nics: usize,
    blocks: usize,
}

/// A host bridge as far as locality goes. A bridge whose devices are on several nodes becomes several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub root: RootBus,
    pub node: Option<NodeId>,
}

impl Devices {
    pub fn of(machine: &Machine, numbers: &Numbers, cpus: usize, notes: &mut Vec<String>) -> Self {
        let mut devices = Self::default();
        let mut left_out: BTreeMap<u32, usize> = BTreeMap::new();
        let mut subsystems = devices.subsystems(machine, notes);
        let networks: BTreeMap<PciAddress, &NetworkDevice> = machine
            .networks
            .get()
            .into_iter()
            .flatten()
            .filter_map(|nic| Some((nic.device?, nic)))
            .collect();
        let (mut taken, mut surplus) = (0, 0);
        for function in machine
            .pci
            .get()
            .into_iter()
            .flatten()
            .filter(|function| !function.is_bridge())
        {
            let built = match (subsystems.remove(&function.address), function.class >> 16) {
                (Some(controller), _) => Some(controller),
                (None, 0x01) if function.kind() == 0x0108 => Some(devices.lone_controller(None)),
                (None, 0x01) => Some(devices.block(cpus)),
                (None, 0x02) => {
                    Some(devices.nic(networks.get(&function.address).copied(), cpus, notes))
                }
                (None, 0x03) => Some(Device::StandIn(StandIn::Display)),
                (None, 0x0b | 0x12) => Some(Device::StandIn(StandIn::Other)),
                (None, base) => {
                    *left_out.entry(base).or_default() += 1;
                    None
                }
            };
            let Some(device) = built else { continue };
            if taken == MOST {
                surplus += 1;
                continue;
            }
            taken += 1;
            note_change(function, &device, notes);
            devices
                .places
                .entry(place(machine, numbers, function))
                .or_default()
                .push(device);
        }
        devices.note_left_out(&left_out, surplus, subsystems.len(), notes);
        devices.empty_bridges(machine, numbers);
        devices
    }

    /// The controllers of all NVMe subsystems that are PCI functions.
    fn subsystems(
        &mut self,
        machine: &Machine,
        notes: &mut Vec<String>,
    ) -> BTreeMap<PciAddress, Device> {
        let mut controllers = BTreeMap::new();
        for described in machine.nvme.get().into_iter().flatten() {
            let local: Vec<_> = described
                .controllers
                .iter()
                .filter(|controller| controller.device.is_some())
                .collect();
            if local.len() < described.controllers.len() {
                notes.push(format!(
                    "{} of the {} controllers of {} are not in the guest: they are no PCI functions",
                    described.controllers.len() - local.len(),
                    described.controllers.len(),
                    described.name
                ));
            }
            if local.is_empty() {
                continue;
            }
            let subsystem = self.subsystem(described, notes);
            for controller in local {
                let queues = controller
                    .queues
                    .get()
                    .map(|queues| queues.saturating_sub(1).clamp(1, MOST_NVME_QUEUES));
                let device = self.controller(subsystem, queues);
                controllers.extend(controller.device.map(|address| (address, device)));
            }
        }
        controllers
    }

    fn subsystem(&mut self, described: &NvmeSubsystem, notes: &mut Vec<String>) -> usize {
        let namespaces = described.namespaces.len();
        if namespaces > MOST_NAMESPACES {
            notes.push(format!(
                "{} has {MOST_NAMESPACES} of its {namespaces} namespaces in the guest",
                described.name
            ));
        }
        self.new_subsystem(namespaces.clamp(1, MOST_NAMESPACES))
    }

    fn new_subsystem(&mut self, namespaces: usize) -> usize {
        let number = self.subsystems.len();
        let disks: Vec<String> = (1..=namespaces)
            .map(|namespace| self.disk(format!("nvme-disk{number}-{namespace}")))
            .collect();
        self.subsystems.push(Subsystem { disks });
        number
    }

    fn controller(&mut self, subsystem: usize, io_queues: Option<u32>) -> Device {
        let id = format!("nvme{}", self.nvme);
        self.nvme += 1;
        Device::Nvme {
            id,
            subsystem,
            io_queues,
        }
    }

    /// A controller of which no source says what is behind it.
    fn lone_controller(&mut self, io_queues: Option<u32>) -> Device {
        let subsystem = self.new_subsystem(1);
        self.controller(subsystem, io_queues)
    }

    fn block(&mut self, cpus: usize) -> Device {
        let disk = self.disk(format!("block-disk{}", self.blocks));
        self.blocks += 1;
        Device::Block {
            disk,
            queues: cpus.clamp(1, MOST_BLOCK_QUEUES),
        }
    }

    fn disk(&mut self, name: String) -> String {
        self.disks.push(Disk {
            name: name.clone(),
            bytes: DISK_BYTES,
        });
        name
    }

    fn nic(
        &mut self,
        described: Option<&NetworkDevice>,
        cpus: usize,
        notes: &mut Vec<String>,
    ) -> Device {
        let id = format!("nic{}", self.nics);
        self.nics += 1;
        let asked = described
            .map(|nic| nic.transmit.len().max(nic.receive.len()))
            .filter(|&queues| queues > 0);
        let multi_queue = asked != Some(1);
        let queues = queues(multi_queue, cpus);
        if let Some((nic, asked)) = described.zip(asked).filter(|(_, asked)| *asked != queues) {
            notes.push(format!(
                "{}'s {asked} queues become {queues}: the emulated card has one per CPU, at most {IGB_QUEUES}",
                nic.name
            ));
        }
        Device::Nic { id, multi_queue }
    }

    /// A bridge without devices is worth having where its node has no other: something can be plugged there.
    fn empty_bridges(&mut self, machine: &Machine, numbers: &Numbers) {
        for bridge in machine.host_bridges.get().into_iter().flatten() {
            let place = Place {
                root: bridge.root,
                node: firmware_node(bridge).and_then(|node| numbers.guest(node)),
            };
            if place.node.is_some() && self.places.keys().all(|other| other.node != place.node) {
                self.places.insert(place, Vec::new());
            }
        }
    }

    fn note_left_out(
        &self,
        classes: &BTreeMap<u32, usize>,
        surplus: usize,
        unseen: usize,
        notes: &mut Vec<String>,
    ) {
        let functions: usize = classes.values().sum();
        if functions > 0 {
            let list: Vec<String> = classes.keys().map(|class| format!("{class:02x}")).collect();
            notes.push(format!(
                "{functions} PCI functions are left out: QEMU has nothing like them (base classes {})",
                list.join(", ")
            ));
        }
        if surplus > 0 {
            notes.push(format!(
                "{surplus} devices are left out: a guest has at most {MOST}"
            ));
        }
        if unseen > 0 {
            notes.push(format!(
                "{unseen} NVMe controllers are left out: no PCI function has their address"
            ));
        }
    }
}

/// How many queues an emulated card has.
pub(super) fn queues(multi_queue: bool, cpus: usize) -> usize {
    if multi_queue {
        cpus.clamp(1, IGB_QUEUES)
    } else {
        1
    }
}

fn firmware_node(bridge: &HostBridge) -> Option<NodeId> {
    bridge
        .firmware
        .get()
        .and_then(|told| told.as_ref())
        .map(|locality| locality.node)
}

/// Where a device is: where the firmware says its bridge is, or else where the kernel says the device is.
fn place(machine: &Machine, numbers: &Numbers, function: &PciDevice) -> Place {
    let firmware = machine.host_bridge(function.root).and_then(firmware_node);
    let node = firmware.or(function.node.get().copied().flatten());
    Place {
        root: function.root,
        node: node.and_then(|node| numbers.guest(node)),
    }
}

fn note_change(function: &PciDevice, device: &Device, notes: &mut Vec<String>) {
    let kind = function.kind();
    let (address, class) = (function.address, function.class);
    match device {
        Device::StandIn(stand_in) => {
            notes.push(format!(
                "{address} (class {class:06x}) is QEMU's {} in the guest",
                stand_in.qemu()
            ));
        }
        Device::Block { .. } if kind != 0x0100 => {
            notes.push(format!(
                "{address} (class {class:06x}) is a virtio disk in the guest"
            ));
        }
        _ => {}
    }
}
