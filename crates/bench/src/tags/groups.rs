//! The nodes and CPUs of the two groups of workers.

use nearfar_machine::{CpuId, CpuSet, Machine, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use super::DISTANCE;
use crate::node_selection::{of_node, with_cpus};

/// Where the other group of workers is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Distance {
    /// On the node nearest to the device's.
    Near,
    /// On the most distant node.
    Far,
    /// There is none, and one worker on the device's node.
    Alone,
}

impl Distance {
    pub(super) fn of(level: &str) -> Option<Self> {
        match level {
            "near" => Some(Self::Near),
            "far" => Some(Self::Far),
            "alone" => Some(Self::Alone),
            _ => None,
        }
    }
}

/// The node of the device, and those of the other group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Nodes {
    pub(super) device: NodeId,
    near: Option<NodeId>,
    far: Option<NodeId>,
    /// Why there is no near or far node.
    reason: String,
}

/// A node that is not one for the device.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NodeError {
    #[error("node {node} has no CPU that this process may use; nodes with one: {nodes}")]
    WithoutCpus { node: NodeId, nodes: NodeSet },
    #[error("no node has a CPU that this process may use")]
    NoCpus,
}

impl Nodes {
    /// The nodes for a device on `asked`; by default on a node that has an adjacent and a most distant one.
    pub(super) fn choose(
        machine: &Machine,
        allowed: &CpuSet,
        asked: Option<NodeId>,
    ) -> Result<Self, NodeError> {
        let nodes = with_cpus(machine, allowed);
        if let Some(node) = asked {
            let with_cpus = || NodeSet::from_iter(nodes.iter().copied());
            return match nodes.contains(&node) {
                true => Ok(Self::around(machine, &nodes, node)),
                false => Err(NodeError::WithoutCpus {
                    node,
                    nodes: with_cpus(),
                }),
            };
        }
        let all = nodes
            .iter()
            .map(|&node| Self::around(machine, &nodes, node));
        // The first of the best.
        let best = all
            .rev()
            .max_by_key(|it| (it.far.is_some(), it.near.is_some()));
        best.ok_or(NodeError::NoCpus)
    }

    fn around(machine: &Machine, nodes: &[NodeId], device: NodeId) -> Self {
        let others = nodes.iter().copied().filter(|&node| node != device);
        let mut others: Vec<(u32, NodeId)> = others
            .filter_map(|node| Some((machine.distance(node, device)?.0, node)))
            .collect();
        others.sort_unstable();
        let near = others.first().copied();
        let far = others
            .iter()
            .rev()
            .take_while(|(distance, _)| near.is_some_and(|near| near.0 < *distance));
        let longest = others.last().map(|last| last.0);
        let far = far
            .filter(|(distance, _)| Some(*distance) == longest)
            .last();
        let reason = match near {
            None => format!("no other node with CPUs has a distance to node {device}"),
            Some((distance, _)) => {
                format!("all other nodes with CPUs are at distance {distance} from node {device}")
            }
        };
        Self {
            device,
            near: near.map(|near| near.1),
            far: far.map(|far| far.1),
            reason,
        }
    }

    /// The node of the other group, `None` where there is no such group.
    ///
    /// # Errors
    /// Why the machine has no such node.
    pub(super) fn other(&self, distance: Distance) -> Result<Option<NodeId>, &str> {
        let node = match distance {
            Distance::Alone => return Ok(None),
            Distance::Near => self.near,
            Distance::Far => self.far,
        };
        node.map(Some).ok_or(&self.reason)
    }

    /// The workers, as many in each group: up to `workers`, as many as fit.
    ///
    /// # Errors
    /// Why the machine has no such node.
    pub(super) fn groups(
        &self,
        machine: &Machine,
        allowed: &CpuSet,
        distance: Distance,
        workers: usize,
    ) -> Result<Groups, &str> {
        let other_node = self.other(distance)?;
        let mut device_cpus = of_node(machine, allowed, self.device);
        let mut other_cpus = other_node.map_or_else(Vec::new, |it| of_node(machine, allowed, it));
        let workers = match other_node {
            Some(_) => workers.min(device_cpus.len()).min(other_cpus.len()),
            None => 1,
        };
        let interrupt_cpu = device_cpus.get(workers).copied();
        device_cpus.truncate(workers);
        other_cpus.truncate(workers);
        Ok(Groups {
            interrupt_cpu,
            device_node: self.device,
            device_cpus,
            other_node,
            other_cpus,
        })
    }
}

/// Where the workers of a sample were, one on each CPU, in the order in which they are numbered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Groups {
    pub device_node: NodeId,
    pub device_cpus: Vec<CpuId>,
    /// The node of the other group; `None` where a worker is alone.
    pub other_node: Option<NodeId>,
    pub other_cpus: Vec<CpuId>,
    /// A CPU of the device's node without a worker, for its interrupts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_cpu: Option<CpuId>,
}

impl Groups {
    #[cfg(test)]
    pub(super) fn alone(device_node: NodeId, cpu: CpuId) -> Self {
        Self {
            device_node,
            device_cpus: vec![cpu],
            other_node: None,
            other_cpus: Vec::new(),
            interrupt_cpu: None,
        }
    }

    /// The workers' CPUs, those on the device's node first.
    pub(super) fn workers(&self) -> Vec<CpuId> {
        [self.device_cpus.as_slice(), &self.other_cpus].concat()
    }

