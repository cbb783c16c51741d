//! Where each CPU is, as the allocator asks for it.

use nearfar_machine::{Machine, NodeId};
use nearfar_tags::{Cpu, Topology};

/// The distance of a pair of nodes that has none: the largest of ACPI's SLIT, which means unreachable.
const UNREACHABLE: u32 = 255;

/// The machine's topology, with numbers for all possible CPUs.
///
/// CPUs whose last-level cache is unknown share one with their node; without clusters a core is a group of its own.
pub(super) fn topology(machine: &Machine) -> Topology {
    let nodes: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    let mut cpus = vec![None; machine.mask_width() as usize];
    for cpu in machine.cpus.iter().filter(|cpu| cpu.is_online()) {
        let node = cpu
            .node
            .and_then(|node| nodes.iter().position(|&other| other == node));
        let (core, node) = (cpu.core.unwrap_or(cpu.id), node.unwrap_or(0));
        // By the lowest CPU that shares it.
        let cache = machine
            .last_level_cache(cpu.id)
            .and_then(|it| it.cpus.first());
        let place = Cpu::new(core.0, node as u32)
            .with_core_group(cpu.cluster.unwrap_or(core).0)
            .with_llc(cache.map_or(node as u32, |first| first.0));
        cpus[cpu.id.0 as usize] = Some(place);
    }
    let distance = |from, to| machine.distance(from, to).map_or(UNREACHABLE, |it| it.0);
    let row = |&from: &NodeId| nodes.iter().map(|&to| distance(from, to)).collect();
    Topology::new(cpus, nodes.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::groups::tests::machine;

    #[test]
    fn a_machine_without_caches_and_clusters_has_those_of_nodes_and_cores() {
        let topology = topology(&machine());
        assert_eq!(topology.cpus[5], Some(Cpu::new(4, 1)));
        assert_eq!(topology.distances[2], [25, 22, 10, 16]);
    }
}
