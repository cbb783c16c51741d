//! Arranges a machine's flat lists as a tree in which every object holds the CPUs of those below it.
//!
//! ```text
//! package 0-7 ─┐                          Machine 0-15
//! node 0  0-7  ├─ largest first, each ─►  └ Package 0-7 (+ node 0)
//! core    0-1  │  below the smallest        └ Core 0-1
//! cpu     0   ─┘  that holds it               └ PU 0
//! ```
//!
//! Nodes decide: a package or cache that holds a part of a node and of something else besides has no place in such a
//! tree and is left out.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Cache, Cpu, CpuId, CpuSet, Machine, NodeId, NodeSet};

/// How deep objects may nest. Real machines stay below 12; a hostile snapshot may list any number of caches.
const DEEPEST: usize = 64;

/// What an object of the tree is. The order is that of objects with the same CPUs, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Kind {
    #[default]
    Machine,
    Drawer(i64),
    Book(i64),
    Package(i64),
    Die,
    /// Holds the CPUs of a node where nothing else does.
    Group,
    /// By its position in the list of caches; larger levels first.
    Cache(std::cmp::Reverse<u32>, usize),
    Cluster,
    Core(i64),
    Cpu(CpuId),
}

/// An object with its place in the tree.
#[derive(Default)]
pub(super) struct Item {
    pub kind: Kind,
    /// Online CPUs below it.
    pub cpus: CpuSet,
    /// The same and the offline CPUs of the nodes at or below it.
    pub complete: CpuSet,
    /// The nodes that are near all of its CPUs, and those near some of them.
    pub near: NodeSet,
    /// The nodes that hang from it.
    pub nodes: Vec<NodeId>,
    pub children: Vec<usize>,
}

impl Item {
    fn new(kind: Kind, cpus: CpuSet) -> Self {
        Self {
            kind,
            complete: cpus.clone(),
            cpus,
            ..Self::default()
        }
    }
}

/// The tree; the first item is the machine.
pub(super) struct Arranged {
    pub items: Vec<Item>,
    /// The item that each online node hangs from.
    pub hosts: BTreeMap<NodeId, usize>,
}

/// Arranges the online part of a machine.
pub(super) fn arrange(machine: &Machine) -> Arranged {
    let online = &machine.cpu_states.online;
    let mut candidates = candidates(machine);
    let node_sets: BTreeMap<NodeId, CpuSet> = machine
        .online_nodes()
        .map(|node| (node.id, node.known_cpus().intersection(online)))
        .collect();
    let mut distinct: Vec<&CpuSet> = node_sets.values().filter(|set| !set.is_empty()).collect();
    distinct.sort_by_key(|set| (std::cmp::Reverse(set.len()), set.first()));
    distinct.dedup();
    candidates.retain(|(kind, set)| {
        matches!(kind, Kind::Cpu(_))
            || distinct
                .iter()
                .all(|node| !node.intersects(set) || nested(node, set))
    });
    for set in distinct {
        let taken = set == online || candidates.iter().any(|(_, other)| other == set);
        if !taken {
            candidates.push((Kind::Group, set.clone()));
        }
    }
    candidates.sort_by_cached_key(|(kind, set)| (std::cmp::Reverse(set.len()), *kind, set.first()));
    let mut arranged = nest(online.clone(), candidates);
    arranged.hang_nodes(machine, &node_sets);
    arranged.fill(0, &NodeSet::new());
    arranged
}

fn nested(a: &CpuSet, b: &CpuSet) -> bool {
    a.is_subset(b) || b.is_subset(a)
}

/// Everything that has CPUs: its kind and its online CPUs.
fn candidates(machine: &Machine) -> Vec<(Kind, CpuSet)> {
    let online: Vec<&Cpu> = machine.cpus.iter().filter(|cpu| cpu.is_online()).collect();
    let mut groups: BTreeMap<(Kind, Option<CpuId>), CpuSet> = BTreeMap::new();
    for cpu in &online {
        let mut add = |kind: Option<Kind>, leader: Option<CpuId>| {
            if let Some(kind) = kind {
                groups.entry((kind, leader)).or_default().insert(cpu.id);
            }
        };
        add(cpu.drawer.map(Kind::Drawer), None);
        add(cpu.book.map(Kind::Book), None);
        // The kernel's number may be the same everywhere; the first CPU distinguishes packages.
        let package = cpu.package.or(cpu.package_leader.map(|_| -1));
        add(package.map(Kind::Package), cpu.package_leader);
        add(cpu.die.map(|_| Kind::Die), cpu.die);
        add(cpu.cluster.map(|_| Kind::Cluster), cpu.cluster);
        // The number of a core is that of its first CPU.
        let number = cpu
            .core
            .and_then(|leader| machine.cpu(leader))
            .and_then(|leader| leader.kernel_core_id);
        add(cpu.core.map(|_| Kind::Core(number.unwrap_or(-1))), cpu.core);
        add(Some(Kind::Cpu(cpu.id)), None);
    }
    let mut found: Vec<_> = groups
        .into_iter()
        .map(|((kind, _), set)| (kind, set))
        .collect();
    let caches = machine.caches.iter().enumerate().map(|(at, cache)| {
        let kind = Kind::Cache(std::cmp::Reverse(rank(cache)), at);
        (kind, cache.cpus.intersection(&machine.cpu_states.online))
    });
    found.extend(caches.filter(|(_, set)| !set.is_empty()));
    found
}

