//! Which CPUs and which nodes' memory a machine offers for measuring.

use nearfar_machine::{CpuId, CpuSet, Machine, Node, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use crate::options::{ProbeError, ProbeOptions};

/// Who measures, what is measured, and what cannot be.
pub(crate) struct NodeSelection {
    /// Nodes that measure.
    pub(crate) sources: Vec<Source>,
    /// Nodes with memory.
    pub(crate) memory: Vec<NodeId>,
    pub(crate) skipped: Vec<SkippedPair>,
}

/// The CPUs of a node that can measure.
pub(crate) struct Source {
    pub(crate) node: NodeId,
    pub(crate) cpu: CpuId,
    /// All that may be used, one of each core before the siblings.
    pub(crate) all: Vec<CpuId>,
}

/// A pair of nodes without a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SkippedPair {
    /// The node of the CPU; `None` when the memory node cannot be measured from any.
    pub cpu_node: Option<NodeId>,
    /// The node of the memory; `None` when the CPU node cannot measure any.
    pub memory_node: Option<NodeId>,
    #[serde(alias = "because")]
    pub reason: String,
}

impl SkippedPair {
    pub(crate) fn new(
        cpu_node: Option<NodeId>,
        memory_node: Option<NodeId>,
        reason: String,
    ) -> Self {
        Self {
            cpu_node,
            memory_node,
            reason,
        }
    }
}

/// Picks them; `allowed` is where this process may run.
///
/// # Errors
/// When a node that was asked for by name is not there or lacks what it was asked for, or nothing is left.
pub(crate) fn select(
    machine: &Machine,
    allowed: &CpuSet,
    options: &ProbeOptions,
) -> Result<NodeSelection, ProbeError> {
    options
        .from
        .iter()
        .try_for_each(|nodes| check_cpus(machine, nodes))?;
    options
        .to
        .iter()
        .try_for_each(|nodes| check_memory(machine, nodes))?;
    let mut selection = NodeSelection {
        sources: Vec::new(),
        memory: Vec::new(),
        skipped: Vec::new(),
    };
    for node in machine.online_nodes() {
        match &options.to {
            Some(to) if !to.contains(node.id) => {}
            _ if !may_have_memory(node) => {}
            None if node.is_of_device() => {
                let reason = format!("its memory is a device's: --to {} measures it", node.id);
                let skipped = SkippedPair::new(None, Some(node.id), reason);
                selection.skipped.push(skipped);
            }
            _ => selection.memory.push(node.id),
        }
        let online = online_cpus(machine, node);
        if online.is_empty()
            || options
                .from
                .as_ref()
                .is_some_and(|from| !from.contains(node.id))
        {
            continue;
        }
        let all = in_order(machine, &online.intersection(allowed));
        match best_cpu(machine, &all) {
            Some(cpu) => selection.sources.push(Source {
                node: node.id,
                cpu,
                all,
            }),
            None => {
                let reason = format!(
                    "this process may not run on the node's CPUs {online}, only on {allowed}"
                );
                let skipped = SkippedPair::new(Some(node.id), None, reason);
                selection.skipped.push(skipped);
            }
        }
    }
    let reason = match (selection.memory.is_empty(), selection.sources.is_empty()) {
        (true, _) => "no online node has memory".to_owned(),
        (_, true) => format!(
            "this process may run on CPUs {allowed}, none of which is on a node to measure from"
        ),
        _ => return Ok(selection),
    };
    Err(ProbeError::NothingToMeasure { reason })
}

/// The CPUs of a node that are online.
fn online_cpus(machine: &Machine, node: &Node) -> CpuSet {
    node.known_cpus().intersection(&machine.cpu_states.online)
}

/// Whether it has memory. Unknown memory is worth a try: binding to a node without memory fails and is reported then.
fn may_have_memory(node: &Node) -> bool {
    node.has_memory() != Some(false)
}

/// That each of these nodes is online and has a CPU that is.
///
/// # Errors
/// Names the first that is not so, and the nodes that are.
pub(crate) fn check_cpus(machine: &Machine, nodes: &NodeSet) -> Result<(), ProbeError> {
    let has_cpus = |node: &Node| !online_cpus(machine, node).is_empty();
    for id in nodes.iter() {
        let node = online_node(machine, id)?;
        if !has_cpus(node) {
            let has = if may_have_memory(node) {
                "memory"
            } else {
                "a number"
            };
            return Err(ProbeError::NoCpus {
                node: id,
                has,
                others: nodes_that(machine, has_cpus),
            });
        }
    }
    Ok(())
}

