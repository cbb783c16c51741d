//! The invariants of a [`Machine`]: what holds for every source, however odd its input.

use crate::machine::Machine;
use crate::set::CpuSet;
use crate::timing::Latency;

/// Each broken invariant in words.
pub(crate) fn violations(machine: &Machine) -> Vec<String> {
    let mut found = Vec::new();
    ascending(
        "nodes",
        machine.nodes.iter().map(|node| node.id),
        &mut found,
    );
    ascending("cpus", machine.cpus.iter().map(|cpu| cpu.id), &mut found);
    ascending(
        "pci",
        machine
            .pci
            .get()
            .into_iter()
            .flatten()
            .map(|device| device.address),
        &mut found,
    );
    ascending(
        "host_bridges",
        machine
            .host_bridges
            .get()
            .into_iter()
            .flatten()
            .map(|bridge| bridge.root),
        &mut found,
    );
    ascending(
        "interrupts",
        machine
            .interrupts
            .get()
            .into_iter()
            .flatten()
            .map(|interrupt| interrupt.irq),
        &mut found,
    );
    ascending(
        "networks",
        machine
            .networks
            .get()
            .into_iter()
            .flatten()
            .map(|network| &network.name),
        &mut found,
    );
    cpus(machine, &mut found);
    nodes(machine, &mut found);
    let latencies = machine.timing.iter().flat_map(|timing| &timing.latencies);
    ascending(
        "latencies",
        latencies.clone().map(Latency::pair),
        &mut found,
    );
    let mut of_nodes = latencies.flat_map(|it| [it.cpu_node, it.memory_node]);
    if let Some(stray) = of_nodes.find(|node| machine.node(*node).is_none()) {
        found.push(format!(
            "latencies name node {stray}, which is not in the list of nodes"
        ));
    }
    found
}

fn ascending<T: Ord>(what: &str, keys: impl Iterator<Item = T>, found: &mut Vec<String>) {
    if !keys.is_sorted_by(|a, b| a < b) {
        found.push(format!("{what} are not in ascending order, each once"));
    }
}

fn cpus(machine: &Machine, found: &mut Vec<String>) {
    let listed: CpuSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let online: CpuSet = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.is_online())
        .map(|cpu| cpu.id)
        .collect();
    if online != machine.cpu_states.online {
        found.push(format!(
            "CPUs marked online are {online}, the set of online CPUs is {}",
            machine.cpu_states.online
        ));
    }
    for cpu in &machine.cpus {
        let leaders = [
            ("core", cpu.core),
            ("cluster", cpu.cluster),
            ("die", cpu.die),
            ("package", cpu.package_leader),
        ];
        for (what, leader) in leaders {
            if let Some(leader) =
                leader.filter(|&leader| !listed.contains(leader) || leader > cpu.id)
            {
                found.push(format!(
                    "CPU {} has {what} leader {leader}, which is not a lower CPU",
                    cpu.id
                ));
            }
        }
        if let Some(node) = cpu.node
            && !machine
                .node(node)
                .is_some_and(|node| node.known_cpus().contains(cpu.id))
        {
            found.push(format!(
                "CPU {} says node {node}, which does not list it",
                cpu.id
            ));
        }
    }
    for cache in &machine.caches {
        if cache.cpus.is_empty() || !cache.cpus.is_subset(&listed) {
            found.push(format!(
                "a level {} cache has CPUs {:?}, some of them unknown",
                cache.level, cache.cpus
            ));
        }
    }
}

fn nodes(machine: &Machine, found: &mut Vec<String>) {
    for node in &machine.nodes {
        if let Some(cpu) = node
            .known_cpus()
            .iter()
            .find(|&cpu| machine.cpu(cpu).is_none_or(|cpu| cpu.node.is_none()))
        {
            found.push(format!(
                "node {} lists CPU {cpu}, which is unknown or says no node",
                node.id
            ));
        }
    }
    for (what, table) in [
        ("distances", &machine.distances),
        ("firmware_distances", &machine.firmware_distances),
    ] {
        let stray = table.get().and_then(|table| {
            table
                .nodes()
                .iter()
                .find(|&&node| machine.node(node).is_none())
        });
        if let Some(stray) = stray {
            found.push(format!(
                "{what} name node {stray}, which is not in the list of nodes"
            ));
        }
    }
}
