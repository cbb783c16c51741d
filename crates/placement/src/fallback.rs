//! Where the CPUs of a node without memory get theirs: the kernel's fallback lists (`mm/page_alloc.c`).
//!
//! ```text
//! distances all 12:   node   0  1  2  3        node 0: first the lowest, node 1
//!                     memory -  x  x  -        node 3: node 2, because the list of node 0 begins with node 1 already
//! ```
//!
//! `find_next_best_node()` takes the node with the least sum of
//!
//! - the distance from the local node,
//! - 1 for a node with a lower number than the local one ("prefer the next node"),
//! - 1 for a node with CPUs (`PENALTY_FOR_NODE_WITH_CPUS`),
//!
//! of equal ones that with the least `node_load`, of these the lowest. `build_zonelists()` makes the list of each node, in
//! the order of their numbers, and adds to the `node_load` of the first node of each distance. What it adds depends on
//! the kernel ([`LOADS`]). x86 and arm64 make the lists before CPUs are in the nodes' masks (`numa_add_cpu()`), so that the
//! second 1 is added only after memory was plugged; powerpc has them there. Where a rule that the kernel may have followed
//! gives another node, the answer is all of them.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Distance, Machine, Node, NodeId, NodeSet};

use crate::path::Version;

/// What `build_zonelists()` does with the `node_load` of the first node of each distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    /// `node_load[node] = load`, where `load` begins with the number of nodes and decreases with each place in a list.
    Set,
    /// `node_load[node] += load`.
    Add,
    /// `node_load[node] += 1`.
    AddOne,
}

/// By the first series that has it, newest first: commits 37931324b1e6 ("mm/page_alloc: adding same penalty is enough
/// to get round-robin order") and 54d032ced983 ("mm/page_alloc: use accumulated load when building node fallback list").
const LOADS: [((u32, u32), Load); 3] = [
    ((5, 19), Load::AddOne),
    ((5, 16), Load::Add),
    ((0, 0), Load::Set),
];

/// The kernel's distance to another node that is in no table (`REMOTE_DISTANCE`).
const REMOTE: u32 = 20;

/// The nodes that CPUs get memory from first.
#[derive(Default)]
pub(crate) struct MemoryHomes {
    /// Of each online node without memory; the first by the newest rule. Empty where no other node has memory.
    others: BTreeMap<NodeId, Vec<NodeId>>,
}

impl MemoryHomes {
    pub fn of(machine: &Machine) -> Self {
        let (with, without): (Vec<_>, Vec<_>) = machine
            .online_nodes()
            .partition(|node| node.has_memory() != Some(false));
        let with: Vec<NodeId> = with.iter().map(|node| node.id).collect();
        let without: BTreeSet<NodeId> = without.iter().map(|node| node.id).collect();
        // Without a table each node is as near as any other, as far as is known.
        if machine.distances.get().is_none() {
            let others = without.into_iter().map(|node| (node, with.clone()));
            return Self {
                others: others.collect(),
            };
        }
        let mut homes = Self::default();
        for (load, with_cpus) in rules(machine) {
            let lists = Lists {
                machine,
                with: &with,
                load,
                with_cpus,
            };
            for (node, first) in lists.firsts(&without) {
                let found = homes.others.entry(node).or_default();
                found.extend(first.filter(|first| !found.contains(first)));
            }
        }
        homes
    }

    /// The node that a CPU of this node gets its memory from: itself, or what the newest kernel takes.
    pub fn home(&self, node: NodeId) -> NodeId {
        let first = self.others.get(&node).and_then(|others| others.first());
        first.copied().unwrap_or(node)
    }

    /// Every node that it may be; empty for a node with memory, and where no other has any.
    pub fn candidates(&self, node: NodeId) -> NodeSet {
        let others = self.others.get(&node).into_iter().flatten();
        others.copied().collect()
    }
}

