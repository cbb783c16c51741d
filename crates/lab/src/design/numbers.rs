//! The numbers that described nodes have in the guest.

use std::collections::BTreeMap;

use nearfar_machine::{Latency, Machine, NodeId, Timing};

use super::board::{Board, NodeNumbers};
use super::processors::VirtualCpu;
use crate::error::LabError;

/// QEMU's `MAX_NODES` (include/system/numa.h).
const MOST_NODES: usize = 128;

/// Whether QEMU takes so many nodes, and which CPUs each has is known.
pub(super) fn check_count(machine: &Machine) -> Result<(), LabError> {
    if let Some(reason) = machine.cpu_nodes_unknown_reason() {
        return Err(LabError::Design(reason));
    }
    match machine.nodes.len() {
        0..=MOST_NODES => Ok(()),
        count => Err(LabError::Design(format!(
            "it has {count} nodes and QEMU takes at most {MOST_NODES}; --scale keeps every node, so describe fewer"
        ))),
    }
}

/// The guest's number of each described node.
#[derive(Debug)]
pub(super) struct Numbers {
    guest: BTreeMap<NodeId, NodeId>,
    /// How many nodes QEMU's arguments have: the described ones and those that fill gaps.
    pub count: usize,
}

impl Numbers {
    /// Numbers as the guest's kernel will give them. QEMU's are the same, so that they need no translation: a node that the
    /// kernel would number differently has that number in QEMU's arguments.
    pub fn new(
        machine: &Machine,
        cpus: &[VirtualCpu],
        board: &dyn Board,
        notes: &mut Vec<String>,
    ) -> Self {
        let highest = machine.nodes.last().map_or(0, |node| node.id.0 as usize);
        if board.node_numbers() == NodeNumbers::AsGiven && highest < MOST_NODES {
            let guest = machine
                .nodes
                .iter()
                .map(|node| (node.id, node.id))
                .collect();
            return Self {
                guest,
                count: highest + 1,
            };
        }
        let order = by_appearance(machine, cpus);
        let guest: BTreeMap<NodeId, NodeId> = order.into_iter().zip((0..).map(NodeId)).collect();
        let numbers = Self {
            count: guest.len(),
            guest,
        };
        numbers.note_changes(notes);
        numbers
    }

    fn note_changes(&self, notes: &mut Vec<String>) {
        let changed = self
            .guest
            .iter()
            .filter(|(described, guest)| described != guest);
        let changed: Vec<String> = changed
            .map(|(described, guest)| format!("{described} is {guest}"))
            .collect();
        if !changed.is_empty() {
            notes.push(format!(
                "nodes have other numbers in the guest ({}): its kernel counts them as the firmware's tables name them, nodes \
                 with CPUs first",
                changed.join(", ")
            ));
        }
    }

    /// The guest's number of a described node.
    pub fn guest(&self, described: NodeId) -> Option<NodeId> {
        self.guest.get(&described).copied()
    }

    /// The same figures by the guest's numbers.
    pub fn timing(&self, described: &Timing) -> Timing {
        let guest = |it: &Latency| {
            Some(Latency {
                cpu_node: self.guest(it.cpu_node)?,
                memory_node: self.guest(it.memory_node)?,
                ..*it
            })
        };
        let latencies = described.latencies.iter().filter_map(guest);
        described.clone().with_latencies(latencies)
    }

    /// Described nodes with their numbers in the guest.
    pub fn pairs(&self) -> impl Iterator<Item = (NodeId, NodeId)> + '_ {
        self.guest
            .iter()
            .map(|(&described, &guest)| (described, guest))
    }
}

/// Nodes in the order in which an SRAT made by QEMU names them: CPUs, memory, and at last those with neither, which it
/// does not name (`build_srat` in hw/i386/acpi-build.c and hw/arm/virt-acpi-build.c).
fn by_appearance(machine: &Machine, cpus: &[VirtualCpu]) -> Vec<NodeId> {
    let mut order: Vec<NodeId> = Vec::new();
    let with_memory = machine
        .nodes
        .iter()
        .filter(|node| node.online && node.has_memory() != Some(false));
    let appearing = cpus
        .iter()
        .map(|cpu| cpu.node)
        .chain(with_memory.map(|node| node.id));
    let mut seen = std::collections::BTreeSet::new();
    for node in appearing.chain(machine.nodes.iter().map(|node| node.id)) {
        if seen.insert(node) {
            order.push(node);
        }
    }
    order
}
