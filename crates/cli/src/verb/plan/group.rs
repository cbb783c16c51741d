//! The options of `plan` and `apply` about a control group as a whole: the nodes of its memory, and a unit's policy.

use clap::{Args, ValueEnum};
use nearfar_apply::export::{self, UnitBinding, UnitPolicy};
use nearfar_apply::{CpusetMemoryRequest, Target};
use nearfar_machine::{Machine, NodeId, NodeSet};
use nearfar_placement::change::Plan;
use nearfar_placement::plan::of_changes;

use crate::failure::Failure;
use crate::verb::apply::by_who_has_to_act;

/// What a control group or unit is to get.
#[derive(Args, Clone)]
pub struct GroupArgs {
    /// Let this control group, or this unit (redis.service), have memory on these nodes only, such as redis.service=1, and
    /// change nothing else. The kernel moves what its tasks have elsewhere
    #[arg(long, value_name = "GROUP=NODES", value_parser = group_and_nodes, conflicts_with_all = super::AUDITED,
          conflicts_with = "to_node_of")]
    cpuset_mems: Option<(String, NodeSet)>,
    /// Print a drop-in of systemd that starts this unit on --to-node (with --format systemd)
    #[arg(long, value_name = "UNIT", requires = "to_node", group = "to_node_of", conflicts_with_all = super::AUDITED)]
    bind_unit: Option<String>,
    /// Where the memory of the unit comes from
    #[arg(long, value_enum, value_name = "POLICY", requires = "bind_unit",
          conflicts_with_all = ["task_memory", "group_memory", "cpuset_mems"], default_value_t = PolicyArg::Bind)]
    policy: PolicyArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyArg {
    /// The node only
    Bind,
    /// The node, and others where it has none left
    Preferred,
    /// The node that a task runs on; its CPUs are those of --to-node
    Local,
}

impl GroupArgs {
    /// The plan that changes the nodes of a group, where that was asked for. Without a target there are no files to read.
    pub fn plan(
        &self,
        machine: &Machine,
        target: Option<&Target>,
    ) -> Option<Result<Plan, Failure>> {
        let (group, nodes) = self.cpuset_mems.clone()?;
        let Some(target) = target else {
            return Some(Err(Failure::Input(anyhow::anyhow!(
                "cannot read control group {group:?}: --cpuset-mems is for the running system, or a tree with --root"
            ))));
        };
        let request = CpusetMemoryRequest { group, nodes };
        let planned = nearfar_apply::planned_cpuset_memory(machine, target, &request);
        let planned = planned.map_err(by_who_has_to_act);
        Some(planned.map(|planned| of_changes(machine, vec![planned])))
    }

    /// The unit that is to be bound.
    pub fn unit(&self) -> Option<&str> {
        self.bind_unit.as_deref()
    }

    /// The drop-in for a unit, where that was asked for.
    pub fn drop_in(
        &self,
        machine: &Machine,
        target: Option<&Target>,
        node: Option<u32>,
    ) -> Option<Result<String, Failure>> {
        let binding = UnitBinding {
            unit: self.bind_unit.clone()?,
            node: NodeId(node?),
            policy: match self.policy {
                PolicyArg::Bind => UnitPolicy::Bind,
                PolicyArg::Preferred => UnitPolicy::Preferred,
                PolicyArg::Local => UnitPolicy::Local,
            },
        };
        Some(export::unit_drop_in(machine, target, &binding).map_err(by_who_has_to_act))
    }
}

/// `redis.service=1`, `system.slice/db=0,2-3`.
fn group_and_nodes(text: &str) -> Result<(String, NodeSet), String> {
    let (group, nodes) = text
        .rsplit_once('=')
        .ok_or("a control group and its nodes are expected, such as redis.service=1")?;
    let nodes = NodeSet::parse_list(nodes).map_err(|error| error.to_string())?;
    match nodes.is_empty() {
        true => Err(format!(
            "control group {group:?} would have no node to have memory on"
        )),
        false => Ok((group.to_owned(), nodes)),
    }
}
