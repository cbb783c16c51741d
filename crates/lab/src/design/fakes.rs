//! The real machine below fake nodes: QEMU builds that, and the guest's kernel splits it again.

use std::collections::BTreeMap;

use nearfar_machine::{DistanceOrigin, Distances, Known, Machine, Memory, Node, NodeId};
use nearfar_sources::fake::{self, FakeError, FakeSpec};

use crate::arch::Arch;
use crate::error::LabError;

/// How [`nearfar_sources::fake::lay`] writes its overlay down.
const OVERLAY: &str = "fake: ";

/// A machine without its fake nodes, and their layout.
pub(crate) fn real(machine: &Machine) -> (Machine, Option<FakeSpec>) {
    let mut overlays = machine.origin.overlays.iter();
    let overlay = overlays.find_map(|overlay| overlay.strip_prefix(OVERLAY));
    let spec = overlay.and_then(|text| text.split(' ').next()?.parse().ok());
    let Some(spec) = spec else {
        return (machine.clone(), None);
    };
    let mut real = machine.clone();
    let overlays = &mut real.origin.overlays;
    overlays.retain(|overlay| !overlay.starts_with(OVERLAY));
    let parents = machine.nodes.iter();
    let parents = parents.map(|node| (node.id, node.fake_of.unwrap_or(node.id)));
    let parent: BTreeMap<NodeId, NodeId> = parents.collect();
    real.nodes = nodes(machine);
    real.distances = table(&machine.distances, &parent);
    real.firmware_distances = table(&machine.firmware_distances, &parent);
    real.possible_nodes = Known::no("fake nodes were taken away");
    let up = |node: &mut Option<NodeId>| {
        *node = node.map(|node| parent.get(&node).copied().unwrap_or(node))
    };
    real.cpus.iter_mut().for_each(|cpu| up(&mut cpu.node));
    nodes_of_devices(&mut real, up);
    (real, Some(spec))
}

/// Real nodes: the CPUs of all their fakes, and their memory together.
fn nodes(machine: &Machine) -> Vec<Node> {
    let mut real: BTreeMap<NodeId, Node> = BTreeMap::new();
    for fake in &machine.nodes {
        let id = fake.fake_of.unwrap_or(fake.id);
        let Some(node) = real.get_mut(&id) else {
            let node = Node {
                id,
                fake_of: None,
                access: Vec::new(),
                ..fake.clone()
            };
            real.insert(id, node);
            continue;
        };
        node.cpus = node.known_cpus().union(fake.known_cpus()).into();
        node.online |= fake.online;
        node.memory = match (node.total_bytes(), fake.total_bytes()) {
            (Some(sum), Some(bytes)) => Known::Yes(Memory::of(sum.saturating_add(bytes))),
            _ => Known::no("the size of a fake node is not known"),
        };
    }
    real.into_values().collect()
}

fn table(fakes: &Known<Distances>, parent: &BTreeMap<NodeId, NodeId>) -> Known<Distances> {
    fakes.clone().map(|fakes| {
        let up = |node: NodeId| parent.get(&node).copied().unwrap_or(node);
        let nodes = fakes.nodes().iter().map(|&node| up(node));
        let mut real = Distances::empty(DistanceOrigin::Described, nodes);
        for (from, to, distance) in fakes.entries() {
            real.set(up(from), up(to), distance);
        }
        real
    })
}

/// Does something with every node that a device, a bridge or an interrupt is on.
fn nodes_of_devices(machine: &mut Machine, change: impl Fn(&mut Option<NodeId>)) {
    let each = |node: &mut Known<Option<NodeId>>| {
        if let Known::Yes(node) = node {
            change(node);
        }
    };
    listed(&mut machine.pci).for_each(|device| each(&mut device.node));
    listed(&mut machine.networks).for_each(|network| each(&mut network.node));
    listed(&mut machine.interrupts).for_each(|interrupt| each(&mut interrupt.node));
    let subsystems = listed(&mut machine.nvme);
    let controllers = subsystems.flat_map(|nvme| &mut nvme.controllers);
    controllers.for_each(|nvme| each(&mut nvme.node));
    for bridge in listed(&mut machine.host_bridges) {
        if let Known::Yes(Some(locality)) = &mut bridge.firmware {
            let mut node = Some(locality.node);
            change(&mut node);
            locality.node = node.unwrap_or(locality.node);
        }
    }
}

/// The items of a list that is known; none otherwise.
pub(crate) fn listed<T>(list: &mut Known<Vec<T>>) -> std::slice::IterMut<'_, T> {
    match list {
        Known::Yes(items) => items.iter_mut(),
        Known::No { .. } => [].iter_mut(),
    }
}

/// Lays the fake nodes over the guest's real ones, as its kernel will.
pub(super) fn again(
    real: Machine,
    spec: &FakeSpec,
    arch: Arch,
    append: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Result<Machine, LabError> {
    let text = spec.to_string();
    if spec.splits_cpus() {
        let note =
            "fake nodes share their CPUs in the guest: the kernel's numa=fake= cannot split them";
        notes.push(note.to_owned());
    }
    let word = match text.strip_prefix("split:") {
        Some(count) => format!("{count}U"),
        None => text.strip_suffix(",cpus").unwrap_or(&text).to_owned(),
    };
    append.push(format!("numa=fake={word}"));
    if arch != Arch::X86_64 {
        notes.push(format!(
            "numa=fake= does nothing in distribution kernels for {arch}: NUMA_EMU is off in them"
        ));
    }
    let design = |problem: FakeError| LabError::Design(problem.to_string());
    let spec: FakeSpec = word.parse().map_err(design)?;
    fake::lay(real, &spec).map_err(design)
}
