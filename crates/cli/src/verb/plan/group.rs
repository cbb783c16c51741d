//! The options of `plan` and `apply` about a control group as a whole: the nodes of its memory, and a unit's policy.

use clap::{ArgGroup, Args, ValueEnum};
use nearfar_apply::export::{self, UnitBinding, UnitPolicy};
use nearfar_apply::{CpusetMemoryRequest, Target};
use nearfar_machine::{Machine, NodeId, NodeSet};
use nearfar_placement::change::Plan;
use nearfar_placement::plan::of_changes;

use crate::failure::Failure;
use crate::verb::apply::by_who_has_to_act;

/// What a control group or unit is to get.
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("unit_nodes").args(["to_node", "interleave"]))]
pub struct GroupArgs {
    /// Let this control group, or this unit (redis.service), have memory on these nodes only, such as redis.service=1, and
    /// change nothing else. The kernel moves what its tasks have elsewhere
    #[arg(long, value_name = "GROUP=NODES", value_parser = group_and_nodes, conflicts_with_all = super::AUDITED,
          conflicts_with = "to_node_of")]
    cpuset_mems: Option<(String, NodeSet)>,
    /// Print a drop-in of systemd that starts this unit on --to-node, or with its memory spread over --interleave (with
    /// --format systemd)
    #[arg(long, value_name = "UNIT", requires = "unit_nodes", group = "to_node_of", conflicts_with_all = super::AUDITED)]
    bind_unit: Option<String>,
    /// Where the memory of the unit comes from
    #[arg(long, value_enum, value_name = "POLICY", requires = "bind_unit",
          conflicts_with_all = ["task_memory", "group_memory", "cpuset_mems"], default_value_t = PolicyArg::Bind)]
    policy: PolicyArg,
    /// Spread the memory of --bind-unit over these nodes, page by page in turn: a list such as 0,2-3, or all. For what tasks
    /// of all nodes use alike
    #[arg(long, value_name = "NODES", requires = "bind_unit", conflicts_with_all = ["policy", "to_node"],
          value_parser = nodes_or_all)]
    interleave: Option<Interleaved>,
}

/// The nodes that memory is spread over.
#[derive(Clone)]
enum Interleaved {
    /// With memory.
    All,
    These(NodeSet),
}

fn nodes_or_all(text: &str) -> Result<Interleaved, String> {
    match NodeSet::parse_list(text) {
        _ if text == "all" => Ok(Interleaved::All),
        Ok(nodes) if !nodes.is_empty() => Ok(Interleaved::These(nodes)),
        _ => Err("a list of nodes such as 0,2-3, or all, is expected".to_owned()),
    }
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

impl From<PolicyArg> for UnitPolicy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::Bind => Self::Bind,
            PolicyArg::Preferred => Self::Preferred,
            PolicyArg::Local => Self::Local,
        }
    }
}

fn with_memory(machine: &Machine) -> NodeSet {
    let nodes = machine.online_nodes();
    let nodes = nodes.filter(|node| node.has_memory() == Some(true));
    nodes.map(|node| node.id).collect()
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
        let unit = self.bind_unit.clone()?;
        let (nodes, policy) = match (&self.interleave, node) {
            (Some(Interleaved::These(nodes)), _) => (nodes.clone(), UnitPolicy::Interleave),
            (Some(Interleaved::All), _) => (with_memory(machine), UnitPolicy::Interleave),
            (None, node) => (NodeSet::single(NodeId(node?)), self.policy.into()),
        };
        let binding = UnitBinding {
            unit,
            nodes,
            policy,
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
