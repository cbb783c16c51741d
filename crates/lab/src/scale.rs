//! Scaling a machine down to what a laptop can emulate: so many CPUs and so much memory on each node.
//!
//! ```text
//! node 0  0-23   63 GiB  ──►  0-1  512 MiB      --scale cpus=2,memory=512M
//! node 1  24-47  64 GiB  ──►  2-3  512 MiB      nodes, distances, devices and their nodes stay
//! node 2         32 GiB  ──►       512 MiB      a node without CPUs or memory stays without
//! ```

use std::collections::BTreeMap;

use nearfar_machine::{Cpu, CpuId, CpuSet, Known, Machine, Memory, NodeId, NodeLimits};
use nearfar_sources::fake;

use crate::design::fakes::{self, listed};
use crate::error::LabError;

/// The machine with each node cut down. A node that has more CPUs than are asked for keeps those with the lowest numbers;
/// CPUs are then numbered without gaps in the order they had, and sets and affinities follow. Fake nodes are laid again over
/// what is left. Tasks and cpusets are left out.
///
/// # Errors
/// When the fake nodes do not fit the smaller machine.
pub fn scaled(machine: &Machine, limits: NodeLimits) -> Result<Machine, LabError> {
    if limits.is_empty() {
        return Ok(machine.clone());
    }
    let (mut scaled, spec) = fakes::real(machine);
    let reason = "the machine was scaled down";
    scaled.tasks = Known::no(reason);
    scaled.cpusets = Known::no(reason);
    if let Some(bytes) = limits.memory_bytes {
        let nodes = scaled.nodes.iter_mut();
        for node in nodes.filter(|node| node.has_memory() != Some(false)) {
            node.memory = Known::Yes(Memory::of(bytes));
        }
    }
    if let Some(most) = limits.cpus {
        cut(&mut scaled, most as usize);
    }
    match spec {
        Some(spec) => {
            fake::lay(scaled, &spec).map_err(|problem| LabError::Design(problem.to_string()))
        }
        None => Ok(scaled),
    }
}

/// Leaves each node at most so many CPUs.
fn cut(machine: &mut Machine, most: usize) {
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
        for queue in &mut network.transmit {
            kept.fold(&mut queue.xps);
        }
        for queue in &mut network.receive {
            kept.fold(&mut queue.rps);
        }
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
            let all = cpus.iter().enumerate();
            instead.extend(all.map(|(at, cpu)| (cpu.id, cpus[at % stay].id)));
        }
        Self {
            numbers: left.iter().zip((0..).map(CpuId)).collect(),
            instead,
        }
    }

    fn clipped(&self, set: &CpuSet) -> CpuSet {
        let left = set.iter().filter_map(|cpu| self.numbers.get(&cpu));
        left.copied().collect()
    }

    /// Clips an affinity; one of which nothing is left moves to CPUs of the same nodes.
    fn fold(&self, affinity: &mut Known<CpuSet>) {
        let Known::Yes(set) = affinity else { return };
        let instead = |cpu| self.instead.get(&cpu).copied();
        let mut clipped = self.clipped(set);
        if clipped.is_empty() {
            clipped = self.clipped(&set.iter().filter_map(instead).collect());
        }
        *set = clipped;
    }
}

fn cpus(machine: &mut Machine, kept: &Kept) {
    let cpus = &mut machine.cpus;
    cpus.retain(|cpu| kept.numbers.contains_key(&cpu.id));
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
