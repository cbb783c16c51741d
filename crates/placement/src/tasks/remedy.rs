//! What is right for a far task: to move its memory, the task, both, or nothing.
//!
//! Each candidate is judged by the remote share after it: one that does not halve it is not proposed. What keeps a task's CPU time and
//! memory on the nodes where they are decides, too.

use nearfar_change::{MoveEstimate, move_seconds};
use nearfar_machine::{Cpuset, Known, Node, NodeBytes, NodeId, NodeSet, NumaBalancing, Task};
use nearfar_proc::numa_maps::binds_elsewhere;
use serde::Serialize;

use crate::tasks::{Accessed, NodeSeconds, Nodes, Placement, Remote};

/// Less than this share of far memory is not worth a change.
const MIN_REMOTE_SHARE: f64 = 0.2;
/// A remedy leaves at most this part of the remote share.
const MAX_LEFT: f64 = 0.5;
/// Smaller tasks fit the caches of a server.
const MIN_BYTES: u64 = 16 << 20;
/// A task with less CPU time since it started may end before its memory has moved.
const MIN_CPU_S: f64 = 1.0;
/// The same within an interval, as a share of one CPU.
const MIN_CPU_SHARE: f64 = 0.1;
/// With this share of CPU time on one node a task runs there.
const MAIN_SHARE: f64 = 0.9;
/// A node with a smaller share of the memory has strays, such as pages of libraries.
const STRAY_SHARE: f64 = 0.02;
/// Shares that differ by no more than this part of the even share are even.
const EVEN_WITHIN: f64 = 0.15;
/// More takes longer than 20 s to move at the assumed rate, in which the task runs at 13 to 45 % of its pace.
const MAX_MOVED_BYTES: u64 = 64 << 30;
/// One part in so many of the moved memory stays free on the node that it moves to.
const SPARE_ROOM: u64 = 10;

/// What to do about a task whose memory is far.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Remedy {
    pub action: Action,
    /// Where to; `None` for nothing.
    pub node: Option<NodeId>,
    pub reason: String,
    /// `None` for nothing.
    pub estimate: Option<MoveEstimate>,
}

impl Remedy {
    /// The commands that carry it out for a process, and why it is this one.
    pub fn advice(&self, pid: i32) -> String {
        let reason = &self.reason;
        let node = self.node.unwrap_or_default();
        let (moves, prefers) = (move_command(pid, node), prefer_command(pid, node));
        match self.action {
            Action::MoveMemory => format!("{moves} moves the memory: {reason}."),
            Action::MoveTask => format!("{prefers} moves the task: {reason}."),
            Action::MoveBoth => {
                format!("{prefers} moves the task; after it, {moves} moves the memory: {reason}.")
            }
            Action::Nothing => format!("no remedy: {reason}."),
        }
    }

    /// Whether memory moves.
    pub fn moves_memory(&self) -> bool {
        matches!(self.action, Action::MoveMemory | Action::MoveBoth)
    }
}

/// The command that moves the memory of a process, in backquotes: words follow it.
pub(crate) fn move_command(pid: i32, to: NodeId) -> String {
    format!("`nearfar apply --memory {pid} --to-node {to}`")
}

/// The command that moves the threads of a process, in backquotes.
pub(crate) fn prefer_command(pid: i32, to: NodeId) -> String {
    format!("`nearfar prefer --pid {pid} --node {to}`")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    MoveMemory,
    MoveTask,
    /// First the task, then the memory that is still far.
    MoveBoth,
    Nothing,
}

/// A far task.
struct Far<'a> {
    nodes: &'a Nodes<'a>,
    task: &'a Task,
    at: &'a Placement,
    memory: &'a [NodeBytes],
    accessed: Accessed<'a>,
    remote: Remote,
}