    /// Of each worker, whether its CPU shares a last-level cache with the one that takes the device's interrupts.
    pub(super) fn near_interrupts(&self, machine: &Machine) -> Vec<bool> {
        let cache = self
            .interrupt_cpu
            .and_then(|cpu| machine.last_level_cache(cpu));
        let shares = |cpu| cache.is_some_and(|cache| cache.cpus.contains(cpu));
        self.workers().into_iter().map(shares).collect()
    }
}

/// Where the workers of a run were, by the level of the factor distance, in the order of its samples. More than one of a level where
/// samples were taken on several machines. Samples of versions that did not store it have none.
pub fn groups(samples: &[nearfar_runs::Sample]) -> Vec<(String, Groups)> {
    let mut all = Vec::new();
    for sample in samples {
        let groups = sample.detail.get("groups").map(Groups::deserialize);
        if let Some(Ok(groups)) = groups {
            let found = (sample.cell.text(DISTANCE), groups);
            if !all.contains(&found) {
                all.push(found);
            }
        }
    }
    all
}

#[cfg(test)]
pub(super) mod tests {
    use nearfar_machine::{
        Cpu, Distance as D, DistanceOrigin, Distances, Known, Node, Origin, SourceKind,
    };

    use super::*;

    /// Four nodes of four CPUs, two to a core.
    pub(crate) fn machine() -> Machine {
        of_rows(&[
            [10, 16, 25, 28],
            [16, 10, 22, 25],
            [25, 22, 10, 16],
            [28, 25, 16, 10],
        ])
    }

    fn of_rows<const N: usize>(rows: &[[u32; N]]) -> Machine {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        for cpu in 0..4 * N as u32 {
            machine.cpus.push(Cpu {
                core: Some(CpuId(cpu & !1)),
                ..Cpu::new(CpuId(cpu), Some(NodeId(cpu / 4)))
            });
        }
        machine.cpu_states.online = CpuSet::range(CpuId(0), CpuId(4 * N as u32 - 1));
        let nodes: Vec<NodeId> = (0..N as u32).map(NodeId).collect();
        machine.nodes = nodes
            .iter()
            .map(|&id| Node::new(id, CpuSet::range(CpuId(4 * id.0), CpuId(4 * id.0 + 3))))
            .collect();
        let rows = rows
            .iter()
            .map(|row| row.iter().map(|&it| Some(D(it))).collect());
        let distances = Distances::from_rows(DistanceOrigin::Kernel, nodes, rows.collect());
        machine.distances = Known::Yes(distances.unwrap());
        machine
    }

    fn chosen(machine: &Machine, asked: Option<u32>) -> Result<Nodes, NodeError> {
        Nodes::choose(machine, &machine.cpu_states.online, asked.map(NodeId))
    }

    #[test]
    fn the_groups_are_on_the_nearest_and_the_most_distant_node() {
        let machine = machine();
        let nodes = chosen(&machine, Some(1)).unwrap();
        assert_eq!(nodes.other(Distance::Near), Ok(Some(NodeId(0))));
        assert_eq!(nodes.other(Distance::Far), Ok(Some(NodeId(3))));
        let cpus = |distance, workers| {
            let groups = nodes.groups(&machine, &machine.cpu_states.online, distance, workers);
            let cpus = groups.unwrap().workers();
            cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>()
        };
        assert_eq!(cpus(Distance::Far, 3), [4, 6, 5, 12, 14, 13]);
        assert_eq!(cpus(Distance::Near, 9), [4, 6, 5, 7, 0, 2, 1, 3]);
        assert_eq!(cpus(Distance::Alone, 9), [4]);
    }

    #[test]
    fn groups_are_equal_where_a_node_has_fewer_cpus_that_may_be_used() {
        let machine = machine();
        let allowed = CpuSet::range(CpuId(0), CpuId(4));
        let nodes = Nodes::choose(&machine, &allowed, None).unwrap();
        let groups = nodes.groups(&machine, &allowed, Distance::Near, 4);
        let expected = Groups {
            device_node: NodeId(0),
            device_cpus: vec![CpuId(0)],
            other_node: Some(NodeId(1)),
            other_cpus: vec![CpuId(4)],
            interrupt_cpu: Some(CpuId(2)),
        };
        assert_eq!(groups, Ok(expected));
        assert!(
            nodes
                .other(Distance::Far)
                .unwrap_err()
                .contains("distance 16")
        );
    }

    #[test]
    fn one_node_has_neither_group_and_no_other_node_is_one_for_the_device() {
        let machine = of_rows(&[[10]]);
        let nodes = chosen(&machine, None).unwrap();
        for distance in [Distance::Near, Distance::Far] {
            assert!(nodes.other(distance).unwrap_err().contains("no other node"));
        }
        assert_eq!(nodes.other(Distance::Alone), Ok(None));
        let error = chosen(&machine, Some(7)).unwrap_err().to_string();
        assert!(
            error.contains("node 7") && error.ends_with(": 0"),
            "{error}"
        );
    }

    #[test]
    fn the_device_is_by_default_where_near_and_far_differ() {
        let machine = of_rows(&[[10, 20, 20], [20, 10, 30], [20, 30, 10]]);
        let nodes = chosen(&machine, None).unwrap();
        assert_eq!(nodes.device, NodeId(1));
    }
}