/// The same for memory.
fn check_memory(machine: &Machine, nodes: &NodeSet) -> Result<(), ProbeError> {
    for node in nodes.iter() {
        if !may_have_memory(online_node(machine, node)?) {
            return Err(ProbeError::NoMemory {
                node,
                others: machine.nodes_with_memory(),
            });
        }
    }
    Ok(())
}

fn online_node(machine: &Machine, node: NodeId) -> Result<&Node, ProbeError> {
    let found = machine.node(node).filter(|node| node.online);
    found.ok_or_else(|| ProbeError::NoSuchNode {
        node,
        online: machine.online_node_set(),
    })
}

fn nodes_that(machine: &Machine, has: impl Fn(&Node) -> bool) -> NodeSet {
    machine
        .online_nodes()
        .filter(|node| has(node))
        .map(|node| node.id)
        .collect()
}

/// The CPUs that may be used, one of each core first; isolated ones only when there are no others.
fn in_order(machine: &Machine, usable: &CpuSet) -> Vec<CpuId> {
    let free = usable.difference(&machine.cpu_states.kept_free());
    let candidates = if free.is_empty() { usable } else { &free };
    let (mut leaders, siblings): (Vec<_>, Vec<_>) =
        candidates.iter().partition(|&cpu| leads(machine, cpu));
    leaders.extend(siblings);
    leaders
}

/// A node's CPUs that may be used, in this order.
pub(crate) fn of_node(machine: &Machine, allowed: &CpuSet, node: NodeId) -> Vec<CpuId> {
    let cpus = machine
        .node(node)
        .map(|node| node.known_cpus().intersection(allowed));
    in_order(machine, &cpus.unwrap_or_default())
}

/// The online nodes that have a CPU that may be used.
pub(crate) fn with_cpus(machine: &Machine, allowed: &CpuSet) -> Vec<NodeId> {
    let nodes = machine.online_nodes();
    let nodes = nodes.filter(|node| node.known_cpus().intersects(allowed));
    nodes.map(|node| node.id).collect()
}

fn leads(machine: &Machine, cpu: CpuId) -> bool {
    machine
        .cpu(cpu)
        .and_then(|cpu| cpu.core)
        .is_none_or(|core| core == cpu)
}

