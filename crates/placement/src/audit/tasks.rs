//! Tasks whose memory is on other nodes than they run on, cpusets that keep it there, and the kernel's own balancing. Fix and advice are
//! those of [`crate::tasks`]; without CPU time by node, what the task may run on decides.

use nearfar_change::{Change, size};
use nearfar_machine::{
    CpuId, Cpuset, Known, MAX_NUMBER, NodeBytes, NodeId, NodeSet, NumaBalancing, Task,
};

use crate::audit::site::{Fact, Site, cpus, nodes};
use crate::audit::{AuditOptions, Finding, Ledger, Severity};
use crate::tasks::{
    self, Action, NodeSeconds, Nodes, Remedy, is_even, move_command, prefer_command,
};

const DISJOINT: &str = "cpuset-disjoint";
const BALANCING: &str = "numa-balancing";

pub(crate) fn check(site: &Site<'_>, options: &AuditOptions, ledger: &mut Ledger) {
    if let Some(tasks) = ledger.need(&site.machine.tasks, &[FAR]) {
        if let Some(reason) = &site.cpu_nodes_unknown {
            ledger.skip(&[FAR], reason);
        }
        let nodes = Nodes::of(site.machine);
        for task in tasks.iter().filter(|_| site.has_several_nodes()) {
            check_task(site, options, &nodes, task, ledger);
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
pub(crate) fn named(task: &Task) -> String {
    format!("task {} ({})", task.pid, task.name)
}

pub(crate) fn total(memory: &[NodeBytes]) -> u64 {
    memory
        .iter()
        .fold(0, |sum, on| sum.saturating_add(on.bytes))
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
    let runs = site.machine.nodes_of_cpus(allowed);
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
    if site.machine.nodes_with_memory().len() < 2 {
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
    let nodes = site.machine.nodes_of_cpus(task.allowed_cpus.get()?);
    (bytes >= options.task_bytes.max(1) && nodes.len() > 1 && !is_interleaved(task))
        .then_some((task, bytes))
}

pub(crate) const FAR: &str = "task-memory-far";
/// With this share of memory on other nodes it is far, also if no remedy is known.
const FAR_SHARE: f64 = 0.5;

fn check_task(
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
    let nodes = site
        .machine
        .nodes_of_cpus(&allowed.intersection(&site.machine.cpu_states.online));
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