/// The rules that the machine's kernel may have followed, newest first.
fn rules(machine: &Machine) -> impl Iterator<Item = (Load, bool)> + use<> {
    let release = machine.origin.kernel.get();
    let version = release.and_then(|release| Version::parse(release));
    let newest = version.is_some_and(|version| version.series >= LOADS[0].0);
    // A distribution's kernel with a lower number may have the commits of a higher one.
    let loads = &LOADS[..if newest { 1 } else { LOADS.len() }];
    let loads: Vec<Load> = loads.iter().map(|(_, load)| *load).collect();
    let masks = match machine.origin.architecture.get().map(String::as_str) {
        Some("ppc64le" | "ppc64") => &[true][..],
        _ => &[false, true],
    };
    masks
        .iter()
        .flat_map(move |&mask| loads.clone().into_iter().map(move |load| (load, mask)))
}

/// The lists by one rule.
struct Lists<'a> {
    machine: &'a Machine,
    /// Nodes with memory, ascending.
    with: &'a [NodeId],
    load: Load,
    /// Whether a node with CPUs counts one more.
    with_cpus: bool,
}

impl Lists<'_> {
    /// The first node with memory in the list of each of these nodes.
    fn firsts(&self, wanted: &BTreeSet<NodeId>) -> Vec<(NodeId, Option<NodeId>)> {
        let mut firsts = Vec::new();
        let mut tied = BTreeSet::new();
        for &local in wanted {
            let least = self.with.iter().map(|&node| self.sum(local, node)).min();
            let equal = |node: &&NodeId| Some(self.sum(local, **node)) == least;
            let mut equal = self.with.iter().filter(equal);
            match (equal.next(), equal.next()) {
                (_, Some(_)) => _ = tied.insert(local),
                (only, None) => firsts.push((local, only.copied())),
            }
        }
        firsts.extend(self.firsts_by_load(&tied));
        firsts
    }

    /// The same for nodes with several nearest ones: which is first depends on the lists of the nodes before.
    fn firsts_by_load(&self, wanted: &BTreeSet<NodeId>) -> Vec<(NodeId, Option<NodeId>)> {
        let mut loads: BTreeMap<NodeId, u32> = BTreeMap::new();
        let last = wanted.last().copied();
        let mut firsts = Vec::new();
        // Lists after the last wanted one change nothing. Since Linux 5.18 nodes that are not online have one, too.
        let locals = self.machine.nodes.iter();
        let locals = locals.filter(|node| node.online || self.load == Load::AddOne);
        for local in locals.map(|node| node.id) {
            if last.is_none_or(|last| local > last) {
                break;
            }
            let order = self.order(local, &loads);
            if wanted.contains(&local) {
                firsts.push((local, order.first().copied()));
            }
            self.add_loads(local, &order, &mut loads);
        }
        firsts
    }

    /// The nodes with memory in the order of a list: the local node first. What a list adds to `node_load` is of nodes that
    /// are in it already, so one sort gives the order of all calls of `find_next_best_node()`.
    fn order(&self, local: NodeId, loads: &BTreeMap<NodeId, u32>) -> Vec<NodeId> {
        let mut order = self.with.to_vec();
        order.sort_by_cached_key(|&node| {
            let load = loads.get(&node).copied().unwrap_or(0);
            (node != local, self.sum(local, node), load, node)
        });
        order
    }

    fn sum(&self, local: NodeId, node: NodeId) -> u32 {
        let has_cpus = |node: &Node| node.has_cpus() != Some(false);
        let penalty = self.with_cpus && self.machine.node(node).is_some_and(has_cpus);
        self.distance(local, node) + u32::from(node < local) + u32::from(penalty)
    }

    fn add_loads(&self, local: NodeId, order: &[NodeId], loads: &mut BTreeMap<NodeId, u32>) {
        let mut load = self.machine.online_nodes().count() as u32;
        // Until Linux 6.2 a node without memory had a place in its own list.
        load -= u32::from(order.first() != Some(&local));
        let mut previous = local;
        for &node in order {
            if self.distance(local, node) != self.distance(local, previous) {
                let entry = loads.entry(node).or_default();
                match self.load {
                    Load::Set => *entry = load,
                    Load::Add => *entry += load,
                    Load::AddOne => *entry += 1,
                }
            }
            previous = node;
            load = load.saturating_sub(1);
        }
    }

    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        let distance = self.machine.distance(from, to);
        distance.unwrap_or(Distance(REMOTE)).0
    }
}
