//! What ACPI's HMAT tells the guest of the speed of memory.
//!
//! QEMU takes a latency or bandwidth from each node with CPUs to each node with memory, compresses a kind's figures into 16
//! bits times a common base, and wants every node's initiator named (`-numa hmat-lb` in docs and hw/core/numa.c).

use nearfar_machine::{Machine, NodeId};

use super::board::Board;
use super::hardware::{GuestNode, Measured, Performance};
use super::numbers::Numbers;

/// The figures of all nodes that have some.
pub(super) fn figures(
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
        let memory = nodes
            .get(target.0 as usize)
            .is_some_and(|node| node.bytes > 0);
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
        let initiators = access
            .initiators
            .iter()
            .filter_map(|node| numbers.guest(node));
        for initiator in initiators.filter(|node| {
            nodes
                .get(node.0 as usize)
                .is_some_and(|node| !node.cpus.is_empty())
        }) {
            let known = values
                .iter()
                .filter_map(|&(what, value)| Some((what, value.filter(|&value| value > 0)?)));
            figures.extend(known.map(|(what, value)| Performance {
                initiator,
                target,
                what,
                value,
            }));
        }
    }
    let all = figures.len();
    let fits = |what| {
        compressible(
            figures
                .iter()
                .filter(|figure| figure.what == what)
                .map(|figure| figure.value),
        )
    };
    let kinds: Vec<Measured> = figures
        .iter()
        .map(|figure| figure.what)
        .filter(|&what| fits(what))
        .collect();
    figures.retain(|figure| kinds.contains(&figure.what));
    if figures.len() < all {
        notes.push(
            "some latencies or bandwidths of memory are too far apart for QEMU and are left out"
                .to_owned(),
        );
    }
    if machine
        .nodes
        .iter()
        .any(|node| !node.memory_side_caches.is_empty())
    {
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
        (0..)
            .zip(nodes)
            .filter(|(_, node)| !node.cpus.is_empty())
            .map(|(number, _)| number)
    };
    let distance = |from: u32, to: u32| {
        distances
            .get(from as usize)
            .and_then(|row| row.get(to as usize))
            .copied()
    };
    let nearest = |target: u32| {
        let told = figures
            .iter()
            .find(|figure| figure.target == NodeId(target))
            .map(|figure| figure.initiator.0);
        with_cpus()
            .find(|&node| node == target)
            .or(told)
            .or(with_cpus().min_by_key(|&node| distance(node, target)))
    };
    (0..nodes.len() as u32)
        .map(|target| nearest(target).map(NodeId))
        .collect()
}
