//! The machine the tests run on.

use nearfar_machine::{Cpu, CpuId, CpuSet, Machine, Node, NodeId, Origin, SourceKind};

/// This system as one node with the CPUs the test may use.
pub fn this_system() -> Machine {
    let mut machine = Machine::empty(
        Origin::new(SourceKind::Live, "this system"),
        "not read by this test",
    );
    let affinity =
        rustix::thread::sched_getaffinity(None).expect("a thread may ask for its own affinity");
    let cpus: CpuSet = (0..1024)
        .filter(|&cpu| affinity.is_set(cpu))
        .map(|cpu| CpuId(cpu as u32))
        .collect();
    machine.cpus = cpus
        .iter()
        .map(|cpu| Cpu::new(cpu, Some(NodeId(0))))
        .collect();
    machine.cpu_states.online = cpus.clone();
    machine.nodes.push(Node::new(NodeId(0), cpus));
    machine
}
