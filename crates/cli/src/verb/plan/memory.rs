//! The options of `plan` and `apply` that move memory: of one process, or of a control group.

use std::collections::BTreeSet;

use clap::Args;
use nearfar_change::Plan;
use nearfar_change::{ApplyError, GroupMoveRequest, MoveRequest, MoveRequestError};
use nearfar_machine::{Known, Machine, NodeId, NodeSet, SourceKind, alternatives};
use nearfar_placement::plan::of_changes;
use nearfar_placement::tasks::{self, Filter, TaskPlacement};

use crate::args;
use crate::failure::Failure;
use crate::task_filter;
use crate::verb::apply::by_who_has_to_act;

/// Which memory is to go where.
#[derive(Args, Clone)]
pub struct MemoryArgs {
    /// Move the memory of this process (a number), or of the processes of this control group and of those below it, or of
    /// this unit (redis.service), and change nothing else
    #[arg(long, value_name = "TARGET", value_parser = target, requires = "to_node", group = "to_node_of",
          conflicts_with_all = super::AUDITED)]
    memory: Option<MemoryTarget>,
    /// The node for the memory; with --policy interleave a list such as 0,2-3, or all
    #[arg(long, value_name = "NODES", requires = "to_node_of", value_parser = nodes_or_all)]
    pub to_node: Option<ToNodes>,
    /// Move only what is on these nodes, such as 0,2-3 [default: all but --to-node]
    #[arg(long, value_name = "LIST", requires = "memory", value_parser = NodeSet::parse_list)]
    from_node: Option<NodeSet>,
    /// Also move the pages that other processes use, such as those of libraries
    #[arg(long, requires = "memory")]
    shared: bool,
}

/// Whose memory moves.
#[derive(Clone)]
enum MemoryTarget {
    Process(i32),
    /// A control group or a unit.
    Group(String),
}

fn target(text: &str) -> Result<MemoryTarget, String> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => args::pid(text).map(MemoryTarget::Process),
        false => Ok(MemoryTarget::Group(text.to_owned())),
    }
}

/// `--to-node`.
#[derive(Clone)]
pub enum ToNodes {
    /// With memory.
    All,
    These(NodeSet),
}

fn nodes_or_all(text: &str) -> Result<ToNodes, String> {
    match NodeSet::parse_list(text) {
        _ if text == "all" => Ok(ToNodes::All),
        Ok(nodes) if !nodes.is_empty() => Ok(ToNodes::These(nodes)),
        _ => Err("a node, or a list of nodes such as 0,2-3, or all, is expected".to_owned()),
    }
}

impl ToNodes {
    /// The nodes of this machine.
    pub fn of(&self, machine: &Machine) -> NodeSet {
        match self {
            Self::These(nodes) => nodes.clone(),
            Self::All => with_memory(machine, |_| true),
        }
    }

    /// The node, where only one can be meant.
    pub fn one(&self) -> Result<NodeId, Failure> {
        let one = |nodes: &NodeSet| nodes.iter().next().filter(|_| nodes.len() == 1);
        match self {
            Self::These(nodes) => one(nodes),
            Self::All => None,
        }
        .ok_or_else(|| {
            Failure::Input(anyhow::anyhow!(
                "--to-node takes one node; several are for plan --bind-unit UNIT --policy interleave"
            ))
        })
    }
}

