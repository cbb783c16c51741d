//! Tasks whose memory is on other nodes than they run on. Fix and advice are those of [`crate::tasks`]; without CPU time by node, what
//! the task may run on decides.

use nearfar_change::Change;
use nearfar_change::size;
use nearfar_machine::{CpuId, Known, MAX_NUMBER, NodeBytes, NodeId, NodeSet, Task};

use super::evidence::Fact;
use super::ledger::Ledger;
use super::site::{Site, nodes};
use super::tasks::{is_interleaved, named, total};
use super::{AuditOptions, Finding, Severity};
use crate::tasks::{self, Action, NodeSeconds, Nodes, Remedy, move_command, prefer_command};

pub(super) const FAR: &str = "task-memory-far";
/// With this share of memory on other nodes it is far, also if no remedy is known.
const FAR_SHARE: f64 = 0.5;

pub(super) fn check(
    site: &Site<'_>,
    options: &AuditOptions,
    known: &Nodes<'_>,
    task: &Task,
    ledger: &mut Ledger,
) {
    let Some(memory) = task.memory.get() else {
        return ledger.skip_thing(
            FAR,
            || named(task),
            task.memory.unknown_reason().unwrap_or_default(),
        );
    };
    if total(memory) < options.task_bytes.max(1) || is_interleaved(task) {
        return;
    }
    let placed = tasks::judge(known, task, None);
    let remote = placed.at.remote.get();
    if let (Some(remote), Some(cpus)) = (remote, placed.at.cpu_nodes.get()) {
        let has_remedy = |remedy: &Remedy| remedy.action != Action::Nothing;
        if remote.share - remote.error > FAR_SHARE || placed.remedy.as_ref().is_some_and(has_remedy)
        {
            let of_memory = |share: f64| (share * total(memory) as f64) as u64;
            let far = of_memory(remote.share);
            let error = of_memory(remote.error);
            let at = Elsewhere {
                error: task.sample.map(|_| error),
                ..by_cpu_time(site, task, cpus, memory, far)
            };
            ledger.add(finding(site, task, at, placed.remedy));
        }
        return;
    }
    let Some((runs_on, is_confined)) = runs_on(site, task) else {
        return ledger.skip_thing(FAR, || named(task), "the CPUs it runs on are unknown");
    };
    if let Some(at) = by_cpus(site, memory, runs_on, is_confined) {
        let error = task.sample.map(|sample| sample.error_bytes);
        ledger.add(finding(site, task, Elsewhere { error, ..at }, None));
    }
}

/// A task and where most of its memory is.
struct Elsewhere {
    /// The nodes that it runs on.
    nodes: NodeSet,
    how: KnownBy,
    far: u64,
    /// Half of the 95 % interval of `far`, where the memory was sampled.
    error: Option<u64>,
    /// Whether `far` is an average over nodes, by the CPU time on each.
    is_average: bool,
    /// From where to where most accesses go that leave their node.
    runs: NodeId,
    most: NodeId,
}

/// How the nodes are known that a task runs on.
enum KnownBy {
    Confined,
    /// The seconds on each node.
    CpuTime(String),
    /// The last CPU of its main thread.
    Last,
}

/// The nodes a task is confined to: fewer than there are.
fn confined_to(site: &Site<'_>, task: &Task) -> Option<NodeSet> {
    if site.cpu_nodes_unknown.is_some() {
        return None;
    }
    let allowed = task.allowed_cpus.get()?;
    let nodes = site.nodes_of(&allowed.intersection(&site.machine.cpu_states.online));
    (!nodes.is_empty() && nodes.len() < site.cpu_nodes.len()).then_some(nodes)
}

/// The nodes a task runs on: those it is confined to, or the one it ran on last. The flag says confined.
fn runs_on(site: &Site<'_>, task: &Task) -> Option<(NodeSet, bool)> {
    if let Some(nodes) = confined_to(site, task) {
        return Some((nodes, true));
    }
    let cpu: CpuId = *task.last_cpu.get()?;
    let nodes: NodeSet = site
        .machine
        .online_nodes()
        .filter(|node| node.known_cpus().contains(cpu))
        .map(|node| node.id)
        .collect();
    (!nodes.is_empty()).then_some((nodes, false))
}

fn by_cpu_time(
    site: &Site<'_>,
    task: &Task,
    cpus: &[NodeSeconds],
    memory: &[NodeBytes],
    far: u64,
) -> Elsewhere {
    let confined = confined_to(site, task);
    let is_used = |at: &&NodeSeconds| at.seconds > 0.0 || cpus.iter().all(|at| at.seconds == 0.0);
    let seconds: Vec<String> = cpus
        .iter()
        .filter(is_used)
        .map(|at| format!("{:.2} s on node {}", at.seconds, at.node))
        .collect();
    let mut most = (0.0, NodeId(0), NodeId(0));
    for at in cpus {
        let home = site.memory_home(at.node);
        for on in memory.iter().filter(|on| on.node != home) {
            // What ran for less than a tick ran.
            let weight = at.seconds.max(f64::MIN_POSITIVE) * on.bytes as f64;
            if weight > most.0 {
                most = (weight, at.node, on.node);
            }
        }
    }
    Elsewhere {
        far,
        error: None,
        is_average: cpus.iter().filter(|at| at.seconds > 0.0).count() > 1,
        runs: most.1,
        most: most.2,
        how: match confined {
            Some(_) => KnownBy::Confined,
            None => KnownBy::CpuTime(seconds.join(", ")),
        },
        nodes: confined.unwrap_or_else(|| cpus.iter().filter(is_used).map(|at| at.node).collect()),
    }
}

