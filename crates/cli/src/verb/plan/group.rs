//! The options about a control group as a whole: the nodes of its memory (`plan`, `apply`), and a unit's policy (`plan`).

use clap::{Args, ValueEnum};
use nearfar_change::Plan;
use nearfar_change::export::{self, UnitBinding, UnitPolicy};
use nearfar_change::{CpusetMemoryRequest, Target};
use nearfar_machine::{Machine, NodeSet};
use nearfar_placement::plan::of_changes;

use super::memory::ToNodes;
use crate::failure::Failure;
use crate::verb::apply::by_who_has_to_act;

/// What a control group is to get.
#[derive(Args, Clone)]
pub struct GroupArgs {
    /// Let this control group, or this unit (redis.service), have memory on these nodes only, such as redis.service=1, and
    /// change nothing else. The kernel moves what its tasks have elsewhere
    #[arg(long, value_name = "GROUP=NODES", value_parser = group_and_nodes, conflicts_with_all = super::AUDITED,
          conflicts_with = "to_node_of")]
    cpuset_mems: Option<(String, NodeSet)>,
}

/// What a unit is to get from its next start.
#[derive(Args)]
pub struct UnitArgs {
    /// Print a drop-in of systemd that starts this unit on --to-node (with --format systemd)
    #[arg(long, value_name = "UNIT", requires = "to_node", group = "to_node_of", conflicts_with_all = super::AUDITED)]
    bind_unit: Option<String>,
    /// Where the memory of the unit comes from
    #[arg(long, value_enum, value_name = "POLICY", requires = "bind_unit", default_value_t = PolicyArg::Bind)]
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
    /// Each of the nodes of --to-node, a list or "all", page by page in turn: for what tasks of all nodes use alike
    Interleave,
}

impl From<PolicyArg> for UnitPolicy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::Bind => Self::Bind,
            PolicyArg::Preferred => Self::Preferred,
            PolicyArg::Local => Self::Local,
            PolicyArg::Interleave => Self::Interleave,
        }
    }
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
        let planned = nearfar_change::planned_cpuset_memory(machine, target, &request);
        let planned = planned.map_err(by_who_has_to_act);
        Some(planned.map(|planned| of_changes(machine, vec![planned])))
    }
}

impl UnitArgs {
    /// Whether a unit is to be bound.
    pub fn is_given(&self) -> bool {
        self.bind_unit.is_some()
    }

    /// The drop-in for a unit, where that was asked for.
    pub fn drop_in(
        &self,
        machine: &Machine,
        target: Option<&Target>,
        to: Option<&ToNodes>,
    ) -> Option<Result<String, Failure>> {
        let (unit, to) = (self.bind_unit.clone()?, to?);
        let nodes = match self.policy {
            PolicyArg::Interleave => {
                let nodes = Some(to.of(machine)).filter(|nodes| nodes.len() > 1);
                nodes.ok_or_else(|| {
                    let place = &machine.origin.place;
                    Failure::Input(anyhow::anyhow!(
                        "--policy interleave needs two nodes with memory or more, and none or one is known of {place}"
                    ))
                })
            }
            _ => to.one().map(NodeSet::single),
        };
        Some(nodes.and_then(|nodes| {
            let policy = self.policy.into();
            let binding = UnitBinding {
                unit,
                nodes,
                policy,
            };
            export::unit_drop_in(machine, target, &binding).map_err(by_who_has_to_act)
        }))
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
