//! Tasks whose memory is elsewhere, cpusets that keep it there, and the kernel's own balancing.

use nearfar_machine::{Cpuset, Known, MAX_NUMBER, NodeBytes, NodeId, NodeSet, NumaBalancing, Task};

use super::ledger::Ledger;
use super::site::{Site, cpus, nodes};
use super::{AuditOptions, Finding, Severity};
use crate::change::Change;
use crate::tasks::is_even;

const FAR: &str = "task-memory-far";
const DISJOINT: &str = "cpuset-disjoint";
const BALANCING: &str = "numa-balancing";

pub(super) fn check(site: &Site<'_>, options: &AuditOptions, ledger: &mut Ledger) {
    if let Some(tasks) = ledger.need(&site.machine.tasks, &[FAR]) {
        for task in tasks.iter().filter(|_| site.has_several_nodes()) {
            memory(site, options, task, ledger);
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
fn named(task: &Task) -> String {
    format!("task {} ({})", task.pid, task.name)
}

fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = UNITS.iter().find(|(_, shift)| bytes >> shift > 0);
    fits.map_or_else(
        || format!("{bytes} B"),
        |(unit, shift)| format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
    )
}

fn total(memory: &[NodeBytes]) -> u64 {
    memory
        .iter()
        .fold(0, |sum, on| sum.saturating_add(on.bytes))
}

/// "N0=1.0 GiB N1=6.0 GiB".
fn shares(task: &Task) -> String {
    let memory = task.memory.get().into_iter().flatten();
    let shares: Vec<String> = memory
        .map(|on| format!("N{}={}", on.node, size(on.bytes)))
        .collect();
    shares.join(" ")
}

/// Where its memory by node was read.
fn memory_file(task: &Task) -> String {
    match &task.sample {
        None => format!("/proc/{}/numa_maps", task.pid),
        Some(sample) => format!(
            "move_pages({}), {} pages, +-{}",
            task.pid,
            sample.pages,
            size(sample.error_bytes)
        ),
    }
}

/// Whether most of its memory is spread over nodes on purpose. Where it was sampled its policies are unknown, and memory that is
/// spread evenly passes for interleaved.
fn is_interleaved(task: &Task) -> bool {
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

/// The nodes a task runs on: those it is confined to, or the one it ran on last. The flag says confined.
fn runs_on(site: &Site<'_>, task: &Task) -> Option<(NodeSet, bool)> {
    let allowed = task
        .allowed_cpus
        .get()
        .map(|cpus| site.nodes_of(&cpus.intersection(&site.machine.cpu_states.online)));
    if let Some(nodes) =
        allowed.filter(|nodes| !nodes.is_empty() && nodes.len() < site.cpu_nodes.len())
    {
        return Some((nodes, true));
    }
    let cpu = *task.last_cpu.get()?;
    let nodes: NodeSet = site
        .machine
        .online_nodes()
        .filter(|node| node.cpus.contains(cpu))
        .map(|node| node.id)
        .collect();
    (!nodes.is_empty()).then_some((nodes, false))
}

fn memory(site: &Site<'_>, options: &AuditOptions, task: &Task, ledger: &mut Ledger) {
    let Some(memory) = task.memory.get() else {
        return ledger.skip_thing(
            FAR,
            || named(task),
            task.memory.unknown_reason().unwrap_or_default(),
        );
    };
    let all = total(memory);
    if all < options.task_bytes.max(1) || is_interleaved(task) {
        return;
    }
    let Some((nodes, confined)) = runs_on(site, task) else {
        return ledger.skip_thing(FAR, || named(task), "the CPUs it runs on are unknown");
    };
    let homes: NodeSet = nodes.iter().map(|node| site.memory_home(node)).collect();
    let away: Vec<&NodeBytes> = memory
        .iter()
        .filter(|on| !homes.contains(on.node))
        .collect();
    let far = away
        .iter()
        .fold(0u64, |sum, on| sum.saturating_add(on.bytes));
    let Some(most) = away
        .iter()
        .max_by_key(|on| on.bytes)
        .filter(|_| far > all / 2)
    else {
        return;
    };
    let Some(runs) = nodes.first() else { return };
    ledger.add(memory_finding(
        site,
        task,
        Elsewhere {
            runs,
            nodes,
            confined,
            far,
            all,
            most: most.node,
            away: away
                .iter()
                .map(|on| on.node)
                .filter(|node| node.0 <= MAX_NUMBER)
                .collect(),
        },
    ));
}

/// A task and where most of its memory is.
struct Elsewhere {
    runs: NodeId,
    nodes: NodeSet,
    confined: bool,
    far: u64,
    all: u64,
    most: NodeId,
    /// Every node with memory that none of its CPUs is near.
    away: NodeSet,
}

fn memory_finding(site: &Site<'_>, task: &Task, at: Elsewhere) -> Finding {
    let verb = if at.confined {
        "may only run on"
    } else {
        "last ran on"
    };
    let message = format!(
        "{} of its {} are on other nodes than it runs on, most on node {}. It {verb} {}.",
        size(at.far),
        size(at.all),
        at.most,
        nodes(&at.nodes)
    );
    let advice = if at.confined {
        format!(
            "migratepages {} {} {} brings the memory near; or let it run on node {}.",
            task.pid, at.most, at.runs, at.most
        )
    } else {
        format!(
            "Confine it to node {}, or let NUMA balancing move the memory; what is pinned cannot move.",
            at.most
        )
    };
    let finding = Finding::new(FAR, named(task), message)
        .severity(if at.confined {
            Severity::Warning
        } else {
            Severity::Notice
        })
        .evidence(memory_file(task), shares(task))
        .cost(
            site.machine.distance(at.runs, at.most),
            site.machine.distance(at.runs, site.memory_home(at.runs)),
        )
        .advice(advice);
    // A task that may run on several nodes could leave the one its memory goes to.
    let finding = if at.confined && at.nodes.len() == 1 {
        finding.fix(Change::TaskMemory {
            pid: task.pid,
            from: at.away,
            to: site.memory_home(at.runs),
            shared: false,
        })
    } else {
        finding
    };
    match (at.confined, &task.allowed_cpus, &task.last_cpu) {
        (true, Known::Yes(cpus), _) => finding.evidence(
            format!("/proc/{}/status", task.pid),
            format!("Cpus_allowed_list {cpus}"),
        ),
        (_, _, Known::Yes(cpu)) => finding.evidence(
            format!("/proc/{}/stat", task.pid),
            format!("last on CPU {cpu}"),
        ),
        _ => finding,
    }
}

fn disjoint(site: &Site<'_>, cpuset: &Cpuset, ledger: &mut Ledger) {
    let (Known::Yes(allowed), Known::Yes(memory)) = (&cpuset.cpus, &cpuset.nodes) else {
        let because = cpuset
            .cpus
            .unknown_reason()
            .or(cpuset.nodes.unknown_reason())
            .unwrap_or_default();
        return ledger.skip_thing(DISJOINT, || format!("cpuset {}", cpuset.path), because);
    };
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
    let file = |name: &str| format!("/sys/fs/cgroup{}/{name}", cpuset.path.trim_end_matches('/'));
    let advice = format!(
        "Let its memory come from {} (AllowedMemoryNodes= of the unit), or move its CPUs.",
        nodes(&homes)
    );
    ledger.add(
        Finding::new(DISJOINT, format!("cpuset {}", cpuset.path), message)
            .evidence(file("cpuset.cpus.effective"), allowed.to_string())
            .evidence(file("cpuset.mems.effective"), memory.to_string())
            .cost(now, after)
            .advice(advice),
    );
}

/// A task and the bytes that count.
type Heaviest<'a> = Vec<(&'a Task, u64)>;

fn balancing(site: &Site<'_>, options: &AuditOptions, ledger: &mut Ledger) {
    let Some(&value) = ledger.need(&site.machine.settings.numa_balancing, &[]) else {
        let because = site
            .machine
            .settings
            .numa_balancing
            .unknown_reason()
            .unwrap_or_default();
        return ledger.skip(BALANCING, because);
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
        .evidence("/proc/sys/kernel/numa_balancing", value.to_string());
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
