//! Which CPU serves queue 0, 1, 2 ... of a device.
//!
//! Nearest first is what `cpumask_local_spread()` (lib/cpumask.c) does since Linux 6.3; drivers ask it for one CPU a
//! queue. The worked example is a machine of 4 nodes with 24 CPUs each and a device on node 2, at distances 32, 25, 10
//! and 16 from nodes 0 to 3:
//!
//! ```text
//! queue            0 .. 23   24 .. 47   48 .. 71   72 .. 95   96 ..
//! nearest first    48 .. 71  72 .. 95   24 .. 47    0 .. 23   48 ..
//! before 6.3       48 .. 71   0 .. 23   24 .. 47   72 .. 95   48 ..
//! ```
//!
//! From a node without CPUs the kernel goes by the distances of the node that [`start`] names. tests/kernel_spread holds
//! all of this to a replica of the kernel's functions.

use nearfar_machine::{CpuId, CpuSet, Distance, Machine, NodeId, NodeSet};
use serde::Serialize;

use crate::near::{self, Ring};

/// More queues than any device has; a bound on what a mistyped number allocates.
pub const MOST_QUEUES: usize = 1 << 20;

/// The rule by which CPUs are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The node's own CPUs, then those of the other nodes by distance; CPU number within equal distance. Nodes at
    /// distance 10 of each other are one.
    #[default]
    NearestFirst,
    /// As the kernel did before 6.3: the node's own CPUs, then every other online CPU from 0 up. It considered neither
    /// isolation nor cores, so isolated CPUs always take part and [`SpreadRequest::cores_first`] is an error.
    #[serde(rename = "kernel-pre-6.3")]
    KernelPre63,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpreadRequest {
    /// The node the device is on; without one the spread goes in CPU order.
    pub node: Option<NodeId>,
    /// Number of queues, at most [`MOST_QUEUES`].
    pub count: usize,
    pub policy: Policy,
    /// One CPU of each core before SMT siblings get a queue, among the CPUs at one distance: a sibling on the node
    /// is still preferred to an idle core further away.
    pub cores_first: bool,
    /// Only these CPUs.
    pub allowed: Option<CpuSet>,
    /// Also CPUs that `isolcpus=` or `nohz_full=` keep free of housekeeping.
    pub isolated_too: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Slot {
    /// From 0.
    pub queue: usize,
    pub cpu: CpuId,
    /// The node of that CPU; of several fake nodes that share it, the nearest one.
    pub node: Option<NodeId>,
    /// From the device's node to the CPU's; unknown without a node, or where no table gives it.
    pub distance: Option<Distance>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpreadError {
    #[error("there is no node {node}; nodes that are online: {online}")]
    UnknownNode {
        node: NodeId,
        /// What could be asked for.
        online: NodeSet,
    },
    #[error("node {node} is not online; {}", advise(.nearest))]
    OfflineNode {
        node: NodeId,
        /// The online node nearest to it, where a table (the firmware's) gives distances for it.
        nearest: Option<(NodeId, Distance)>,
    },
    #[error("cannot order CPUs by their distance from node {node}: {reason}")]
    UnknownCpus {
        node: NodeId,
        /// Which nodes, or whose CPUs, are unknown and why.
        reason: String,
    },
    #[error(
        "no usable CPU: {online} are online, {kept_free} are kept free of housekeeping, {allowed} are allowed"
    )]
    NoCpus {
        /// CPUs that are online.
        online: String,
        /// CPUs that are isolated or tickless, where they were left out.
        kept_free: String,
        /// The caller's list.
        allowed: String,
    },
    #[error("{count} queues are more than the {MOST_QUEUES} this version spreads")]
    TooMany { count: usize },
    #[error(
        "the kernel's rule before 6.3 took CPUs by number: it cannot take one CPU per core first"
    )]
    CoresFirst,
}

fn advise(nearest: &Option<(NodeId, Distance)>) -> String {
    match nearest {
        Some((node, distance)) => {
            format!(
                "the online node nearest to it by the firmware's distances is {node} ({distance}): ask for that"
            )
        }
        None => "no table has the online node nearest to it".to_owned(),
    }
}

