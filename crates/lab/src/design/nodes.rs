//! The nodes of a guest: their numbers, memory, distances, and the performance of memory, in what QEMU and the guest's kernel take.
//!
//! QEMU refuses a distance below 10, a local distance that is not 10, and a matrix of which part is missing (hw/core/numa.c); the
//! kernel throws the whole table away when a remote distance is 10 (`slit_valid` in drivers/acpi/numa/srat.c).
//!
//! ACPI's HMAT has a latency or bandwidth from each node with CPUs to each node with memory. QEMU compresses a kind's figures into 16
//! bits times a common base, and wants every node's initiator named (`-numa hmat-lb` in docs and hw/core/numa.c).

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Distance, Latency, Machine, Node, NodeId, Timing};

use crate::design::board::{Board, NodeNumbers};
use crate::design::hardware::{GuestNode, Measured, Performance};
use crate::design::processors::VirtualCpu;
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
            let nodes = machine.nodes.iter();
            return Self {
                guest: nodes.map(|node| (node.id, node.id)).collect(),
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
        let changed = self.pairs().filter(|(described, guest)| described != guest);
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
        let pairs = self.guest.iter();
        pairs.map(|(&described, &guest)| (described, guest))
    }
}

/// Nodes in the order in which an SRAT made by QEMU names them: CPUs, memory, and at last those with neither, which it
/// does not name (`build_srat` in hw/i386/acpi-build.c and hw/arm/virt-acpi-build.c).
fn by_appearance(machine: &Machine, cpus: &[VirtualCpu]) -> Vec<NodeId> {
    let has_memory = |node: &&Node| node.online && node.has_memory() != Some(false);
    let with_memory = machine.nodes.iter().filter(has_memory);
    let appearing = cpus.iter().map(|cpu| cpu.node);
    let appearing = appearing.chain(with_memory.map(|node| node.id));
    let all = appearing.chain(machine.nodes.iter().map(|node| node.id));
    let mut seen = BTreeSet::new();
    all.filter(|node| seen.insert(*node)).collect()
}

/// What a node gets whose size no source tells.
const UNKNOWN_BYTES: u64 = 512 << 20;
/// Emulated CPUs have 40 bits of physical address.
const MAX_BYTES: u64 = 1 << 39;
/// A distribution's kernel does not come up with less.
const MIN_BYTES: u64 = 256 << 20;

/// Bytes of memory by the guest's node number.
pub(super) fn memory_sizes(
    machine: &Machine,
    numbers: &Numbers,
    board: &dyn Board,
    notes: &mut Vec<String>,
) -> Result<Vec<u64>, LabError> {
    let step = board.memory_step();
    let mut sizes = vec![0; numbers.count];
    let (mut rounded, mut unknown) = (0, 0);
    for (described, guest) in numbers.pairs() {
        let Some(node) = machine.node(described).filter(|node| node.online) else {
            continue;
        };
        let wanted = node.total_bytes().unwrap_or_else(|| {
            unknown += 1;
            UNKNOWN_BYTES
        });
        let bytes = wanted.div_ceil(step).saturating_mul(step);
        rounded += usize::from(bytes != wanted);
        sizes[guest.0 as usize] = bytes;
    }
    let total = sizes.iter().copied().fold(0, u64::saturating_add);
    let mebibytes = |bytes: u64| bytes >> 20;
    if total > MAX_BYTES {
        return Err(LabError::Design(format!(
            "it has {} MiB of memory and the guest can have {}; give each node less with --scale memory=512M",
            mebibytes(total),
            mebibytes(MAX_BYTES)
        )));
    }
    if total < MIN_BYTES {
        return Err(LabError::Design(format!(
            "it has {} MiB of memory, and a kernel needs {}; give each node more with --scale memory=512M",
            mebibytes(total),
            mebibytes(MIN_BYTES)
        )));
    }
    if unknown > 0 {
        notes.push(format!(
            "{unknown} nodes of unknown size have {} MiB each",
            mebibytes(UNKNOWN_BYTES)
        ));
    }
    if rounded > 0 {
        notes.push(format!(
            "the memory of {rounded} nodes is rounded up to multiples of {} MiB",
            mebibytes(step)
        ));
    }
    Ok(sizes)
}

const NEAREST: u32 = Distance::LOCAL.0 + 1;
const FURTHEST: u32 = Distance::UNREACHABLE.0;

