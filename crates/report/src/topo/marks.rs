//! What is marked on a picture of the machine: which CPUs serve interrupts of which device, and which devices have findings.

use std::collections::BTreeMap;

use nearfar_machine::{CpuSet, Distance, Interrupt, Machine, NodeId, NodeSet, PciAddress};
use nearfar_placement::audit::{Audit, Severity, serving};
use nearfar_placement::locality::Localities;

/// Interrupts of one device that CPUs of one node serve.
pub(crate) struct Lot {
    pub(crate) device: String,
    /// The device's node.
    pub(crate) home: NodeId,
    pub(crate) interrupts: usize,
    /// From the device's node to this one.
    pub(crate) distance: Option<Distance>,
}

/// The marks of a machine.
#[derive(Default)]
pub(crate) struct Marks {
    /// CPUs that serve interrupts of a device on another node.
    pub(crate) far: CpuSet,
    /// CPUs that serve interrupts of devices on their own node.
    pub(crate) near: CpuSet,
    /// Interrupts by the node that serves them, far ones first.
    lots: BTreeMap<NodeId, Vec<Lot>>,
    /// The most severe finding about a device, and how many there are.
    findings: BTreeMap<PciAddress, (Severity, usize)>,
    /// What the kernel calls a device.
    names: BTreeMap<PciAddress, String>,
}

/// Where an interrupt is served and where its device is.
pub(crate) struct Served {
    pub(crate) device: PciAddress,
    /// The nodes of the CPUs that serve it.
    pub(crate) nodes: NodeSet,
    /// The device's node, where it is known.
    pub(crate) home: Option<NodeId>,
}

/// Where an interrupt of a PCI device is served; `None` for others and where it is unknown.
pub(crate) fn served(
    machine: &Machine,
    localities: &Localities<'_>,
    interrupt: &Interrupt,
) -> Option<Served> {
    let (device, serving) = (interrupt.device?, serving(interrupt)?);
    let nodes = serving.cpus.iter().filter_map(|cpu| machine.node_of(cpu));
    Some(Served {
        device,
        nodes: nodes.collect(),
        home: localities.of(device).node,
    })
}

/// The names under which the system knows PCI devices: network interfaces, NVMe controllers, disks.
pub(crate) fn names(machine: &Machine) -> BTreeMap<PciAddress, String> {
    let interfaces = machine.networks.get().into_iter().flatten();
    let interfaces = interfaces.map(|network| (network.device, &network.name));
    let subsystems = machine.nvme.get().into_iter().flatten();
    let controllers = subsystems.flat_map(|subsystem| &subsystem.controllers);
    let controllers = controllers.map(|controller| (controller.device, &controller.name));
    let disks = machine
        .disks
        .iter()
        .map(|disk| (Some(disk.device), &disk.name));
    let mut names: BTreeMap<PciAddress, String> = BTreeMap::new();
    for (device, name) in interfaces.chain(controllers).chain(disks) {
        let Some(device) = device else { continue };
        let all = names.entry(device).or_default();
        all.push_str(if all.is_empty() { "" } else { ", " });
        all.push_str(name);
    }
    names
}

impl Marks {
    /// The marks of a machine, with the findings of an audit where there is one.
    pub(crate) fn of(machine: &Machine, audit: Option<&Audit>) -> Self {
        let mut marks = Self {
            names: names(machine),
            ..Self::default()
        };
        marks.place(machine);
        for finding in audit.into_iter().flat_map(|audit| &audit.findings) {
            let Some(device) = finding.device else {
                continue;
            };
            let of_device = marks.findings.entry(device);
            let (worst, number) = of_device.or_insert((finding.severity, 0));
            (*worst, *number) = ((*worst).max(finding.severity), *number + 1);
        }
        marks
    }

    fn place(&mut self, machine: &Machine) {
        // On one node nothing is far, and every CPU would have a mark.
        if machine.online_nodes().count() < 2 {
            return;
        }
        let localities = Localities::new(machine);
        let mut lots: BTreeMap<(NodeId, PciAddress, NodeId), usize> = BTreeMap::new();
        for interrupt in machine.interrupts.get().into_iter().flatten() {
            let Some(Served {
                device,
                nodes,
                home: Some(home),
            }) = served(machine, &localities, interrupt)
            else {
                continue;
            };
            // An interrupt that CPUs of several nodes may serve is neither near nor far.
            let (Some(node), 1) = (nodes.first(), nodes.len()) else {
                continue;
            };
            let is_near = node == home;
            let marked = if is_near {
                &mut self.near
            } else {
                &mut self.far
            };
            let serving = serving(interrupt).into_iter();
            marked.extend(serving.flat_map(|serving| serving.cpus.iter()));
            *lots.entry((node, device, home)).or_default() += 1;
        }
        for ((node, device, home), interrupts) in lots {
            let (device, distance) = (self.name(device), machine.distance(home, node));
            self.lots.entry(node).or_default().push(Lot {
                device,
                home,
                interrupts,
                distance,
            });
        }
        for (&node, lots) in &mut self.lots {
            lots.sort_by_key(|lot| lot.home == node);
        }
    }

    /// The interrupts that CPUs of a node serve: those of devices on other nodes first.
    pub(crate) fn lots(&self, node: NodeId) -> &[Lot] {
        self.lots.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The most severe finding about a device, and how many there are.
    pub(crate) fn findings(&self, device: PciAddress) -> Option<(Severity, usize)> {
        self.findings.get(&device).copied()
    }

    /// What the system calls a device, or its address.
    pub(crate) fn name(&self, device: PciAddress) -> String {
        self.names
            .get(&device)
            .cloned()
            .unwrap_or_else(|| device.to_string())
    }

    /// What the system calls a device, where it has a name.
    pub(crate) fn known_name(&self, device: PciAddress) -> Option<&str> {
        self.names.get(&device).map(String::as_str)
    }
}