impl MemoryArgs {
    pub fn is_given(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether one process is meant, by its number.
    pub fn names_process(&self) -> bool {
        matches!(self.memory, Some(MemoryTarget::Process(_)))
    }

    /// Whether the control groups of tasks have to be read.
    pub fn needs_groups(&self) -> bool {
        matches!(self.memory, Some(MemoryTarget::Group(_)))
    }

    /// The plan that moves the memory, where that was asked for.
    pub fn plan(&self, machine: &Machine) -> Option<Result<Plan, Failure>> {
        let (target, to) = (self.memory.as_ref()?, self.to_node.as_ref()?);
        Some(to.one().and_then(|to| match target {
            MemoryTarget::Process(pid) => self.of_process(machine, *pid, to),
            MemoryTarget::Group(group) => self.of_group(machine, group, to),
        }))
    }

    fn of_process(&self, machine: &Machine, pid: i32, to: NodeId) -> Result<Plan, Failure> {
        if machine.origin.kind != SourceKind::Live {
            return Err(Failure::Input(anyhow::anyhow!(
                "cannot move the memory of process {pid}: --memory is for the running system"
            )));
        }
        let request = MoveRequest {
            pid,
            from: self.from(machine, to),
            to,
            shared: self.shared,
        };
        let planned = nearfar_change::planned_move(machine, &request).map_err(failure)?;
        Ok(of_changes(machine, vec![planned]))
    }

    fn of_group(&self, machine: &Machine, group: &str, to: NodeId) -> Result<Plan, Failure> {
        if machine.origin.kind != SourceKind::Live {
            return Err(Failure::Input(anyhow::anyhow!(
                "cannot move the memory of control group {group:?}: --memory is for the running system"
            )));
        }
        let request = GroupMoveRequest {
            group: group.to_owned(),
            pids: processes(machine, group)?,
            from: self.from(machine, to),
            to,
            shared: self.shared,
        };
        let (changes, left_alone) =
            nearfar_change::planned_group_move(machine, &request).map_err(failure)?;
        Ok(Plan {
            left_alone,
            ..of_changes(machine, changes)
        })
    }

    fn from(&self, machine: &Machine, to: NodeId) -> NodeSet {
        let others = || with_memory(machine, |node| node != to);
        self.from_node.clone().unwrap_or_else(others)
    }
}

/// The online nodes that have memory, or may have some.
fn with_memory(machine: &Machine, is_meant: impl Fn(NodeId) -> bool) -> NodeSet {
    let nodes = machine.online_nodes();
    nodes
        .filter(|node| is_meant(node.id) && node.has_memory() != Some(false))
        .map(|node| node.id)
        .collect()
}

/// The processes of a control group and of those below it.
fn processes(machine: &Machine, group: &str) -> Result<Vec<i32>, Failure> {
    if group.trim_matches('/').is_empty() {
        return Err(Failure::Input(anyhow::anyhow!(
            "{group:?} is the root, every process of the system is below it; name a group"
        )));
    }
    let filter = Filter {
        group: Some(group.to_owned()),
        ..Filter::default()
    };
    let found = match tasks::tasks(machine, &filter, None) {
        Known::Yes(found) => found.tasks,
        Known::No { unknown_reason } => {
            return Err(Failure::Input(anyhow::anyhow!(
                "the tasks are unknown: {unknown_reason}"
            )));
        }
    };
    // A manager of a user, or a container, can have a unit with the name of one of the system.
    let groups: BTreeSet<&str> = found
        .iter()
        .filter_map(|task| group_of(task, group))
        .collect();
    if groups.len() > 1 {
        let groups: Vec<&str> = groups.into_iter().collect();
        return Err(Failure::Input(anyhow::anyhow!(
            "several control groups have the name {group:?}: {}; give the path of one",
            groups.join(", ")
        )));
    }
    let mut pids: Vec<i32> = found.iter().map(|task| task.pid).collect();
    pids.sort_unstable();
    match pids.is_empty() {
        true => Err(Failure::input(anyhow::anyhow!(
            "no process is in control group {group:?}; {}",
            alternatives(group, &task_filter::group_names(machine))
        ))),
        false => Ok(pids),
    }
}

/// The group by which a task is in what was named.
fn group_of<'a>(task: &'a TaskPlacement, named: &'a str) -> Option<&'a str> {
    let path = task.group.get()?;
    match tasks::is_below(path, named) {
        true => Some(named),
        false => nearfar_proc::cgroup::service_group(path),
    }
}

fn failure(error: MoveRequestError) -> Failure {
    by_who_has_to_act(ApplyError::Memory(error))
}
