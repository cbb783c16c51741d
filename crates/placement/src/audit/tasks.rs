//! Tasks whose memory is elsewhere, cpusets that keep it there, and the kernel's own balancing.

use nearfar_change::Change;
use nearfar_change::size;
use nearfar_machine::{Cpuset, Known, NodeBytes, NodeId, NodeSet, NumaBalancing, Task};

use super::evidence::Fact;
use super::ledger::Ledger;
use super::site::{Site, cpus, nodes};
use super::task_memory::{self, FAR};
use super::{AuditOptions, Finding};
use crate::tasks::{Nodes, is_even};

const DISJOINT: &str = "cpuset-disjoint";
const BALANCING: &str = "numa-balancing";

pub(super) fn check(site: &Site<'_>, options: &AuditOptions, ledger: &mut Ledger) {
    if let Some(tasks) = ledger.need(&site.machine.tasks, &[FAR]) {
        if let Some(reason) = &site.cpu_nodes_unknown {
            ledger.skip(&[FAR], reason);
        }
        let nodes = Nodes::of(site.machine);
        for task in tasks.iter().filter(|_| site.has_several_nodes()) {
            task_memory::check(site, options, &nodes, task, ledger);
        }
    }
    if let Some(cpusets) = ledger.need(&site.machine.cpusets, &[DISJOINT]) {
        for cpuset in cpusets
            .iter()
            .filter(|cpuset| cpuset.configured && site.has_several_nodes())
        {
            disjoint(site, cpuset, ledger);
        }
    }
    balancing(site, options, ledger);
}

/// "task 4711 (redis-server)".
pub(super) fn named(task: &Task) -> String {
    format!("task {} ({})", task.pid, task.name)
}

pub(super) fn total(memory: &[NodeBytes]) -> u64 {
    memory
        .iter()
        .fold(0, |sum, on| sum.saturating_add(on.bytes))
}

/// Whether most of its memory is spread over nodes on purpose. Where it was sampled its policies are unknown, and memory that is
/// spread evenly passes for interleaved.
pub(super) fn is_interleaved(task: &Task) -> bool {
    let Some(policies) = task.policies.get() else {
        let memory = task.memory.get().map_or(&[][..], Vec::as_slice);
        return task.sample.is_some() && is_even(memory);
    };
    let sum = |wanted: fn(&str) -> bool| {
        policies
            .iter()
            .filter(|policy| wanted(&policy.policy))
            .fold(0u64, |sum, policy| sum.saturating_add(policy.bytes))
    };
    let spread = sum(|policy| policy.starts_with("interleave") || policy.starts_with("weighted"));
    spread > sum(|_| true) / 2
}

fn disjoint(site: &Site<'_>, cpuset: &Cpuset, ledger: &mut Ledger) {
    let (Known::Yes(allowed), Known::Yes(memory)) = (&cpuset.cpus, &cpuset.nodes) else {
        let reason = cpuset
            .cpus
            .unknown_reason()
            .or(cpuset.nodes.unknown_reason())
            .unwrap_or_default();
        return ledger.skip_thing(DISJOINT, || format!("cpuset {}", cpuset.path), reason);
    };
    if let Some(reason) = &site.cpu_nodes_unknown {
        return ledger.skip_thing(DISJOINT, || format!("cpuset {}", cpuset.path), reason);
    }
    let runs = site.nodes_of(allowed);
    let homes: NodeSet = runs.iter().map(|node| site.memory_home(node)).collect();
    if runs.is_empty() || memory.is_empty() || homes.intersects(memory) {
        return;
    }
    let message = format!(
        "Its {} are on {}, its memory comes from {} only: all of it is far.",
        cpus(allowed),
        nodes(&runs),
        nodes(memory)
    );
    let between = |from: NodeId| {
        memory
            .iter()
            .filter_map(move |to| site.machine.distance(from, to))
    };
    let now = runs.iter().flat_map(between).min();
    let after = runs
        .first()
        .and_then(|node| site.machine.distance(node, site.memory_home(node)));
    let advice = format!(
        "Let its memory come from {} (AllowedMemoryNodes= of the unit), or move its CPUs.",
        nodes(&homes)
    );
    let finding = Finding::new(DISJOINT, format!("cpuset {}", cpuset.path), message)
        .evidence(
            site.place(Fact::CpusetCpus(&cpuset.path)),
            allowed.to_string(),
        )
        .evidence(
            site.place(Fact::CpusetNodes(&cpuset.path)),
            memory.to_string(),
        )
        .cost(now, after)
        .advice(advice);
    // In version 1 the kernel moves the memory only where cpuset.memory_migrate is set.
    ledger.add(match cpuset.version_2 {
        Some(true) => finding.fix(Change::CpusetMemory {
            group: cpuset.path.trim_matches('/').to_owned(),
            nodes: homes,
        }),
        _ => finding,
    });
}

