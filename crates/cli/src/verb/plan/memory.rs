//! The options of `plan` and `apply` that move memory: of one process, or of a control group.

use std::collections::BTreeSet;

use clap::Args;
use nearfar_apply::{ApplyError, GroupMoveRequest, MoveRequest, MoveRequestError};
use nearfar_machine::{Known, Machine, NodeId, NodeSet, SourceKind, alternatives};
use nearfar_placement::change::Plan;
use nearfar_placement::plan::of_changes;
use nearfar_placement::tasks::{self, Filter, TaskPlacement};

use crate::args;
use crate::failure::Failure;
use crate::task_filter;
use crate::verb::apply::by_who_has_to_act;

/// Which memory is to go where.
#[derive(Args, Clone)]
pub struct MemoryArgs {
    /// Move the memory of this process, and change nothing else
    #[arg(long, value_name = "PID", value_parser = args::pid, requires = "to_node", group = "to_node_of",
          conflicts_with_all = super::AUDITED)]
    task_memory: Option<i32>,
    /// Move the memory of the processes of this control group and of those below it, or of this unit (redis.service), and
    /// change nothing else
    #[arg(long, value_name = "GROUP", requires = "to_node", group = "to_node_of", conflicts_with_all = super::AUDITED)]
    group_memory: Option<String>,
    /// The node that the memory goes to, or that the unit is bound to
    #[arg(long, value_name = "N", requires = "to_node_of")]
    pub to_node: Option<u32>,
    /// Move only what is on these nodes, such as 0,2-3 [default: all but --to-node]
    #[arg(long, value_name = "LIST", requires = "to_node_of", conflicts_with = "bind_unit", value_parser = NodeSet::parse_list)]
    from_node: Option<NodeSet>,
    /// Also move the pages that other processes use, such as those of libraries
    #[arg(long, requires = "to_node_of", conflicts_with = "bind_unit")]
    shared: bool,
}

impl MemoryArgs {
    pub fn is_given(&self) -> bool {
        self.task_memory.is_some() || self.group_memory.is_some()
    }

    /// Whether one process is meant, by its number.
    pub fn names_process(&self) -> bool {
        self.task_memory.is_some()
    }

    /// Whether the control groups of tasks have to be read.
    pub fn needs_groups(&self) -> bool {
        self.group_memory.is_some()
    }

    /// The plan that moves the memory, where that was asked for.
    pub fn plan(&self, machine: &Machine) -> Option<Result<Plan, Failure>> {
        let to = NodeId(self.to_node?);
        match (self.task_memory, &self.group_memory) {
            (Some(pid), _) => Some(self.of_process(machine, pid, to)),
            (None, Some(group)) => Some(self.of_group(machine, group, to)),
            (None, None) => None,
        }
    }

    fn of_process(&self, machine: &Machine, pid: i32, to: NodeId) -> Result<Plan, Failure> {
        if machine.origin.kind != SourceKind::Live {
            return Err(Failure::Input(anyhow::anyhow!(
                "cannot move the memory of process {pid}: --task-memory is for the running system"
            )));
        }
        let request = MoveRequest {
            pid,
            from: self.from(machine, to),
            to,
            shared: self.shared,
        };
        let planned = nearfar_apply::planned_move(machine, &request).map_err(failure)?;
        Ok(of_changes(machine, vec![planned]))
    }

    fn of_group(&self, machine: &Machine, group: &str, to: NodeId) -> Result<Plan, Failure> {
        if machine.origin.kind != SourceKind::Live {
            return Err(Failure::Input(anyhow::anyhow!(
                "cannot move the memory of control group {group:?}: --group-memory is for the running system"
            )));
        }
        let request = GroupMoveRequest {
            group: group.to_owned(),
            pids: processes(machine, group)?,
            from: self.from(machine, to),
            to,
            shared: self.shared,
        };
        nearfar_apply::planned_group_move(machine, &request).map_err(failure)
    }

    fn from(&self, machine: &Machine, to: NodeId) -> NodeSet {
        self.from_node.clone().unwrap_or_else(|| {
            let others = machine.online_nodes().filter(|node| node.id != to);
            let has_memory = others.filter(|node| {
                let memory = node.memory.get();
                memory.is_none_or(|memory| memory.total_bytes > 0)
            });
            has_memory.map(|node| node.id).collect()
        })
    }
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
        false => tasks::service_group(path),
    }
}

fn failure(error: MoveRequestError) -> Failure {
    by_who_has_to_act(ApplyError::Memory(error))
}
