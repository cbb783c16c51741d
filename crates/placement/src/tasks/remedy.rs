//! What is right for a far task: to move its memory, the task, both, or nothing.

use nearfar_machine::{Known, NodeBytes, NodeId, Task};
use serde::Serialize;

use super::holders::confined_to;
use super::{Nodes, Placement};

/// Less than this share of far memory is not worth a change.
const MIN_REMOTE_SHARE: f64 = 0.2;
/// Smaller tasks fit the caches of a server.
const MIN_BYTES: u64 = 16 << 20;
/// A task with less CPU time may end before its memory has moved.
const MIN_CPU_S: f64 = 1.0;
/// With this share of CPU time or memory on one node it is there.
const MAIN_SHARE: f64 = 0.9;
/// Memory of which the nodes have equal shares within this is interleaved.
const EVEN_WITHIN: f64 = 0.1;
/// At 1 to 3 GB/s more takes longer than a minute, in which the task runs at a tenth of its pace.
const MAX_MOVED_BYTES: u64 = 64 << 30;
/// The room that is left on a node that memory moves to, of that memory.
const SPARE_ROOM: u64 = 10;

/// What to do about a task whose memory is far.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Remedy {
    pub action: Action,
    /// Where to; `None` for nothing.
    pub node: Option<NodeId>,
    pub reason: String,
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

/// The remedy for a task; `None` for one that is near, or of which too little is known.
pub(super) fn choose(nodes: &Nodes<'_>, task: &Task, at: &Placement) -> Option<Remedy> {
    let remote = at.remote.get()?;
    let memory = at.memory.get()?;
    let is_far = remote.share - remote.error >= MIN_REMOTE_SHARE && at.memory_bytes() >= MIN_BYTES;
    if !is_far {
        return None;
    }
    // Since it started, also where `at` is of an interval.
    let cpu_s = task.cpu_ms.get().map_or(at.cpu_s, |ms| *ms as f64 / 1000.0);
    if cpu_s < MIN_CPU_S {
        return Some(nothing(format!("it used {cpu_s:.2} s of CPU time")));
    }
    if let Some(reason) = interleaved(task, at, memory) {
        return Some(nothing(reason));
    }
    Some(match runs_on(nodes, task, at) {
        Some(node) => on_one_node(nodes, task, at, nodes.home(node)),
        None => on_several_nodes(at, memory),
    })
}

fn nothing(reason: String) -> Remedy {
    Remedy {
        action: Action::Nothing,
        node: None,
        reason,
    }
}

fn to(action: Action, node: NodeId, reason: String) -> Remedy {
    Remedy {
        action,
        node: Some(node),
        reason,
    }
}

fn interleaved(task: &Task, at: &Placement, memory: &[NodeBytes]) -> Option<String> {
    if let Known::Yes(policies) = &task.policies {
        let is_spread =
            |policy: &str| policy.starts_with("interleave") || policy.starts_with("weighted");
        let spread = policies.iter().filter(|it| is_spread(&it.policy));
        let bytes = spread.fold(0u64, |sum, it| sum.saturating_add(it.bytes));
        return (bytes > at.memory_bytes() / 2).then(|| "its memory is interleaved".to_owned());
    }
    is_even(memory).then(|| "its memory is spread evenly, as interleaving does".to_owned())
}

/// Whether memory of several nodes is spread over them evenly.
pub(crate) fn is_even(memory: &[NodeBytes]) -> bool {
    let all: f64 = memory.iter().map(|on| on.bytes as f64).sum();
    let shares = memory.iter().map(|on| on.bytes as f64 / all);
    let even = 1.0 / memory.len() as f64;
    memory.len() > 1
        && shares
            .clone()
            .all(|share| (share - even).abs() <= EVEN_WITHIN / 2.0)
}

/// The one node that a task runs on.
fn runs_on(nodes: &Nodes<'_>, task: &Task, at: &Placement) -> Option<NodeId> {
    let confined = confined_to(nodes, task).filter(|nodes| nodes.len() == 1);
    let cpus = at.cpu_nodes.get()?;
    let main = cpus.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let is_main = main.seconds >= MAIN_SHARE * at.cpu_s;
    confined
        .and_then(|nodes| nodes.first())
        .or(is_main.then_some(main.node))
}

fn on_one_node(nodes: &Nodes<'_>, task: &Task, at: &Placement, home: NodeId) -> Remedy {
    let memory = at.memory.get().into_iter().flatten();
    let far = memory.clone().filter(|on| on.node != home);
    let far_bytes = far
        .clone()
        .fold(0u64, |sum, on| sum.saturating_add(on.bytes));
    let Some(most) = far.max_by_key(|on| on.bytes) else {
        return nothing("its memory is near".to_owned());
    };
    match stays(nodes, task, home, far_bytes) {
        Some(reason) => to(Action::MoveTask, most.node, reason),
        None => to(
            Action::MoveMemory,
            home,
            format!(
                "it runs on node {home} and {} MiB can move there",
                far_bytes >> 20
            ),
        ),
    }
}

/// Why memory cannot or should not move to a node.
fn stays(nodes: &Nodes<'_>, task: &Task, node: NodeId, bytes: u64) -> Option<String> {
    let mebibytes = bytes >> 20;
    if task.pinned_bytes.get().is_some_and(|&it| it > bytes / 2) {
        return Some("most of its far memory is locked or pinned".to_owned());
    }
    if task
        .allowed_nodes
        .get()
        .is_some_and(|it| !it.contains(node))
    {
        return Some(format!("its cpuset has no memory of node {node}"));
    }
    let policies = task.policies.get().into_iter().flatten();
    if let Some(bound) = policies
        .into_iter()
        .find(|it| it.policy.starts_with("bind") && it.bytes > bytes / 2)
    {
        return Some(format!("its memory policy is {}", bound.policy));
    }
    let memory = nodes.machine.node(node).and_then(|node| node.memory.get());
    let free = memory.and_then(|memory| memory.free_bytes);
    if let Some(free) = free.filter(|&free| free < bytes.saturating_add(bytes / SPARE_ROOM)) {
        return Some(format!(
            "node {node} has {} MiB free for {mebibytes} MiB",
            free >> 20
        ));
    }
    (bytes > MAX_MOVED_BYTES).then(|| format!("{mebibytes} MiB take minutes to move"))
}

fn on_several_nodes(at: &Placement, memory: &[NodeBytes]) -> Remedy {
    let Some(most) = memory.iter().max_by_key(|on| on.bytes) else {
        return nothing("it has no memory".to_owned());
    };
    let share = most.bytes as f64 / at.memory_bytes() as f64;
    let node = most.node;
    match share {
        MAIN_SHARE.. => to(
            Action::MoveTask,
            node,
            format!("its memory is on node {node} and its threads run on several nodes"),
        ),
        0.6.. => to(
            Action::MoveBoth,
            node,
            format!("most of its memory is on node {node}, and its threads run on several nodes"),
        ),
        _ => nothing("its threads and its memory are on several nodes".to_owned()),
    }
}
