//! Taking CPUs away from a machine, and giving those left new numbers wherever one is named.

use std::collections::BTreeMap;

use nearfar_machine::{Cpu, CpuId, CpuSet, Known, Machine, NodeId};

use crate::design::fakes::listed;

/// Leaves each node at most so many CPUs.
pub(super) fn cut(machine: &mut Machine, most: usize) {
    let kept = Kept::of(machine, most);
    if kept.numbers.len() == machine.cpus.len() {
        return;
    }
    cpus(machine, &kept);
    for node in &mut machine.nodes {
        node.cpus = node.cpus.as_ref().map(|cpus| kept.clipped(cpus));
    }
    let states = &mut machine.cpu_states;
    states.online = kept.clipped(&states.online);
    for set in [
        &mut states.possible,
        &mut states.isolated,
        &mut states.nohz_full,
        &mut states.managed_irq,
        &mut states.allowed,
    ] {
        if let Known::Yes(set) = set {
            *set = kept.clipped(set);
        }
    }
    for cache in &mut machine.caches {
        cache.cpus = kept.clipped(&cache.cpus);
    }
    machine.caches.retain(|cache| !cache.cpus.is_empty());
    for interrupt in listed(&mut machine.interrupts) {
        kept.fold(&mut interrupt.affinity);
        kept.fold(&mut interrupt.effective);
    }
    for network in listed(&mut machine.networks) {
        network
            .transmit
            .iter_mut()
            .for_each(|queue| kept.fold(&mut queue.xps));
        network
            .receive
            .iter_mut()
            .for_each(|queue| kept.fold(&mut queue.rps));
    }
}

/// Which CPUs are left.
struct Kept {
    /// New numbers by the old ones.
    numbers: BTreeMap<CpuId, CpuId>,
    /// For each CPU that is gone: one of its node that is left, by its old number.
    instead: BTreeMap<CpuId, CpuId>,
}

impl Kept {
    fn of(machine: &Machine, most: usize) -> Self {
        let mut by_node: BTreeMap<Option<NodeId>, Vec<&Cpu>> = BTreeMap::new();
        for cpu in &machine.cpus {
            by_node.entry(cpu.node).or_default().push(cpu);
        }
        let mut left = CpuSet::new();
        let mut instead = BTreeMap::new();
        for mut cpus in by_node.into_values() {
            // Those that are online come first: a node does not lose its CPUs because the lowest are off.
            cpus.sort_by_key(|cpu| !cpu.is_online());
            let stay = cpus.len().min(most);
            left.extend(cpus[..stay].iter().map(|cpu| cpu.id));
            instead.extend(
                cpus.iter()
                    .enumerate()
                    .map(|(at, cpu)| (cpu.id, cpus[at % stay].id)),
            );
        }
        Self {
            numbers: left.iter().zip((0..).map(CpuId)).collect(),
            instead,
        }
    }

    fn clipped(&self, set: &CpuSet) -> CpuSet {
        set.iter()
            .filter_map(|cpu| self.numbers.get(&cpu).copied())
            .collect()
    }

    /// Clips an affinity; one of which nothing is left moves to CPUs of the same nodes.
    fn fold(&self, affinity: &mut Known<CpuSet>) {
        let Known::Yes(set) = affinity else { return };
        let clipped = self.clipped(set);
        *set = if clipped.is_empty() {
            self.clipped(
                &set.iter()
                    .filter_map(|cpu| self.instead.get(&cpu).copied())
                    .collect(),
            )
        } else {
            clipped
        };
    }
}

fn cpus(machine: &mut Machine, kept: &Kept) {
    machine
        .cpus
        .retain(|cpu| kept.numbers.contains_key(&cpu.id));
    // A group is named by its lowest CPU, which may be gone: by the lowest that is left, then.
    type Leader = fn(&mut Cpu) -> &mut Option<CpuId>;
    let leaders: [Leader; 4] = [
        |cpu| &mut cpu.core,
        |cpu| &mut cpu.cluster,
        |cpu| &mut cpu.die,
        |cpu| &mut cpu.package_leader,
    ];
    for leader in leaders {
        let mut lowest: BTreeMap<CpuId, CpuId> = BTreeMap::new();
        for cpu in &mut machine.cpus {
            let id = cpu.id;
            if let Some(group) = leader(cpu) {
                *group = *lowest.entry(*group).or_insert(id);
            }
        }
        for cpu in &mut machine.cpus {
            let group = leader(cpu);
            *group = group.and_then(|group| kept.numbers.get(&group).copied());
        }
    }
    for cpu in &mut machine.cpus {
        cpu.id = kept.numbers.get(&cpu.id).copied().unwrap_or(cpu.id);
    }
}
