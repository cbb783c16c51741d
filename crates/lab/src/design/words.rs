//! Words for the guest kernel's command line that make it like the machine described.

use nearfar_machine::{CpuSet, IoPolicy, Known, Machine};

use super::processors::VirtualCpu;

/// What the description says that a kernel takes as a parameter.
pub(super) fn words(machine: &Machine, cpus: &[VirtualCpu]) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(machine.settings.numa_balancing.get().map(|&mode| {
        let word = if mode == 0 { "disable" } else { "enable" };
        format!("numa_balancing={word}")
    }));
    // "numa" is the kernel's own choice.
    let mut policies = machine
        .nvme
        .get()
        .into_iter()
        .flatten()
        .filter_map(|subsystem| subsystem.iopolicy.get());
    if let Some(policy) = policies
        .next()
        .filter(|&policy| *policy != IoPolicy::Numa && policies.all(|other| other == policy))
    {
        words.push(format!("nvme_core.iopolicy={policy}"));
    }
    let states = &machine.cpu_states;
    for (word, set) in [
        ("isolcpus", &states.isolated),
        ("nohz_full", &states.nohz_full),
    ] {
        let set = renumbered(set, cpus);
        if !set.is_empty() {
            words.push(format!("{word}={set}"));
        }
    }
    words
}

fn renumbered(set: &Known<CpuSet>, cpus: &[VirtualCpu]) -> CpuSet {
    let Some(set) = set.get() else {
        return CpuSet::new();
    };
    let members = (0..)
        .zip(cpus)
        .filter(|(_, cpu)| set.contains(cpu.described));
    members
        .map(|(number, _)| nearfar_machine::CpuId(number))
        .collect()
}
