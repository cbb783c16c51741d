//! The order of nodes as seen from one of them.
//!
//! ```text
//! from node 2:   0   1   2   3        2, 3, 1, 0
//!               32  25  10  16
//! ```

use nearfar_machine::{Distance, Machine, NodeId};

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
pub fn nearest_online(machine: &Machine, from: NodeId) -> Option<(NodeId, Distance)> {
    let (node, distance) = nodes_by_distance(machine, from).into_iter().next()?;
    Some((node, distance?))
}