/// The remedy for a task; `None` for one that is near, or of which too little is known.
pub(crate) fn choose(
    nodes: &Nodes<'_>,
    task: &Task,
    at: &Placement,
    seconds: Option<f64>,
) -> Option<Remedy> {
    let remote = *at.remote.get()?;
    let far = Far {
        nodes,
        task,
        at,
        memory: at.memory.get()?,
        accessed: *Accessed::of(task).get()?,
        remote,
    };
    let is_large = far.accessed.bytes() >= MIN_BYTES;
    let is_far = remote.share - remote.error >= MIN_REMOTE_SHARE && is_large;
    is_far.then(|| {
        let remedy = far
            .not_worth(seconds)
            .map_or_else(|| far.move_one_or_both(), nothing);
        Remedy {
            estimate: far.estimate(&remedy, seconds),
            ..remedy
        }
    })
}

fn nothing(reason: String) -> Remedy {
    Remedy {
        action: Action::Nothing,
        node: None,
        reason,
        estimate: None,
    }
}

impl Far<'_> {
    fn not_worth(&self, seconds: Option<f64>) -> Option<String> {
        let cpu_s = *self.at.cpu_s.get()?;
        let min = seconds.map_or(MIN_CPU_S, |seconds| MIN_CPU_SHARE * seconds);
        if cpu_s < min {
            return Some(match seconds {
                None => format!("it used {cpu_s:.2} s of CPU time"),
                Some(seconds) => format!("it used {cpu_s:.2} s of CPU time in {seconds:.1} s"),
            });
        }
        if self.remote.cost_s == Some(0.0) {
            return Some("all of its nodes are equally far".to_owned());
        }
        if let Known::Yes(policies) = &self.task.policies {
            let is_spread =
                |policy: &str| policy.starts_with("interleave") || policy.starts_with("weighted");
            let spread = policies.iter().filter(|it| is_spread(&it.policy));
            let bytes = spread.fold(0u64, |sum, it| sum.saturating_add(it.bytes));
            return (bytes > self.at.memory_bytes() / 2)
                .then(|| "its memory is interleaved".to_owned());
        }
        is_even(self.memory).then(|| "its memory is spread evenly, as interleaving does".to_owned())
    }

    fn move_one_or_both(&self) -> Remedy {
        let Some((runs_on, time_there)) = self.main_node() else {
            return nothing("where it runs is unknown".to_owned());
        };
        let Some((has_memory_on, memory_there)) = self.largest() else {
            return nothing("it has no memory".to_owned());
        };
        let home = self.nodes.home(runs_on);
        let to = |action, node, reason| Remedy {
            action,
            node: Some(node),
            reason,
            estimate: None,
        };
        let halves = |left: f64| left <= MAX_LEFT * self.remote.share;
        let memory_stays = match halves(1.0 - time_there) {
            false => format!(
                "its threads run on several nodes, {} of them on node {runs_on}",
                percent(time_there)
            ),
            true => match self.stays(home) {
                Some(reason) => reason,
                None => {
                    let bytes = self.far_bytes(home) >> 20;
                    let reason = format!(
                        "it runs on node {runs_on} and {bytes} MiB can move{}",
                        self.unsure()
                    );
                    return to(Action::MoveMemory, home, reason);
                }
            },
        };
        let task_stays = match halves(1.0 - memory_there) {
            false => {
                let what = match self.task.used {
                    Some(Known::Yes(_)) => "used memory",
                    _ => "memory",
                };
                let share = percent(memory_there);
                format!("{share} of its {what} is on node {has_memory_on}")
            }
            true => match self.task_stays(has_memory_on) {
                Some(reason) => reason,
                None => return to(Action::MoveTask, has_memory_on, memory_stays),
            },
        };
        let is_both = memory_there > 0.5 && time_there < MAIN_SHARE;
        match is_both
            && self.stays(has_memory_on).is_none()
            && self.task_stays(has_memory_on).is_none()
        {
            true => to(
                Action::MoveBoth,
                has_memory_on,
                format!("{memory_stays}; {task_stays}"),
            ),
            false => nothing(format!("{memory_stays}; {task_stays}")),
        }
    }

    fn estimate(&self, remedy: &Remedy, seconds: Option<f64>) -> Option<MoveEstimate> {
        let node = remedy.node?;
        let moved_bytes = match remedy.moves_memory() {
            true => self.far_bytes(node),
            false => 0,
        };
        let saved_s = Known::from_option(
            self.saved_s(remedy.action, node),
            || "a distance is unknown",
        );
        let age_s = || self.task.age_ms.as_ref().map(|&ms| ms as f64 / 1000.0);
        let period_s = seconds.map_or_else(age_s, Known::Yes);
        Some(MoveEstimate::new(
            moved_bytes,
            saved_s,
            &self.at.cpu_s,
            &period_s,
        ))
    }

    /// How much less CPU time the same work takes after a move to a node, in seconds.
    fn saved_s(&self, action: Action, node: NodeId) -> Option<f64> {
        let cpus = self.at.cpu_nodes.get()?;
        let memory_there = [NodeBytes {
            node,
            bytes: self.at.memory_bytes(),
        }];
        let saved_s = |at: &NodeSeconds| {
            let (runs_on, memory) = match action {
                Action::MoveMemory => (at.node, &memory_there[..]),
                Action::MoveTask => (node, self.accessed.memory),
                Action::MoveBoth => (node, &memory_there[..]),
                Action::Nothing => return None,
            };
            let now = 1.0 + self.nodes.slower(at.node, self.accessed.memory)?;
            let after = 1.0 + self.nodes.slower(runs_on, memory)?;
            Some(at.seconds * (1.0 - after / now))
        };
        cpus.iter().map(saved_s).sum()
    }

    /// The node with most of the CPU time, and its share; without any, the only node that it may run on.
    fn main_node(&self) -> Option<(NodeId, f64)> {
        let cpus = self.at.cpu_nodes.get()?;
        let all: f64 = cpus.iter().map(|it| it.seconds).sum();
        let mut shares: Vec<(NodeId, f64)> = Vec::new();
        for at in cpus.iter().filter(|it| it.seconds > 0.0) {
            // Nodes without memory share the one that they get it from.
            let home = self.nodes.home(at.node);
            let share = at.seconds / all;
            match shares.iter_mut().find(|it| self.nodes.home(it.0) == home) {
                Some(same) => same.1 += share,
                None => shares.push((at.node, share)),
            }
        }
        let main = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let confined = || {
            let nodes = confined_to(self.nodes, self.task)?;
            let node = nodes.first().filter(|_| nodes.len() == 1)?;
            Some((node, 1.0))
        };
        main.or_else(confined)
    }

    /// The node with most of the memory that it accesses, and its share.
    fn largest(&self) -> Option<(NodeId, f64)> {
        let most = self.accessed.memory.iter().max_by_key(|on| on.bytes)?;
        let share = most.bytes as f64 / self.accessed.bytes() as f64;
        Some((most.node, share))
    }

    fn far_bytes(&self, home: NodeId) -> u64 {
        self.bytes_on(|node| node != home)
    }

    fn bytes_on(&self, is_meant: impl Fn(NodeId) -> bool) -> u64 {
        let meant = self.memory.iter().filter(|on| is_meant(on.node));
        meant.fold(0u64, |sum, on| sum.saturating_add(on.bytes))
    }

    /// What may keep some of the memory where it is.
    fn unsure(&self) -> &'static str {
        let resident = self.task.resident.get().copied().unwrap_or_default();
        match self.task.policies {
            _ if resident.shared > resident.total() / 2 => {
                " there, if the tasks that share it do not matter"
            }
            Known::No { .. } => {
                " there, unless a memory policy that nearfar has not read forbids it"
            }
            Known::Yes(_) => " there",
        }
    }

    /// Why memory cannot or should not move to a node.
    fn stays(&self, node: NodeId) -> Option<String> {
        let bytes = self.far_bytes(node);
        let mebibytes = bytes >> 20;
        let resident = self.task.resident.get().copied().unwrap_or_default();
        if resident.pinned > bytes / 2 {
            return Some(format!(
                "{} MiB of its memory are pinned",
                resident.pinned >> 20
            ));
        }
        let is_of_device = |node| {
            self.nodes
                .machine
                .node(node)
                .is_some_and(Node::is_of_device)
        };
        let of_devices = self.bytes_on(is_of_device);
        if of_devices > bytes / 2 {
            return Some(format!(
                "{} MiB of its memory are of a device",
                of_devices >> 20
            ));
        }
        if resident.huge > bytes / 2 {
            return Some(format!(
                "{} MiB of its memory are of hugetlbfs",
                resident.huge >> 20
            ));
        }
        if self
            .task
            .allowed_nodes
            .get()
            .is_some_and(|it| !it.contains(node))
        {
            return Some(format!("its cpuset has no memory of node {node}"));
        }
        let mut policies = self.task.policies.get().into_iter().flatten();
        let is_bound = |policy: &str| binds_elsewhere(policy, node);
        if let Some(bound) = policies.find(|it| is_bound(&it.policy) && it.bytes > bytes / 2) {
            return Some(format!("its memory policy is {}", bound.policy));
        }
        let memory = self
            .nodes
            .machine
            .node(node)
            .and_then(|node| node.memory.get());
        let free = memory.and_then(|memory| memory.free_bytes);
        let wanted = bytes.saturating_add(bytes / SPARE_ROOM);
        if let Some(free) = free.filter(|&free| free < wanted) {
            let free = free >> 20;
            return Some(format!(
                "node {node} has {free} MiB free for {mebibytes} MiB"
            ));
        }
        (bytes > MAX_MOVED_BYTES).then(|| {
            let seconds = move_seconds(bytes);
            format!("{mebibytes} MiB take about {seconds:.0} s to move")
        })
    }

    /// Why a task cannot run on a node.
    fn task_stays(&self, node: NodeId) -> Option<String> {
        let machine = self.nodes.machine;
        let listed = machine.node(node);
        if let Some(reason) = listed.and_then(|node| node.cpus.unknown_reason()) {
            return Some(format!("the CPUs of node {node} are unknown: {reason}"));
        }
        let cpus = listed.map(Node::known_cpus);
        let online = cpus.map(|cpus| cpus.intersection(&machine.cpu_states.online));
        let Some(cpus) = online.filter(|cpus| !cpus.is_empty()) else {
            return Some(format!("node {node} has no CPUs"));
        };
        let cpuset = cpuset_of(self.nodes, self.task)?;
        let allowed = cpuset.cpus.get()?;
        (!allowed.intersects(&cpus)).then(|| format!("its cpuset has no CPUs of node {node}"))
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Whether memory of several nodes is spread over them evenly, but for strays.
pub(crate) fn is_even(memory: &[NodeBytes]) -> bool {
    let all: f64 = memory.iter().map(|on| on.bytes as f64).sum();
    let shares: Vec<f64> = memory
        .iter()
        .map(|on| on.bytes as f64 / all)
        .filter(|share| *share >= STRAY_SHARE)
        .collect();
    let even = 1.0 / shares.len() as f64;
    let is_near = |share: &f64| (share - even).abs() <= EVEN_WITHIN * even;
    shares.len() > 1 && shares.iter().all(is_near)
}

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

pub(crate) fn holders_of(nodes: &Nodes<'_>, task: &Task) -> Vec<Holder> {
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
pub(crate) fn confined_to(nodes: &Nodes<'_>, task: &Task) -> Option<NodeSet> {
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
    let kind = match cpuset_of(nodes, task).is_some_and(has_these) {
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
fn cpuset_of<'a>(nodes: &Nodes<'a>, task: &Task) -> Option<&'a Cpuset> {
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
    let is_all = nodes.machine.nodes_with_memory().is_subset(allowed);
    (!is_all).then(|| Holder {
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
