//! Which CPUs servers, clients and queues are on.

use std::collections::BTreeMap;

use nearfar_experiment::BoxError;
use nearfar_machine::{CpuId, CpuSet, Machine, NodeId, NodeSet};
use nearfar_placement::spread::{Policy, SpreadRequest, spread};

use crate::node_selection::in_order;

/// The two nodes that have servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Nodes {
    /// The card's; without a card, the first one with CPUs.
    pub(super) card: NodeId,
    /// The nearest other one with CPUs; `None` on a machine with one node.
    pub(super) adjacent: Option<NodeId>,
}

impl Nodes {
    /// Those that were asked for, else around the card's node.
    pub(super) fn choose(
        machine: &Machine,
        allowed: &CpuSet,
        asked: &[NodeId],
        card: Option<NodeId>,
    ) -> Result<Self, String> {
        let usable = machine
            .nodes
            .iter()
            .filter(|it| it.online && it.known_cpus().intersects(allowed));
        let usable: Vec<NodeId> = usable.map(|node| node.id).collect();
        let all = || NodeSet::from_iter(usable.iter().copied());
        if let Some(node) = asked.iter().find(|node| !usable.contains(node)) {
            return Err(format!(
                "node {node} has no CPU that this process may use; nodes with one: {}",
                all()
            ));
        }
        let near_card = |card: NodeId| {
            let by_distance =
                |node: &NodeId| machine.distance(card, *node).map_or(u32::MAX, |it| it.0);
            usable.iter().copied().min_by_key(by_distance)
        };
        let first = asked.first().copied();
        let first = first
            .or_else(|| card.and_then(near_card))
            .or(usable.first().copied());
        let first = first.ok_or("no node has a CPU that this process may use")?;
        let others = usable.iter().copied().filter(|&node| node != first);
        let distance = |node: &NodeId| machine.distance(first, *node).map_or(u32::MAX, |it| it.0);
        Ok(Self {
            card: first,
            adjacent: asked
                .get(1)
                .copied()
                .or_else(|| others.min_by_key(distance)),
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = NodeId> {
        [Some(self.card), self.adjacent].into_iter().flatten()
    }
}

/// A node's CPUs that may be used, one of each core first.
pub(super) fn of_node(machine: &Machine, allowed: &CpuSet, node: NodeId) -> Vec<CpuId> {
    let cpus = machine
        .node(node)
        .map(|node| node.known_cpus().intersection(allowed));
    in_order(machine, &cpus.unwrap_or_default())
}

/// A CPU for the clients: one that neither a server nor, if there is a choice, a queue is on. Whether there is one.
pub(super) fn for_clients(allowed: &CpuSet, servers: &CpuSet, queues: &CpuSet) -> (CpuSet, bool) {
    let free = allowed.difference(servers);
    let quiet = free.difference(queues);
    let last = [&quiet, &free, allowed]
        .into_iter()
        .find_map(|cpus| cpus.last());
    (last.into_iter().collect(), !free.is_empty())
}

/// The CPU of each queue, of as many as `count`; what follows begins again with the first.
pub(super) fn queues(
    machine: &Machine,
    node: NodeId,
    policy: Policy,
    count: usize,
) -> Result<Vec<CpuId>, BoxError> {
    let request = SpreadRequest {
        node: Some(node),
        count,
        policy,
        ..SpreadRequest::default()
    };
    Ok(spread(machine, &request)?
        .iter()
        .map(|slot| slot.cpu)
        .collect())
}

/// The queues whose CPU is on each node when they are spread nearest first: those that a node's servers are given.
pub(super) fn shares(
    machine: &Machine,
    queues: impl Iterator<Item = u32>,
    nearest: &[CpuId],
) -> BTreeMap<NodeId, Vec<u32>> {
    let mut shares: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
    for (queue, &cpu) in queues.zip(nearest.iter().cycle()) {
        if let Some(node) = machine.cpu(cpu).and_then(|cpu| cpu.node) {
            shares.entry(node).or_default().push(queue);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::machine_of_four_nodes as machine;

    /// Four nodes of four CPUs; from node 2 the nearest is 3, then 1, then 0.
    #[test]
    fn the_queues_of_the_published_case_are_on_the_adjacent_node_only_after() {
        let machine = machine();
        let at = |policy| queues(&machine, NodeId(2), policy, 8).unwrap();
        let numbers = |cpus: Vec<CpuId>| cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>();
        assert_eq!(numbers(at(Policy::KernelPre63)), [8, 9, 10, 11, 0, 1, 2, 3]);
        assert_eq!(
            numbers(at(Policy::NearestFirst)),
            [8, 9, 10, 11, 12, 13, 14, 15]
        );
        let shares = shares(&machine, 0..16, &at(Policy::NearestFirst));
        assert_eq!(shares[&NodeId(3)], [4, 5, 6, 7, 12, 13, 14, 15]);
    }

    #[test]
    fn servers_are_on_the_cards_node_and_the_nearest_other() {
        let machine = machine();
        let allowed: CpuSet = (0..16).map(CpuId).collect();
        let choose = |asked: &[NodeId], card| Nodes::choose(&machine, &allowed, asked, card);
        let nodes = |card, adjacent| Nodes {
            card: NodeId(card),
            adjacent: Some(NodeId(adjacent)),
        };
        assert_eq!(choose(&[], Some(NodeId(2))), Ok(nodes(2, 3)));
        assert_eq!(choose(&[], None), Ok(nodes(0, 1)));
        assert_eq!(
            choose(&[NodeId(1), NodeId(3)], Some(NodeId(2))),
            Ok(nodes(1, 3))
        );
        assert!(
            choose(&[NodeId(7)], None)
                .unwrap_err()
                .contains("nodes with one: 0-3")
        );
    }

    #[test]
    fn clients_are_where_nothing_is_measured() {
        let set = |range: std::ops::Range<u32>| range.map(CpuId).collect::<CpuSet>();
        assert_eq!(
            for_clients(&set(0..8), &set(4..8), &set(0..2)),
            (set(3..4), true)
        );
        assert_eq!(
            for_clients(&set(0..8), &set(4..8), &set(0..4)),
            (set(3..4), true)
        );
        assert_eq!(
            for_clients(&set(0..1), &set(0..1), &set(0..0)),
            (set(0..1), false)
        );
    }
}
