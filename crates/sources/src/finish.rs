//! What is left to do when all sources of a machine are read.

use std::collections::BTreeSet;

use nearfar_machine::{
    CpuId, CpuSet, LineDelay, LineTransfer, Machine, Neighbourhood, Timing, Warning,
};

use crate::warnings::implausible_distances;

/// The machine with what follows from several of its parts.
pub(crate) fn finish(machine: Machine) -> Machine {
    transfers_by_class(implausible_distances(machine))
}

/// Makes classes of what lines took between CPUs, now that it is known what the CPUs share.
fn transfers_by_class(mut machine: Machine) -> Machine {
    let Some(mut timing) = machine.timing.take() else {
        return machine;
    };
    let between_cpus = std::mem::take(&mut timing.between_cpus);
    if !between_cpus.is_empty() {
        let (transfer, message) = match timing.transfer {
            Some(transfer) => (
                Some(transfer),
                Some("another source has line transfers by class: those of single CPUs were left out".to_owned()),
            ),
            None => {
                let (transfer, message) = classes(&machine, &between_cpus);
                let source = "transfer: core-to-core-latency, medians by class";
                let source = transfer.as_ref().map(|_| source.to_owned());
                timing.sources.extend(source);
                (transfer, message)
            }
        };
        timing.transfer = transfer;
        let warning = message.map(|it| Warning::new(machine.origin.place.clone(), it));
        machine.warnings.extend(warning);
    }
    let nothing = Timing {
        sources: timing.sources.clone(),
        ..Timing::default()
    };
    machine.timing = (timing != nothing).then_some(timing);
    machine
}

/// The classes, and what is to be said about them.
fn classes(
    machine: &Machine,
    between_cpus: &[(CpuId, CpuId, u32)],
) -> (Option<LineDelay>, Option<String>) {
    let cpus: BTreeSet<CpuId> = between_cpus.iter().flat_map(|it| [it.0, it.1]).collect();
    let nodes = machine.nodes.iter();
    let placed = nodes.fold(CpuSet::new(), |all, node| all.union(node.known_cpus()));
    if placed.is_empty() {
        let message = "line transfers between CPUs are unknown: which CPUs share a cache and a node is needed for them; add lscpu -e or \
                       numactl -H";
        return (None, Some(message.to_owned()));
    }
    if !cpus.iter().copied().eq(placed.iter()) {
        let message = format!(
            "line transfers between CPUs are unknown: the table has {} CPUs, and the nodes have CPUs {placed}",
            cpus.len()
        );
        return (None, Some(message));
    }
    let neighbourhood = Neighbourhood::of(machine);
    let line_transfer = |&(a, b, ps): &(CpuId, CpuId, u32)| {
        let (from, to) = (machine.node_of(a)?, machine.node_of(b)?);
        Some(LineTransfer {
            nearness: neighbourhood.nearness(a, b),
            distance: machine.distance(from, to),
            ns: f64::from(ps) / 1000.0,
        })
    };
    let all = between_cpus.iter().filter_map(line_transfer);
    let transfer = LineDelay::of_transfers(all, machine);
    let message = match &transfer {
        None => Some(
            "line transfers between CPUs are unknown: the table has no pair within a node, or none between nodes",
        ),
        Some(_) if machine.caches.is_empty() => Some(
            "which CPUs share a core or a cache is unknown: the line transfers of all pairs of a node are one class; add lscpu -e",
        ),
        Some(_) => None,
    };
    (transfer, message.map(str::to_owned))
}