/// The CPU to measure from: the first of its core, and the highest of those, because interrupts gather on the low
/// ones.
fn best_cpu(machine: &Machine, usable: &[CpuId]) -> Option<CpuId> {
    let leaders = usable.iter().rev().find(|&&cpu| leads(machine, cpu));
    leaders.or(usable.last()).copied()
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{Cpu, Known, Memory, Node, Origin, SourceKind};

    use super::*;

    /// Two nodes of two cores with two threads each (0-3, 4-7), and node 2 with memory only.
    fn machine() -> Machine {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        for cpu in 0..8u32 {
            let core = Some(CpuId(cpu & !1));
            machine.cpus.push(Cpu {
                core,
                ..Cpu::new(CpuId(cpu), Some(NodeId(cpu / 4)))
            });
        }
        machine.cpu_states.online = CpuSet::range(CpuId(0), CpuId(7));
        machine.nodes = vec![
            Node::new(NodeId(0), CpuSet::range(CpuId(0), CpuId(3))),
            Node {
                memory: Known::Yes(Memory::of(0)),
                ..Node::new(NodeId(1), CpuSet::range(CpuId(4), CpuId(7)))
            },
            Node::new(NodeId(2), CpuSet::new()),
        ];
        assert!(machine.check().is_empty());
        machine
    }

    fn all_of(machine: &Machine, allowed: &CpuSet) -> NodeSelection {
        select(machine, allowed, &ProbeOptions::default()).unwrap()
    }

    fn measuring(selection: &NodeSelection) -> Vec<(NodeId, CpuId)> {
        selection
            .sources
            .iter()
            .map(|source| (source.node, source.cpu))
            .collect()
    }

    #[test]
    fn memory_of_a_device_is_measured_only_where_it_is_named() {
        let mut machine = machine();
        machine.nodes[2].generic_initiator = true;
        let allowed = CpuSet::range(CpuId(0), CpuId(7));
        let selection = all_of(&machine, &allowed);
        assert_eq!(selection.memory, [NodeId(0)]);
        let [skipped] = &selection.skipped[..] else {
            panic!("{:?}", selection.skipped)
        };
        assert_eq!(skipped.memory_node, Some(NodeId(2)));
        assert_eq!(
            skipped.reason,
            "its memory is a device's: --to 2 measures it"
        );
        let options = ProbeOptions {
            to: nodes("2"),
            ..ProbeOptions::default()
        };
        let named = select(&machine, &allowed, &options).unwrap();
        assert_eq!((named.memory, named.skipped.len()), (vec![NodeId(2)], 0));
    }

    fn nodes(list: &str) -> Option<NodeSet> {
        Some(NodeSet::parse_list(list).unwrap())
    }

    #[test]
    fn the_highest_core_leader_measures() {
        let selection = all_of(&machine(), &CpuSet::range(CpuId(0), CpuId(7)));
        assert_eq!(
            measuring(&selection),
            [(NodeId(0), CpuId(2)), (NodeId(1), CpuId(6))]
        );
        assert_eq!(
            selection.memory,
            [NodeId(0), NodeId(2)],
            "node 1 has no memory, node 2's is unknown"
        );
    }

    #[test]
    fn isolated_cpus_measure_only_when_there_is_no_other() {
        let mut machine = machine();
        machine.cpu_states.isolated = Known::Yes(CpuSet::parse_list("2-7").unwrap());
        let selection = all_of(&machine, &CpuSet::range(CpuId(0), CpuId(7)));
        assert_eq!(
            measuring(&selection),
            [(NodeId(0), CpuId(0)), (NodeId(1), CpuId(6))]
        );
    }

    #[test]
    fn a_node_outside_the_cpuset_is_skipped_with_the_reason() {
        let selection = all_of(&machine(), &CpuSet::single(CpuId(1)));
        assert_eq!(measuring(&selection), [(NodeId(0), CpuId(1))]);
        assert_eq!(selection.skipped.len(), 1);
        assert!(
            selection.skipped[0].reason.contains("4-7"),
            "{}",
            selection.skipped[0].reason
        );
    }

    #[test]
    fn each_core_gives_a_cpu_before_its_sibling_does() {
        let selection = all_of(&machine(), &CpuSet::range(CpuId(0), CpuId(7)));
        assert_eq!(selection.sources[0].all, [0, 2, 1, 3].map(CpuId));
    }

    #[test]
    fn nodes_that_were_asked_for_are_measured_and_no_others() {
        let options = ProbeOptions {
            from: nodes("1"),
            to: nodes("0"),
            ..ProbeOptions::default()
        };
        let selection = select(&machine(), &CpuSet::range(CpuId(0), CpuId(7)), &options).unwrap();
        assert_eq!(measuring(&selection), [(NodeId(1), CpuId(6))]);
        assert_eq!(selection.memory, [NodeId(0)]);
    }

    #[test]
    fn a_node_that_lacks_what_it_was_asked_for_is_named() {
        let refusal = |options: ProbeOptions| match select(
            &machine(),
            &CpuSet::range(CpuId(0), CpuId(7)),
            &options,
        ) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{options:?} cannot be measured"),
        };
        let cases = [
            (
                ProbeOptions {
                    from: nodes("0,2"),
                    ..ProbeOptions::default()
                },
                "node 2 has no CPU",
                "0-1",
            ),
            (
                ProbeOptions {
                    to: nodes("1"),
                    ..ProbeOptions::default()
                },
                "node 1 has no memory",
                "0,2",
            ),
            (
                ProbeOptions {
                    to: nodes("5"),
                    ..ProbeOptions::default()
                },
                "no node 5",
                "0-2",
            ),
            (
                ProbeOptions {
                    from: nodes("9"),
                    ..ProbeOptions::default()
                },
                "no node 9",
                "0-2",
            ),
        ];
        for (options, names, offers) in cases {
            let message = refusal(options);
            assert!(
                message.contains(names) && message.contains(offers),
                "{message}"
            );
        }
    }
}