/// The CPUs of queue 0 to `count - 1`. When every usable CPU has a queue it begins again with the first.
///
/// Nodes without CPUs are passed over; from one of them the order is that of the node that [`start`] names. CPUs that are
/// on no node come last.
///
/// # Errors
/// For a node that is unknown or not online, where the CPUs of a node are unknown, when no CPU is usable, and for
/// requests that make no sense.
pub fn spread(machine: &Machine, request: &SpreadRequest) -> Result<Vec<Slot>, SpreadError> {
    check(machine, request)?;
    let usable = usable(machine, request)?;
    let rings = match request.policy {
        Policy::NearestFirst => near::hops(
            machine,
            request
                .node
                .map(|node| start(machine, node).unwrap_or(node)),
            &usable,
        ),
        Policy::KernelPre63 => local_then_the_rest(machine, request.node, &usable),
    };
    let mut window: Vec<Slot> = Vec::with_capacity(request.count.min(usable.len()));
    for ring in &rings {
        if window.len() >= request.count {
            break;
        }
        window.extend(slots(machine, request, ring));
    }
    Ok((0..request.count)
        .zip(window.iter().cycle())
        .map(|(queue, slot)| Slot { queue, ..*slot })
        .collect())
}

/// The node from which the kernel orders the CPUs for a device on `node`: that one where it has CPUs online, else the
/// nearest that has, the lowest number among equals (`numa_nearest_node(node, N_CPU)` in mm/mempolicy.c, which
/// `sched_numa_find_nth_cpu()` asks since Linux 6.7; 6.3 to 6.6 had no answer for such a node). Nothing where no node that
/// has some is at a known distance.
pub fn start(machine: &Machine, node: NodeId) -> Option<NodeId> {
    let has_cpus = |node: NodeId| {
        machine.node(node).is_some_and(|listed| {
            listed.online && listed.known_cpus().intersects(&machine.cpu_states.online)
        })
    };
    if has_cpus(node) {
        return Some(node);
    }
    let mut others = near::nodes_by_distance(machine, node).into_iter();
    others
        .find(|&(other, distance)| distance.is_some() && has_cpus(other))
        .map(|(other, _)| other)
}

fn check(machine: &Machine, request: &SpreadRequest) -> Result<(), SpreadError> {
    if request.count > MOST_QUEUES {
        return Err(SpreadError::TooMany {
            count: request.count,
        });
    }
    if request.cores_first && request.policy == Policy::KernelPre63 {
        return Err(SpreadError::CoresFirst);
    }
    let Some(node) = request.node else {
        return Ok(());
    };
    if let Some(reason) = machine.cpu_nodes_unknown_reason() {
        return Err(SpreadError::UnknownCpus { node, reason });
    }
    match machine.node(node) {
        Some(listed) if listed.online => Ok(()),
        Some(_) => Err(SpreadError::OfflineNode {
            node,
            nearest: near::nearest_online(machine, node),
        }),
        None => Err(SpreadError::UnknownNode {
            node,
            online: machine.online_node_set(),
        }),
    }
}

/// The CPUs that take part.
fn usable(machine: &Machine, request: &SpreadRequest) -> Result<CpuSet, SpreadError> {
    let all = request.isolated_too || request.policy == Policy::KernelPre63;
    let states = &machine.cpu_states;
    let candidates = if all {
        states.online.clone()
    } else {
        states.housekeeping()
    };
    let usable = match &request.allowed {
        Some(allowed) => candidates.intersection(allowed),
        None => candidates,
    };
    if !usable.is_empty() {
        return Ok(usable);
    }
    let or_none = |set: CpuSet| {
        if set.is_empty() {
            "none".to_owned()
        } else {
            set.to_string()
        }
    };
    Err(SpreadError::NoCpus {
        online: or_none(states.online.clone()),
        kept_free: or_none(if all {
            CpuSet::new()
        } else {
            states.kept_free()
        }),
        allowed: request
            .allowed
            .clone()
            .map_or_else(|| "all".to_owned(), or_none),
    })
}

/// The rings of the old rule: the node, and everything else.
fn local_then_the_rest(machine: &Machine, node: Option<NodeId>, usable: &CpuSet) -> Vec<Ring> {
    let local = node
        .and_then(|node| machine.node(node))
        .map(|node| node.known_cpus().intersection(usable))
        .unwrap_or_default();
    let mut rings = near::rings(machine, None, &usable.difference(&local));
    if !local.is_empty() {
        rings.insert(
            0,
            Ring {
                distance: None,
                cpus: local.clone(),
                nodes: vec![(node, local)],
            },
        );
    }
    rings
}

fn slots(machine: &Machine, request: &SpreadRequest, ring: &Ring) -> impl Iterator<Item = Slot> {
    near::in_order(machine, ring, request.cores_first)
        .into_iter()
        .map(|cpu| {
            let node = ring.node_of(cpu);
            // From the device's node, wherever the order began.
            let distance = request
                .node
                .zip(node)
                .and_then(|(from, to)| machine.distance(from, to));
            Slot {
                queue: 0,
                cpu,
                node,
                distance,
            }
        })
}
