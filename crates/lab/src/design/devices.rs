//! From the devices of a machine to what QEMU can emulate, each behind a host bridge on the same node.
//!
//! | described | in the guest |
//! |---|---|
//! | NVMe controllers of a subsystem | `nvme` controllers with shared namespaces |
//! | network cards | a multi-queue card, or `virtio-net` for one queue |
//! | other storage (class 01) | multi-queue `virtio-blk` |
//! | graphics (03), accelerators (0b, 12) | something that is merely there |
//! | bridges, system functions, the rest | nothing |
//!
//! There are as many host bridges as the board has room for, each with no more devices than fit behind it.

use std::collections::BTreeMap;

use nearfar_machine::{
    HostBridge, Machine, NetworkDevice, NodeId, NvmeSubsystem, PciAddress, PciDevice, RootBus,
};

use crate::design::Disk;
use crate::design::board::Board;
use crate::design::hardware::{Bridge, Device, StandIn, Subsystem};
use crate::design::nodes::Numbers;
use crate::error::LabError;

/// The most devices of all kinds: each takes a bus number, of which there are 256, and time to find.
const MAX_DEVICES: usize = 96;
/// The most namespaces of a subsystem.
const MOST_NAMESPACES: usize = 16;
/// The most queues QEMU's NVMe controller has interrupts for (`msix_qsize`).
const MOST_NVME_QUEUES: u32 = 64;
/// The most queues of a virtio block device here.
const MOST_BLOCK_QUEUES: usize = 64;
/// The queues of QEMU's `igb`, which uses one a CPU.
const IGB_QUEUES: usize = 8;
/// Sparse, so that a large one costs nothing.
const DISK_BYTES: u64 = 1 << 30;

/// Which devices there are, by the host bridge and the guest's node they are on, with the disks behind them.
#[derive(Default)]
pub(super) struct Devices {
    /// In the order of root buses.
    places: BTreeMap<Place, Vec<Device>>,
    pub subsystems: Vec<Subsystem>,
    pub disks: Vec<Disk>,
    nvme: usize,
    nics: usize,
    blocks: usize,
}

/// A host bridge as far as locality goes. A bridge whose devices are on several nodes becomes several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    pub root: RootBus,
    pub node: Option<NodeId>,
}