/// Where more than half of the memory is far from all CPUs.
fn by_cpus(
    site: &Site<'_>,
    memory: &[NodeBytes],
    nodes: NodeSet,
    is_confined: bool,
) -> Option<Elsewhere> {
    let homes: NodeSet = nodes.iter().map(|node| site.memory_home(node)).collect();
    let away = || memory.iter().filter(|on| !homes.contains(on.node));
    let far = away().fold(0u64, |sum, on| sum.saturating_add(on.bytes));
    let most = away().max_by_key(|on| on.bytes)?.node;
    (far > total(memory) / 2).then_some(Elsewhere {
        runs: nodes.first()?,
        nodes,
        how: match is_confined {
            true => KnownBy::Confined,
            false => KnownBy::Last,
        },
        far,
        error: None,
        is_average: false,
        most,
    })
}

fn finding(site: &Site<'_>, task: &Task, at: Elsewhere, remedy: Option<Remedy>) -> Finding {
    let memory = task.memory.get().map_or(&[][..], Vec::as_slice);
    let verb = match at.how {
        KnownBy::Confined => "may only run on",
        KnownBy::CpuTime(_) => "ran on",
        KnownBy::Last => "last ran on",
    };
    let far = match (at.error, at.is_average) {
        (Some(error), _) => format!("About {} (+-{}, sampled)", size(at.far), size(error)),
        (None, true) => format!("About {}", size(at.far)),
        (None, false) => size(at.far),
    };
    let average = match at.is_average {
        true => " on average over its CPU time",
        false => "",
    };
    let message = format!(
        "{far} of its {} are{average} on other nodes than it runs on, most on node {}. It {verb} {}.",
        size(total(memory)),
        at.most,
        nodes(&at.nodes)
    );
    let finding = Finding::new(FAR, named(task), message)
        .severity(match at.how {
            KnownBy::Confined => Severity::Warning,
            KnownBy::CpuTime(_) | KnownBy::Last => Severity::Notice,
        })
        .evidence(memory_place(site, task), shares(memory))
        .cost(
            site.machine.distance(at.runs, at.most),
            site.machine.distance(at.runs, site.memory_home(at.runs)),
        )
        .advice(advice(site, task, &at, remedy.as_ref()));
    let finding = match moves_to(site, &at, remedy.as_ref()) {
        Some(to) => finding.fix(Change::TaskMemory {
            pid: task.pid,
            from: away(memory, to),
            to,
            shared: false,
        }),
        None => finding,
    };
    let finding = match (&at.how, &task.allowed_cpus, &task.last_cpu) {
        (KnownBy::Confined, Known::Yes(cpus), _) => finding.evidence(
            site.place(Fact::TaskCpus(task.pid)),
            format!("may run on CPUs {cpus}"),
        ),
        (KnownBy::CpuTime(seconds), _, _) => {
            let cpus = task.cpu_times.get().map_or(0, Vec::len);
            let fact = match cpus {
                ..2 => Fact::TaskStat(task.pid),
                _ => Fact::ThreadStats(task.pid),
            };
            finding.evidence(site.place(fact), format!("CPU time {seconds}"))
        }
        (_, _, Known::Yes(cpu)) => finding.evidence(
            site.place(Fact::TaskStat(task.pid)),
            format!("last on CPU {cpu}"),
        ),
        _ => finding,
    };
    Finding { remedy, ..finding }
}

/// Where the memory goes; without a remedy, the one node of a confined task: one that may run on several could leave it.
fn moves_to(site: &Site<'_>, at: &Elsewhere, remedy: Option<&Remedy>) -> Option<NodeId> {
    match remedy {
        Some(remedy) => remedy.node.filter(|_| remedy.moves_memory()),
        None => (matches!(at.how, KnownBy::Confined) && at.nodes.len() == 1)
            .then(|| site.memory_home(at.runs)),
    }
}

fn advice(site: &Site<'_>, task: &Task, at: &Elsewhere, remedy: Option<&Remedy>) -> String {
    let prefers = prefer_command(task.pid, at.most);
    match (remedy, &at.how) {
        (Some(remedy), _) => remedy.advice(task.pid),
        (None, KnownBy::Confined) => {
            let moves = move_command(task.pid, site.memory_home(at.runs));
            format!("{moves} moves the memory, or {prefers} the task.")
        }
        (None, _) => format!(
            "{prefers} confines it to node {}; or let NUMA balancing move the memory. What is pinned cannot move.",
            at.most
        ),
    }
}

/// Every other node with memory.
fn away(memory: &[NodeBytes], to: NodeId) -> NodeSet {
    let away = memory.iter().filter(|on| on.node != to && on.bytes > 0);
    away.map(|on| on.node)
        .filter(|node| node.0 <= MAX_NUMBER)
        .collect()
}

/// "N0=1.0 GiB N1=6.0 GiB".
fn shares(memory: &[NodeBytes]) -> String {
    let shares: Vec<String> = memory
        .iter()
        .map(|on| format!("N{}={}", on.node, size(on.bytes)))
        .collect();
    shares.join(" ")
}

/// Where its memory by node was read.
fn memory_place(site: &Site<'_>, task: &Task) -> String {
    match &task.sample {
        None => site.place(Fact::TaskMemory(task.pid)),
        Some(sample) => format!(
            "move_pages({}), {} pages, +-{}",
            task.pid,
            sample.pages,
            size(sample.error_bytes)
        ),
    }
}
