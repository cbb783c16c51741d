//! Which CPUs a fake node has: all of its real node's, or its own part of them.

use std::collections::BTreeMap;

use nearfar_machine::{CpuId, CpuSet, Machine, NodeId};

use super::cut::Part;

/// The CPUs of every fake node, by number.
///
/// CPUs of a real node that gets no fake (it has no memory) are moved to node 0's real node, as
/// `numa_emu_update_cpu_to_node` in mm/numa_emulation.c does it.
pub(super) fn shares(machine: &Machine, parts: &[Part], split: bool) -> Vec<CpuSet> {
    let mut whole: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    for node in &machine.nodes {
        let home = parts
            .iter()
            .find(|part| part.real == node.id)
            .or(parts.first())
            .map(|part| part.real);
        if let Some(home) = home {
            let cpus = whole.entry(home).or_default();
            *cpus = cpus.union(node.known_cpus());
        }
    }
    let of = |real: NodeId| whole.get(&real).cloned().unwrap_or_default();
    if !split {
        return parts.iter().map(|part| of(part.real)).collect();
    }
    let cores: BTreeMap<NodeId, Vec<CpuSet>> = whole
        .iter()
        .map(|(&real, cpus)| (real, whole_cores(machine, cpus)))
        .collect();
    let mut taken: BTreeMap<NodeId, usize> = BTreeMap::new();
    let share = |part: &Part| {
        let fakes = parts
            .iter()
            .filter(|other| other.real == part.real)
            .count()
            .max(1);
        let nth = taken.entry(part.real).or_default();
        let cores = cores.get(&part.real).map_or(&[][..], Vec::as_slice);
        let (from, to) = (*nth * cores.len() / fakes, (*nth + 1) * cores.len() / fakes);
        *nth += 1;
        cores[from..to]
            .iter()
            .fold(CpuSet::new(), |all, core| all.union(core))
    };
    parts.iter().map(share).collect()
}

/// The CPUs of a node core by core. A CPU whose core is unknown counts as a core of its own.
fn whole_cores(machine: &Machine, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut cores: BTreeMap<CpuId, CpuSet> = BTreeMap::new();
    for cpu in cpus.iter() {
        let leader = machine.cpu(cpu).and_then(|cpu| cpu.core).unwrap_or(cpu);
        cores.entry(leader).or_default().insert(cpu);
    }
    cores.into_values().collect()
}