impl Devices {
    pub fn of(machine: &Machine, numbers: &Numbers, cpus: usize, notes: &mut Vec<String>) -> Self {
        let mut devices = Self::default();
        let mut left_out: BTreeMap<u32, usize> = BTreeMap::new();
        let mut subsystems = devices.subsystems(machine, notes);
        let networks = machine.networks.get().into_iter().flatten();
        let networks: BTreeMap<PciAddress, &NetworkDevice> = networks
            .filter_map(|nic| Some((nic.device?, nic)))
            .collect();
        let (mut taken, mut surplus) = (0, 0);
        let functions = machine.pci.get().into_iter().flatten();
        for function in functions.filter(|function| !function.is_bridge()) {
            let built = match (subsystems.remove(&function.address), function.class >> 16) {
                (Some(controller), _) => Some(controller),
                (None, 0x01) if function.class_code() == 0x0108 => {
                    Some(devices.lone_controller(None))
                }
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
            if taken == MAX_DEVICES {
                surplus += 1;
                continue;
            }
            taken += 1;
            note_change(function, &device, notes);
            let place = place(machine, numbers, function);
            devices.places.entry(place).or_default().push(device);
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
            let all = described.controllers.iter();
            let local: Vec<_> = all.filter(|it| it.device.is_some()).collect();
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
                let queues = controller.queues.get();
                let queues = queues.map(|it| it.saturating_sub(1).clamp(1, MOST_NVME_QUEUES));
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
        let asked = described.map(|nic| nic.transmit.len().max(nic.receive.len()));
        let asked = asked.filter(|&queues| queues > 0);
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
                "{surplus} devices are left out: a guest has at most {MAX_DEVICES}"
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
    match multi_queue {
        true => cpus.clamp(1, IGB_QUEUES),
        false => 1,
    }
}

fn firmware_node(bridge: &HostBridge) -> Option<NodeId> {
    let told = bridge.firmware.get()?.as_ref();
    told.map(|locality| locality.node)
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
    let kind = function.class_code();
    let (address, class) = (function.address, function.class);
    match device {
        Device::StandIn(it) => notes.push(format!(
            "{address} (class {class:06x}) is QEMU's {} in the guest",
            it.qemu()
        )),
        Device::Block { .. } if kind != 0x0100 => notes.push(format!(
            "{address} (class {class:06x}) is a virtio disk in the guest"
        )),
        _ => {}
    }
}

/// The bridges of a guest, in the order of their root buses.
pub(super) fn bridges(
    devices: &mut Devices,
    board: &dyn Board,
    notes: &mut Vec<String>,
) -> Result<Vec<Bridge>, LabError> {
    let mut places: Vec<(Place, Vec<Device>)> =
        std::mem::take(&mut devices.places).into_iter().collect();
    if !board.has_nodes_of_devices() {
        places = without_nodes(places, notes);
    }
    let mut split = split(&places, board.most_devices());
    if split.len() > board.most_bridges() {
        places = joined(places);
        split = self::split(&places, board.most_devices());
        notes.push(
            "host bridges on the same node are one in the guest: there are too many".to_owned(),
        );
    }
    let surplus = split.len().saturating_sub(board.most_bridges());
    if surplus > 0 {
        notes.push(format!(
            "{surplus} host bridges are left out with their devices: there are too many"
        ));
        split.truncate(board.most_bridges());
    }
    let bridge = |(number, (place, devices)): (usize, (Place, _))| Bridge {
        id: format!("bridge{number}"),
        root: place.root,
        node: place.node,
        devices,
    };
    let mut bridges: Vec<Bridge> = split.into_iter().enumerate().map(bridge).collect();
    let problem = "its devices need more than the 256 buses of a PCI domain";
    match board.place(&mut bridges) {
        true => Ok(bridges),
        false => Err(LabError::Design(problem.to_owned())),
    }
}

/// All devices behind one bridge that is on no node.
fn without_nodes(
    places: Vec<(Place, Vec<Device>)>,
    notes: &mut Vec<String>,
) -> Vec<(Place, Vec<Device>)> {
    let on_nodes = places.iter().filter(|(place, _)| place.node.is_some());
    let on_nodes: usize = on_nodes.map(|(_, devices)| devices.len()).sum();
    if on_nodes > 0 {
        notes.push(format!(
            "{on_nodes} devices are on no node in the guest: that takes UEFI firmware of 2025.02 or later (Debian's qemu-efi-aarch64)"
        ));
    }
    let devices = places.into_iter().flat_map(|(_, devices)| devices);
    let place = Place {
        root: RootBus { domain: 0, bus: 0 },
        node: None,
    };
    vec![(place, devices.collect())]
}

/// Bridges with more devices than fit become several.
fn split(places: &[(Place, Vec<Device>)], most: usize) -> Vec<(Place, Vec<Device>)> {
    let parts = |(place, devices): &(Place, Vec<Device>)| {
        let whole = match devices.is_empty() {
            true => vec![Vec::new()],
            false => devices.chunks(most).map(<[Device]>::to_vec).collect(),
        };
        let place = *place;
        whole.into_iter().map(move |part| (place, part))
    };
    places.iter().flat_map(parts).collect()
}

/// One bridge a node, at the lowest of their root buses.
fn joined(places: Vec<(Place, Vec<Device>)>) -> Vec<(Place, Vec<Device>)> {
    let mut joined: Vec<(Place, Vec<Device>)> = Vec::new();
    for (place, devices) in places {
        let mut others = joined.iter_mut();
        match others.find(|(other, _)| other.node == place.node) {
            Some((_, all)) => all.extend(devices),
            None => joined.push((place, devices)),
        }
    }
    joined
}