/// A task and the bytes that count.
type Heaviest<'a> = Vec<(&'a Task, u64)>;

fn balancing(site: &Site<'_>, options: &AuditOptions, ledger: &mut Ledger) {
    let setting = &site.machine.settings.numa_balancing;
    let Some(&value) = ledger.known(setting, &[BALANCING]) else {
        return;
    };
    let Some(tasks) = ledger.need(&site.machine.tasks, &[BALANCING]) else {
        return;
    };
    let with_memory = site
        .machine
        .online_nodes()
        .filter(|node| node.has_memory() != Some(false))
        .count();
    if with_memory < 2 {
        return ledger.not_applicable(&[BALANCING]);
    }
    let unbound: Heaviest<'_> = tasks
        .iter()
        .filter_map(|task| unbound(site, options, task))
        .collect();
    let pinned = |task: &Task| {
        task.pinned_bytes
            .get()
            .copied()
            .filter(|&bytes| bytes >= options.pinned_bytes.max(1))
    };
    let pinned: Heaviest<'_> = tasks
        .iter()
        .filter_map(|task| Some((task, pinned(task)?)))
        .collect();
    let mode = NumaBalancing(value);
    let (message, others, flipped, affected) = match (mode.is_normal(), &unbound[..], &pinned[..]) {
        (false, [_, ..], _) => (
            "Automatic NUMA balancing is off while large tasks may run on several nodes: their memory stays where it was \
             first touched.",
            &pinned,
            mode.with_normal(true),
            &unbound,
        ),
        (true, _, [_, ..]) => (
            "Automatic NUMA balancing is on while tasks hold large pinned memory: it keeps unmapping pages that it cannot move.",
            &unbound,
            mode.with_normal(false),
            &pinned,
        ),
        _ => return,
    };
    let Some((largest, bytes)) = affected.iter().max_by_key(|(_, bytes)| bytes) else {
        return;
    };
    let message = format!(
        "{message} The largest of {} is {}, {}.",
        affected.len(),
        named(largest),
        size(*bytes)
    );
    let finding = Finding::new(BALANCING, "kernel.numa_balancing", message)
        .evidence(site.place(Fact::NumaBalancing), value.to_string());
    ledger.add(if others.is_empty() {
        finding
            .fix(Change::Sysctl { name: "kernel.numa_balancing".to_owned(), value: flipped.0.to_string() })
            .advice("The setting holds for the whole system; compare the load under both.")
    } else {
        finding.advice(
            "Unbound and pinned tasks share this machine, and the setting holds for both: confine the former to a node \
             rather than change it.",
        )
    });
}

/// Tasks that one would have balanced: large, allowed on several nodes.
fn unbound<'a>(site: &Site<'_>, options: &AuditOptions, task: &'a Task) -> Option<(&'a Task, u64)> {
    let bytes = total(task.memory.get()?);
    let nodes = site.nodes_of(task.allowed_cpus.get()?);
    (bytes >= options.task_bytes.max(1) && nodes.len() > 1 && !is_interleaved(task))
        .then_some((task, bytes))
}
