//! Arranges a machine's PCI devices as hwloc has them: host bridges, and below them bridges and devices.

use std::collections::BTreeMap;

use nearfar_machine::{Machine, NodeId, OsDeviceKind, PciAddress, PciDevice, RootBus};

/// How deep bridges may nest; real ones stay below ten, and a hostile snapshot may hold a chain without end.
pub(super) const DEEPEST: usize = 64;

/// The devices of a machine, from above.
pub(super) struct PciTree<'a> {
    /// The root buses with the node that all of their devices agree on.
    pub roots: BTreeMap<RootBus, Option<NodeId>>,
    top: BTreeMap<RootBus, Vec<&'a PciDevice>>,
    below: BTreeMap<PciAddress, Vec<&'a PciDevice>>,
    names: BTreeMap<PciAddress, Vec<(&'a str, &'static str)>>,
}

impl<'a> PciTree<'a> {
    pub(super) fn of(machine: &'a Machine) -> Self {
        let devices = || machine.pci.get().into_iter().flatten();
        let bridges = machine
            .host_bridges
            .get()
            .into_iter()
            .flatten()
            .map(|bridge| bridge.root);
        let mut tree = Self {
            roots: bridges.map(|root| (root, None)).collect(),
            top: BTreeMap::new(),
            below: BTreeMap::new(),
            names: names(machine),
        };
        for device in devices() {
            match device
                .parent
                .filter(|&parent| machine.pci_device(parent).is_some())
            {
                Some(parent) => tree.below.entry(parent).or_default().push(device),
                None => tree.top.entry(device.root).or_default().push(device),
            }
            tree.roots.entry(device.root).or_default();
        }
        for (&root, agreed) in &mut tree.roots {
            let mut nodes = devices()
                .filter(|device| device.root == root)
                .map(|device| device.node.get().copied().flatten());
            let first = nodes.next().flatten();
            *agreed = first.filter(|_| nodes.all(|node| node == first));
        }
        tree
    }

    /// Devices on the root bus itself.
    pub(super) fn on(&self, root: RootBus) -> &[&'a PciDevice] {
        self.top.get(&root).map_or(&[], Vec::as_slice)
    }

    /// Devices behind a bridge.
    pub(super) fn behind(&self, bridge: PciAddress) -> &[&'a PciDevice] {
        self.below.get(&bridge).map_or(&[], Vec::as_slice)
    }

    /// What the operating system calls a device, with hwloc's number for the kind in version 2.
    pub(super) fn names(&self, device: PciAddress) -> &[(&'a str, &'static str)] {
        self.names.get(&device).map_or(&[], Vec::as_slice)
    }

    /// The lowest and highest bus among devices and what is behind them.
    pub(super) fn buses(&self, devices: &[&PciDevice], depth: usize) -> Option<(u8, u8)> {
        let own = devices
            .iter()
            .map(|device| (device.address.bus, device.address.bus));
        let further = devices.iter().filter(|_| depth < DEEPEST);
        let further =
            further.filter_map(|device| self.buses(self.behind(device.address), depth + 1));
        own.chain(further)
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

fn names(machine: &Machine) -> BTreeMap<PciAddress, Vec<(&str, &'static str)>> {
    let mut names: BTreeMap<PciAddress, Vec<_>> = BTreeMap::new();
    let mut add = |device, name, kind| names.entry(device).or_default().push((name, kind));
    for disk in &machine.disks {
        add(disk.device, disk.name.as_str(), "0");
    }
    for network in machine.networks.get().into_iter().flatten() {
        if let Some(device) = network.device {
            add(device, network.name.as_str(), "2");
        }
    }
    for device in &machine.os_devices {
        let kind = match device.kind {
            OsDeviceKind::Memory => "0",
            OsDeviceKind::Gpu => "1",
            OsDeviceKind::Network => "2",
            OsDeviceKind::OpenFabrics => "3",
            OsDeviceKind::Dma => "4",
            OsDeviceKind::CoProcessor => "5",
        };
        add(device.device, device.name.as_str(), kind);
    }
    for subsystem in machine.nvme.get().into_iter().flatten() {
        // A namespace that is reached through several controllers is shown at the first.
        let mut controllers = subsystem.controllers.iter();
        let Some(device) = controllers.find_map(|controller| controller.device) else {
            continue;
        };
        for namespace in &subsystem.namespaces {
            add(device, namespace.name.as_str(), "0");
        }
    }
    names
}
