//! Nodes in their order as seen from one of them, and CPUs in rings around it: what spreads, audit rules and plans have in common.
//!
//! ```text
//! from node 2:   ring 0   10   CPUs 48-71      the node itself
//!                ring 1   16   CPUs 72-95
//!                ring 2   25   CPUs 24-47
//!                ring 3   32   CPUs 0-23
//! ```
//!
//! A ring holds every CPU at one distance, whichever node it is on: within a ring CPUs count by number, as in the
//! kernel's `sched_numa_find_nth_cpu()`. A CPU that several fake nodes share is in the nearest of their rings only.

use std::collections::HashMap;

use nearfar_machine::{CpuId, CpuSet, Distance, Machine, NodeId};

/// CPUs that are equally far.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    /// Unknown where no table gives a distance, and for CPUs that are on no node.
    pub distance: Option<Distance>,
    /// Never empty.
    pub cpus: CpuSet,
    /// The nodes these CPUs were reached through, with their share of the ring.
    pub nodes: Vec<(Option<NodeId>, CpuSet)>,
}

impl Ring {
    /// The node through which a CPU of this ring was reached.
    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.nodes
            .iter()
            .find(|(_, cpus)| cpus.contains(cpu))
            .and_then(|&(node, _)| node)
    }

    /// Takes another ring in.
    pub fn absorb(&mut self, other: Self) {
        self.cpus = self.cpus.union(&other.cpus);
        self.nodes.extend(other.nodes);
    }
}

/// The usable CPUs in rings around a node, nearest first; without a node, all of them in one ring. The node itself is a
/// ring of its own even where others are said to be as near.
pub(crate) fn rings(machine: &Machine, from: Option<NodeId>, usable: &CpuSet) -> Vec<Ring> {
    from.map_or_else(
        || everywhere(machine, usable),
        |from| around(machine, from, usable, true),
    )
}

/// The online CPUs that are nearest to a node: its own and those at the same distance, where it has none those of the nearest nodes.
/// Each interrupt of a device on the node that one of them serves is near.
pub fn nearest_cpus(machine: &Machine, node: NodeId) -> CpuSet {
    let rings = rings(machine, Some(node), &machine.cpu_states.online);
    let nearest = rings.first().map(|ring| ring.distance);
    let is_as_near = |ring: &&Ring| ring.distance.is_some() && Some(ring.distance) == nearest;
    let others = rings.iter().skip(1).filter(is_as_near);
    let near = rings.iter().take(1).chain(others);
    near.fold(CpuSet::new(), |near, ring| near.union(&ring.cpus))
}

/// The same as the kernel's hops (`sched_init_numa()` in kernel/sched/topology.c): a node at distance 10 is in the hop of
/// the node itself.
pub(crate) fn hops(machine: &Machine, from: Option<NodeId>, usable: &CpuSet) -> Vec<Ring> {
    from.map_or_else(
        || everywhere(machine, usable),
        |from| around(machine, from, usable, false),
    )
}

fn around(machine: &Machine, from: NodeId, usable: &CpuSet, alone: bool) -> Vec<Ring> {
    let mut left = usable.clone();
    let mut rings: Vec<Ring> = Vec::new();
    for (node, distance) in nodes_by_distance(machine, from) {
        let Some(listed) = machine.node(node) else {
            continue;
        };
        let cpus = listed.known_cpus().intersection(&left);
        if cpus.is_empty() {
            continue;
        }
        left = left.difference(&cpus);
        let joins = |ring: &&mut Ring| {
            ring.distance == distance
                && !(alone && ring.nodes.iter().any(|(node, _)| *node == Some(from)))
        };
        let ring = Ring {
            distance,
            cpus: cpus.clone(),
            nodes: vec![(Some(node), cpus)],
        };
        match rings.last_mut().filter(joins) {
            Some(last) => last.absorb(ring),
            None => rings.push(ring),
        }
    }
    if !left.is_empty() {
        rings.push(Ring {
            distance: None,
            cpus: left.clone(),
            nodes: vec![(None, left)],
        });
    }
    rings
}

fn everywhere(machine: &Machine, usable: &CpuSet) -> Vec<Ring> {
    if usable.is_empty() {
        return Vec::new();
    }
    let mut left = usable.clone();
    let mut nodes = Vec::new();
    for node in machine.online_nodes() {
        let cpus = node.known_cpus().intersection(&left);
        left = left.difference(&cpus);
        nodes.push((Some(node.id), cpus));
    }
    nodes.push((None, left));
    nodes.retain(|(_, cpus)| !cpus.is_empty());
    vec![Ring {
        distance: None,
        cpus: usable.clone(),
        nodes,
    }]
}

/// The CPUs of a ring in the order in which they get work: by number or, with `cores_first`, one of each core by
/// number, then the second of each core, and so on.
pub(crate) fn in_order(machine: &Machine, ring: &Ring, cores_first: bool) -> Vec<CpuId> {
    let mut cpus: Vec<CpuId> = ring.cpus.iter().collect();
    if cores_first {
        let mut seen: HashMap<CpuId, usize> = HashMap::new();
        cpus.sort_by_cached_key(|&cpu| {
            // A CPU whose core is unknown counts as a core of its own.
            let core = machine.cpu(cpu).and_then(|cpu| cpu.core).unwrap_or(cpu);
            let rank = seen.entry(core).or_default();
            *rank += 1;
            (*rank, cpu)
        });
    }
    cpus
}

/// The online nodes, nearest first: `from` itself, then by what a CPU of `from` pays for their memory (its row of the
/// table; the columns of an asymmetric one say something else), equal distances by node number, and nodes to which
/// no table gives a distance last.
///
/// `from` leads even where a table claims something nearer: firmware that says so is wrong, and with a table that says
/// 10 everywhere the number of a node would decide. It need not be online, and then is not in the answer.
pub fn nodes_by_distance(machine: &Machine, from: NodeId) -> Vec<(NodeId, Option<Distance>)> {
    let mut nodes: Vec<_> = machine
        .online_nodes()
        .map(|node| (node.id, machine.distance(from, node.id)))
        .collect();
    nodes.sort_unstable_by_key(|&(node, distance)| {
        (node != from, distance.is_none(), distance, node)
    });
    nodes
}

/// The online node nearest to `from` to which a distance is known, with that distance; itself where it is online.
pub(crate) fn nearest_online(machine: &Machine, from: NodeId) -> Option<(NodeId, Distance)> {
    let (node, distance) = nodes_by_distance(machine, from).into_iter().next()?;
    Some((node, distance?))
}
