//! What keeps a task's CPU time and memory on the nodes where they are.

use nearfar_machine::{Cpuset, Known, NodeSet, NumaBalancing, Task};
use serde::Serialize;

use super::Nodes;

/// One of the things that keep a task where it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    pub kind: HolderKind,
    /// For people: `CPUs 0-3`, `memory of node 1`, `bind:1`.
    pub detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HolderKind {
    /// sched_setaffinity(2), of the main thread; others may have their own.
    Affinity,
    /// The cpuset of its group, or of one above it, has these CPUs.
    CpusetCpus,
    /// A cpuset has the nodes of its memory.
    CpusetMems,
    /// Of most of its memory (set_mempolicy(2), mbind(2)); known where its memory was counted.
    Policy,
    /// A tenth of its memory and more is pinned (`VmPin`), which the kernel cannot move.
    Pinned,
    /// The node on which NUMA balancing keeps it.
    PreferredNode,
}

pub(super) fn of(nodes: &Nodes<'_>, task: &Task) -> Vec<Holder> {
    let all = [
        cpus(nodes, task),
        mems(nodes, task),
        policy(task),
        pinned(task),
        preferred(nodes, task),
    ];
    all.into_iter().flatten().collect()
}

/// The nodes that a task's CPUs belong to, where those are not all nodes with CPUs.
pub(super) fn confined_to(nodes: &Nodes<'_>, task: &Task) -> Option<NodeSet> {
    let machine = nodes.machine;
    let allowed = task.allowed_cpus.get()?;
    let allowed = allowed.intersection(&machine.cpu_states.online);
    if machine.cpu_nodes_unknown_reason().is_some() {
        return None;
    }
    let with_cpus = machine
        .online_nodes()
        .filter(|node| node.known_cpus().intersects(&machine.cpu_states.online));
    let (on, off): (Vec<_>, Vec<_>) =
        with_cpus.partition(|node| node.known_cpus().intersects(&allowed));
    (!on.is_empty() && !off.is_empty()).then(|| on.into_iter().map(|node| node.id).collect())
}

fn cpus(nodes: &Nodes<'_>, task: &Task) -> Option<Holder> {
    confined_to(nodes, task)?;
    let allowed = task.allowed_cpus.get()?;
    let online = &nodes.machine.cpu_states.online;
    let has_these = |cpuset: &Cpuset| {
        let cpus = cpuset.cpus.get();
        cpus.is_some_and(|cpus| cpus.intersection(online) == allowed.intersection(online))
    };
    let kind = match cpuset(nodes, task).is_some_and(has_these) {
        true => HolderKind::CpusetCpus,
        false => HolderKind::Affinity,
    };
    Some(Holder {
        detail: match kind {
            HolderKind::Affinity => format!("CPUs {allowed} of the main thread"),
            _ => format!("CPUs {allowed}"),
        },
        kind,
    })
}

/// The configured cpuset that is nearest above a task.
pub(super) fn cpuset<'a>(nodes: &Nodes<'a>, task: &Task) -> Option<&'a Cpuset> {
    let group = task.group.get()?;
    let cpusets = nodes.machine.cpusets.get()?;
    let is_above = |cpuset: &&Cpuset| {
        let rest = group.strip_prefix(cpuset.path.trim_end_matches('/'));
        cpuset.configured && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    cpusets
        .iter()
        .filter(is_above)
        .max_by_key(|cpuset| cpuset.path.len())
}

fn mems(nodes: &Nodes<'_>, task: &Task) -> Option<Holder> {
    let allowed = task.allowed_nodes.get()?;
    let mut with_memory = nodes
        .machine
        .online_nodes()
        .filter(|node| node.has_memory() != Some(false));
    with_memory
        .any(|node| !allowed.contains(node.id))
        .then(|| Holder {
            kind: HolderKind::CpusetMems,
            detail: match allowed.len() {
                1 => format!("memory of node {allowed}"),
                _ => format!("memory of nodes {allowed}"),
            },
        })
}

fn policy(task: &Task) -> Option<Holder> {
    let policies = task.policies.get()?;
    let all: u64 = policies
        .iter()
        .fold(0, |sum, it| sum.saturating_add(it.bytes));
    let largest = policies.iter().max_by_key(|it| it.bytes)?;
    (largest.policy != "default" && largest.bytes > all / 2).then(|| Holder {
        kind: HolderKind::Policy,
        detail: largest.policy.clone(),
    })
}

fn pinned(task: &Task) -> Option<Holder> {
    const PART: u64 = 10;
    let resident = task.resident.get()?;
    (resident.pinned > 0 && resident.pinned >= resident.total() / PART).then(|| Holder {
        kind: HolderKind::Pinned,
        detail: format!("{} MiB pinned", resident.pinned >> 20),
    })
}

fn preferred(nodes: &Nodes<'_>, task: &Task) -> Option<Holder> {
    let mode = NumaBalancing(*nodes.machine.settings.numa_balancing.get()?);
    match task.preferred_node {
        Known::Yes(Some(node)) if mode.is_normal() => Some(Holder {
            kind: HolderKind::PreferredNode,
            detail: format!("NUMA balancing prefers node {node}"),
        }),
        _ => None,
    }
}
