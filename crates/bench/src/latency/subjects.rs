//! Which CPUs and which nodes' memory a machine offers for measuring.

use nearfar_machine::{CpuId, CpuSet, Machine, NodeId};

use super::SkippedPair;

/// Who measures, what is measured, and what cannot be.
pub(super) struct Subjects {
    /// A CPU of each node that has a usable one.
    pub(super) cpus: Vec<(NodeId, CpuId)>,
    /// Nodes with memory.
    pub(super) memory: Vec<NodeId>,
    pub(super) skipped: Vec<SkippedPair>,
}

/// Picks them; `allowed` is where this process may run.
pub(super) fn pick(machine: &Machine, allowed: &CpuSet) -> Subjects {
    let mut subjects = Subjects { cpus: Vec::new(), memory: Vec::new(), skipped: Vec::new() };
    for node in machine.online_nodes() {
        // Unknown memory is worth a try: binding to a node without memory fails and is reported then.
        if node.has_memory() != Some(false) {
            subjects.memory.push(node.id);
        }
        let online = node.cpus.intersection(&machine.cpu_states.online);
        if online.is_empty() {
            continue;
        }
        match best_cpu(machine, &online.intersection(allowed)) {
            Some(cpu) => subjects.cpus.push((node.id, cpu)),
            None => subjects.skipped.push(SkippedPair {
                cpu_node: Some(node.id),
                memory_node: None,
                because: format!("this process may not run on the node's CPUs {online}, only on {allowed}"),
            }),
        }
    }
    subjects
}

/// The CPU to measure from: not an isolated one if there is another, the first of its core, and the highest of
/// those, because interrupts gather on the low ones.
fn best_cpu(machine: &Machine, usable: &CpuSet) -> Option<CpuId> {
    let free = usable.difference(&machine.cpu_states.kept_free());
    let candidates = if free.is_empty() { usable } else { &free };
    let leads = |cpu: &CpuId| machine.cpu(*cpu).and_then(|cpu| cpu.core).is_none_or(|core| core == *cpu);
    candidates.iter().filter(leads).last().or_else(|| candidates.last())
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{Cpu, Known, Memory, Node, Origin, SourceKind};

    use super::*;

    /// Two nodes of two cores with two threads each (0-3, 4-7), and node 2 with memory only.
    fn machine() -> Machine {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        for cpu in 0..8u32 {
            let core = Some(CpuId(cpu & !1));
            machine.cpus.push(Cpu { core, ..Cpu::new(CpuId(cpu), Some(NodeId(cpu / 4))) });
        }
        machine.cpu_states.online = CpuSet::range(CpuId(0), CpuId(7));
        machine.nodes = vec![
            Node::new(NodeId(0), CpuSet::range(CpuId(0), CpuId(3))),
            Node { memory: Known::Yes(Memory::of(0)), ..Node::new(NodeId(1), CpuSet::range(CpuId(4), CpuId(7))) },
            Node::new(NodeId(2), CpuSet::new()),
        ];
        assert!(machine.check().is_empty());
        machine
    }

    #[test]
    fn the_highest_core_leader_measures() {
        let subjects = pick(&machine(), &CpuSet::range(CpuId(0), CpuId(7)));
        assert_eq!(subjects.cpus, [(NodeId(0), CpuId(2)), (NodeId(1), CpuId(6))]);
        assert_eq!(subjects.memory, [NodeId(0), NodeId(2)], "node 1 has no memory, node 2's is unknown");
    }

    #[test]
    fn isolated_cpus_measure_only_when_there_is_no_other() {
        let mut machine = machine();
        machine.cpu_states.isolated = Known::Yes(CpuSet::parse_list("2-7").unwrap());
        let subjects = pick(&machine, &CpuSet::range(CpuId(0), CpuId(7)));
        assert_eq!(subjects.cpus, [(NodeId(0), CpuId(0)), (NodeId(1), CpuId(6))]);
    }

    #[test]
    fn a_node_outside_the_cpuset_is_skipped_with_the_reason() {
        let subjects = pick(&machine(), &CpuSet::single(CpuId(1)));
        assert_eq!(subjects.cpus, [(NodeId(0), CpuId(1))]);
        assert_eq!(subjects.skipped.len(), 1);
        assert!(subjects.skipped[0].because.contains("4-7"), "{}", subjects.skipped[0].because);
    }
}
