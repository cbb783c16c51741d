//! Everything of a machine that is not nodes, CPUs, memory and caches: what hangs on it and what runs on it.

use nearfar_machine::{CpuSet, Known, Machine, NOT_ASKED_FOR, Node, NodeSet, PciDevice, RootBus};

use super::notes::Notes;
use super::{
    cpusets, disks, firmware, interrupts, networks, nodes, nvme, pci, settings, tasks, virtio,
    writers,
};
use crate::tree::Tree;
use crate::want::{TaskScope, Want};

/// Reads what is wanted into a machine that has its nodes and CPUs already.
pub(crate) fn read(tree: &Tree, want: &Want, notes: &Notes, machine: &mut Machine) {
    machine.settings = settings::read(tree, notes);
    machine.writers = writers::read(tree);
    machine.cpusets = if want.devices || want.tasks != TaskScope::None {
        cpusets::read(tree, notes)
    } else {
        Known::no(NOT_ASKED_FOR)
    };
    machine.tasks = tasks::read(tree, want, notes);
    read_devices(tree, want, notes, machine);
}

fn read_devices(tree: &Tree, want: &Want, notes: &Notes, machine: &mut Machine) {
    let pci = match want.devices || want.interrupts {
        true => pci::read(tree, notes, &machine.nodes),
        false => Known::no(NOT_ASKED_FOR),
    };
    let virtio = if want.interrupts {
        virtio::read(tree, notes)
    } else {
        Default::default()
    };
    let functions = pci.get().map_or(&[][..], Vec::as_slice);
    missing_nodes(tree, notes, functions, &machine.possible_nodes);
    machine.interrupts = match want.interrupts {
        true => interrupts::read(tree, want, notes, functions, &virtio),
        false => Known::no(NOT_ASKED_FOR),
    };
    if want.devices {
        machine.networks = networks::read(tree, notes, functions);
        machine.nvme = nvme::read(tree, notes, functions);
        machine.disks = disks::read(tree);
        let roots = pci.as_ref().map(|functions| root_buses(functions));
        locate_bridges(tree, notes, roots, machine);
        machine.pci = pci;
    } else {
        machine.pci = Known::no(NOT_ASKED_FOR);
        machine.host_bridges = Known::no(NOT_ASKED_FOR);
        machine.firmware_distances = Known::no(NOT_ASKED_FOR);
        machine.networks = Known::no(NOT_ASKED_FOR);
        machine.nvme = Known::no(NOT_ASKED_FOR);
    }
}

/// Notes devices on a node that cannot exist: the kernel has each of its nodes in `possible`.
fn missing_nodes(tree: &Tree, notes: &Notes, functions: &[PciDevice], possible: &Known<NodeSet>) {
    let Some(possible) = possible.get() else {
        return;
    };
    for device in functions {
        if let Some(node) = device.node.get().copied().flatten()
            && !possible.contains(node)
        {
            let nodes = tree.display(nodes::DIRECTORY);
            notes.note(
                tree.display(&format!("{}/{}/numa_node", pci::DEVICES, device.address)),
                format!("names node {node}, but {nodes} has only nodes {possible}"),
            );
        }
    }
}

fn root_buses(functions: &[PciDevice]) -> Vec<RootBus> {
    let mut roots: Vec<RootBus> = functions.iter().map(|device| device.root).collect();
    roots.sort_unstable();
    roots.dedup();
    roots
}

/// Asks the firmware where the host bridges are. Nodes that it names and the kernel has not switched on are added to
/// the list of nodes: they are where some of the devices are.
fn locate_bridges(tree: &Tree, notes: &Notes, roots: Known<Vec<RootBus>>, machine: &mut Machine) {
    let listed = roots.get().map_or(&[][..], Vec::as_slice);
    let firmware = firmware::read(tree, notes, listed);
    for id in firmware.nodes() {
        if let Err(place) = machine.nodes.binary_search_by_key(&id, |node| node.id) {
            let mut node = Node::new(id, CpuSet::new());
            node.online = false;
            node.memory = Known::no("the node is not online");
            machine.nodes.insert(place, node);
        }
    }
    machine.firmware_distances = firmware.distances;
    machine.host_bridges = roots.map(|_| firmware.bridges);
}
