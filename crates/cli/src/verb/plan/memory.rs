//! The options of `plan` and `apply` that move the memory of one process.

use clap::Args;
use nearfar_apply::{MoveRequest, MoveRequestError};
use nearfar_machine::{Machine, NodeId, NodeSet, SourceKind};
use nearfar_placement::change::Plan;
use nearfar_placement::plan::of_changes;

use crate::args;
use crate::failure::Failure;

/// Which memory is to go where.
#[derive(Args, Clone)]
pub struct MemoryArgs {
    /// Move the memory of this process, and change nothing else
    #[arg(long, value_name = "PID", value_parser = args::pid, requires = "to_node",
          conflicts_with_all = ["rules", "devices", "not_devices", "override_device_node", "iopolicy"])]
    task_memory: Option<i32>,
    /// The node that the memory goes to
    #[arg(long, value_name = "N", requires = "task_memory")]
    to_node: Option<u32>,
    /// Move only what is on these nodes, such as 0,2-3 [default: all but --to-node]
    #[arg(long, value_name = "LIST", requires = "task_memory", value_parser = NodeSet::parse_list)]
    from_node: Option<NodeSet>,
    /// Also move the pages that other processes use, such as those of libraries
    #[arg(long, requires = "task_memory")]
    shared: bool,
}

impl MemoryArgs {
    pub fn is_given(&self) -> bool {
        self.task_memory.is_some()
    }

    /// The plan that moves the memory, where that was asked for.
    pub fn plan(&self, machine: &Machine) -> Option<Result<Plan, Failure>> {
        let (pid, to) = (self.task_memory?, NodeId(self.to_node?));
        if machine.origin.kind != SourceKind::Live {
            return Some(Err(Failure::Input(anyhow::anyhow!(
                "cannot move the memory of process {pid}: --task-memory is for the running system"
            ))));
        }
        let from = self.from_node.clone().unwrap_or_else(|| {
            let others = machine.online_nodes().filter(|node| node.id != to);
            let has_memory = others.filter(|node| {
                let memory = node.memory.get();
                memory.is_none_or(|memory| memory.total_bytes > 0)
            });
            has_memory.map(|node| node.id).collect()
        });
        let request = MoveRequest {
            pid,
            from,
            to,
            shared: self.shared,
        };
        let planned = nearfar_apply::planned_move(machine, &request).map_err(|error| match error {
            MoveRequestError::Refused { .. } => Failure::refused(error),
            _ => Failure::input(error),
        });
        Some(planned.map(|planned| of_changes(machine, vec![planned])))
    }
}