/// The distances of all pairs by the guest's numbers; empty where the machine tells no distance at all.
pub(super) fn distances(
    machine: &Machine,
    numbers: &Numbers,
    notes: &mut Vec<String>,
) -> Vec<Vec<u8>> {
    let known = |from: NodeId, to: NodeId| machine.distance(from, to).map(|distance| distance.0);
    let remote = || {
        let from = numbers.pairs();
        let pairs = from.flat_map(|from| numbers.pairs().map(move |to| (from, to)));
        pairs.filter(|(from, to)| from.0 != to.0)
    };
    if remote().all(|(from, to)| known(from.0, to.0).is_none()) {
        return Vec::new();
    }
    let mut matrix = vec![vec![Distance::REMOTE.0 as u8; numbers.count]; numbers.count];
    let (mut guessed, mut clipped) = (0, 0);
    for ((from, row), (to, column)) in remote() {
        let distance = known(from, to).unwrap_or_else(|| {
            guessed += 1;
            known(to, from).unwrap_or(Distance::REMOTE.0)
        });
        clipped += usize::from(!(NEAREST..=FURTHEST).contains(&distance));
        matrix[row.0 as usize][column.0 as usize] = distance.clamp(NEAREST, FURTHEST) as u8;
    }
    for (node, row) in matrix.iter_mut().enumerate() {
        row[node] = Distance::LOCAL.0 as u8;
    }
    let is_odd = |node| known(node, node) != Some(Distance::LOCAL.0);
    let odd = numbers.pairs().filter(|(node, _)| is_odd(*node)).count();
    if guessed > 0 {
        notes.push(format!(
            "{guessed} distances are not known and are those of the other direction, or 20"
        ));
    }
    if clipped > 0 {
        notes.push(format!(
            "{clipped} distances to other nodes are outside of {NEAREST} to {FURTHEST} and are clipped to that"
        ));
    }
    if odd > 0 {
        notes.push(format!(
            "the distance of {odd} nodes to themselves is 10 in the guest, as its kernel demands"
        ));
    }
    matrix
}

/// What HMAT tells of all nodes that have some.
pub(super) fn performance(
    machine: &Machine,
    numbers: &Numbers,
    nodes: &[GuestNode],
    board: &dyn Board,
    notes: &mut Vec<String>,
) -> Vec<Performance> {
    let mut figures: Vec<Performance> = Vec::new();
    if !board.has_hmat() {
        if machine.nodes.iter().any(|node| !node.access.is_empty()) {
            notes.push(
                "the guest is not told how fast memory is: its firmware has no table for it"
                    .to_owned(),
            );
        }
        return figures;
    }
    for (described, target) in numbers.pairs() {
        let Some(node) = machine.node(described) else {
            continue;
        };
        let memory = (nodes.get(target.0 as usize)).is_some_and(|node| node.bytes > 0);
        // Class 1 counts only CPUs as initiators; where both are told it is the better fit for QEMU, which has no others.
        let access = node.access.iter().max_by_key(|access| access.class);
        let Some(access) = access.filter(|_| memory) else {
            continue;
        };
        let values = [
            (Measured::ReadLatency, access.read_latency_ns),
            (Measured::WriteLatency, access.write_latency_ns),
            (Measured::ReadBandwidth, access.read_bandwidth_mib_per_s),
            (Measured::WriteBandwidth, access.write_bandwidth_mib_per_s),
        ];
        let has_cpus = |node: &NodeId| {
            nodes
                .get(node.0 as usize)
                .is_some_and(|it| !it.cpus.is_empty())
        };
        let initiators = access.initiators.iter();
        let initiators = initiators.filter_map(|node| numbers.guest(node));
        for initiator in initiators.filter(has_cpus) {
            let known = values.iter();
            let known =
                known.filter_map(|&(what, value)| Some((what, value.filter(|it| *it > 0)?)));
            figures.extend(known.map(|(what, value)| Performance {
                initiator,
                target,
                what,
                value,
            }));
        }
    }
    let all = figures.len();
    let fits = |what: &Measured| {
        let of_kind = figures.iter().filter(|figure| figure.what == *what);
        compressible(of_kind.map(|figure| figure.value))
    };
    let kinds = figures.iter().map(|figure| figure.what);
    let kinds: Vec<Measured> = kinds.filter(fits).collect();
    figures.retain(|figure| kinds.contains(&figure.what));
    if figures.len() < all {
        notes.push(
            "some latencies or bandwidths of memory are too far apart for QEMU and are left out"
                .to_owned(),
        );
    }
    let mut nodes = machine.nodes.iter();
    if nodes.any(|node| !node.memory_side_caches.is_empty()) {
        notes.push("caches before memory are not in the guest".to_owned());
    }
    figures
}

/// Whether the values fit into 16 bits, the last number excepted, in units of the largest power of two that divides all.
fn compressible(values: impl Iterator<Item = u64>) -> bool {
    let all = values.fold(0, |bits, value| bits | value);
    all >> all.trailing_zeros().min(63) < u64::from(u16::MAX)
}

/// The node whose CPUs are nearest to each node: itself where it has some.
pub(super) fn initiators(
    nodes: &[GuestNode],
    distances: &[Vec<u8>],
    figures: &[Performance],
) -> Vec<Option<NodeId>> {
    let with_cpus = || {
        let nodes = (0..).map(NodeId).zip(nodes);
        let with_cpus = nodes.filter(|(_, node)| !node.cpus.is_empty());
        with_cpus.map(|(number, _)| number)
    };
    let distance = |from: NodeId, to: NodeId| {
        let row = distances.get(from.0 as usize)?;
        row.get(to.0 as usize).copied()
    };
    let nearest = |target: NodeId| {
        let itself = with_cpus().find(|node| *node == target);
        let told = figures.iter().find(|figure| figure.target == target);
        let nearest = with_cpus().min_by_key(|node| distance(*node, target));
        itself.or(told.map(|figure| figure.initiator)).or(nearest)
    };
    (0..nodes.len() as u32).map(NodeId).map(nearest).collect()
}