/// Nearer to the core is lower; instruction caches are below the data caches of their level, as in hwloc.
fn rank(cache: &Cache) -> u32 {
    let data = u32::from(cache.kind != nearfar_machine::CacheKind::Instruction);
    cache.level.saturating_mul(2).saturating_add(data)
}

/// Puts each candidate, largest first, below the smallest item that holds its CPUs. What crosses an item is left out.
fn nest(online: CpuSet, candidates: Vec<(Kind, CpuSet)>) -> Arranged {
    let mut innermost: BTreeMap<CpuId, usize> = online.iter().map(|cpu| (cpu, 0)).collect();
    let mut items = vec![Item::new(Kind::Machine, online)];
    let mut depths = vec![0usize];
    for (kind, set) in candidates {
        let holders: BTreeSet<usize> = set
            .iter()
            .filter_map(|cpu| innermost.get(&cpu).copied())
            .collect();
        let Some(holder) = holders.first().copied().filter(|_| holders.len() == 1) else {
            continue;
        };
        let at = items.len();
        let depth = depths.get(holder).copied().unwrap_or(0) + 1;
        if depth > DEEPEST && !matches!(kind, Kind::Cpu(_)) {
            continue;
        }
        depths.push(depth);
        if let Some(holder) = items.get_mut(holder) {
            holder.children.push(at);
        }
        innermost.extend(set.iter().map(|cpu| (cpu, at)));
        items.push(Item::new(kind, set));
    }
    Arranged {
        items,
        hosts: BTreeMap::new(),
    }
}

impl Arranged {
    /// Hangs each online node from the outermost item with exactly its CPUs, or from the machine.
    fn hang_nodes(&mut self, machine: &Machine, sets: &BTreeMap<NodeId, CpuSet>) {
        let mut by_first: BTreeMap<Option<CpuId>, Vec<usize>> = BTreeMap::new();
        for (at, item) in self
            .items
            .iter()
            .enumerate()
            .filter(|(_, item)| !matches!(item.kind, Kind::Cpu(_)))
        {
            by_first.entry(item.cpus.first()).or_default().push(at);
        }
        for node in machine.online_nodes() {
            let Some(set) = sets.get(&node.id) else {
                continue;
            };
            let same = by_first.get(&set.first()).into_iter().flatten().copied();
            let host = same
                .filter(|&at| self.items.get(at).is_some_and(|item| item.cpus == *set))
                .min()
                .unwrap_or(0);
            self.hosts.insert(node.id, host);
            if let Some(item) = self.items.get_mut(host) {
                item.nodes.push(node.id);
                item.complete = item.complete.union(node.known_cpus());
            }
        }
        // CPUs that are offline and of no node belong to the machine alone.
        if let Some(root) = self.items.first_mut() {
            root.complete = machine.cpus.iter().map(|cpu| cpu.id).collect();
        }
    }

    /// Gives each item the nodes near it, going down, and the offline CPUs below it, going up; sorts children.
    fn fill(&mut self, at: usize, above: &NodeSet) -> (NodeSet, CpuSet) {
        let Some(item) = self.items.get_mut(at) else {
            return Default::default();
        };
        let mut near = above.union(&item.nodes.iter().copied().collect());
        let mut complete = item.complete.clone();
        let mut children = std::mem::take(&mut item.children);
        let from_above = near.clone();
        for &child in &children {
            let (below, offline) = self.fill(child, &from_above);
            near = near.union(&below);
            complete = complete.union(&offline);
        }
        children.sort_by_key(|&child| self.items.get(child).and_then(|item| item.cpus.first()));
        if let Some(item) = self.items.get_mut(at) {
            (item.near, item.complete, item.children) = (near.clone(), complete.clone(), children);
        }
        (near, complete)
    }
}
