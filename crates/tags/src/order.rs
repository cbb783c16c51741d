//! Which cache is a CPU's, and which caches are near it.
//!
//! Caches are numbered so that those of a core, a core group, a last-level cache and a node each are one range:
//!
//! ```text
//! cache       0 1  2 3  4 5  6 7 | 8 9 ...
//! core        └─┘  └─┘  └─┘  └─┘
//! llc         └──────┘  └──────┘
//! node        └────────────────┘   └─ ...
//! ```
//!
//! A cache knows its ranges and a node the others by distance: no table is larger than CPUs or nodes x nodes.

use std::ops::Range;

use crate::topology::{Cpu, Group, Topology};

/// What the CPUs of two caches share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Nearness {
    Core,
    CoreGroup,
    Llc,
    Node,
    /// Nothing; the distance of their nodes.
    Remote(u32),
}

pub(crate) struct Order {
    /// The cache of each CPU number; `NONE` for a number without a CPU.
    caches: Box<[u16]>,
    parts: Box<[Parts]>,
    nodes: Box<[Node]>,
    is_known: bool,
}

const NONE: u16 = u16::MAX;

type Caches = Range<u16>;

/// The caches that share a part with a cache, itself counted.
struct Parts {
    core: Caches,
    core_group: Caches,
    llc: Caches,
    node: u16,
}

struct Node {
    caches: Caches,
    /// The other nodes that have caches, the nearest first, with their distances.
    others: Box<[(u16, u32)]>,
}

/// The parts of a CPU from the largest to itself; caches are sorted by it.
type Key = [u32; 5];

impl Order {
    /// The most CPU numbers.
    pub(crate) const MAX_CPUS: usize = NONE as usize;

    /// A cache for each CPU, nothing known of where they are.
    pub(crate) fn unknown(cpus: usize) -> Self {
        let cpus = vec![Some(Cpu::default()); cpus.clamp(1, Self::MAX_CPUS)];
        let topology = Topology::new(cpus, vec![vec![10]]);
        Self {
            is_known: false,
            ..Self::new(&topology, None)
        }
    }

    /// A cache for each CPU, or for each group of CPUs. The topology was checked and has a CPU.
    pub(crate) fn new(topology: &Topology, group: Option<Group>) -> Self {
        let key = |number: usize, cpu: &Cpu| key(number, cpu, group);
        let cpus = || topology.cpus.iter().enumerate();
        let mut keys: Vec<Key> = cpus()
            .filter_map(|(number, cpu)| Some(key(number, cpu.as_ref()?)))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let cache = |(number, cpu): (usize, &Option<Cpu>)| {
            let found = keys.binary_search(&key(number, cpu.as_ref()?));
            Some(found.expect("every key is among them") as u16)
        };
        let mut nodes: Vec<u32> = keys.iter().map(|key| key[0]).collect();
        nodes.dedup();
        Self {
            caches: cpus().map(|cpu| cache(cpu).unwrap_or(NONE)).collect(),
            parts: keys.iter().map(|key| parts(&keys, &nodes, key)).collect(),
            nodes: nodes
                .iter()
                .map(|&node| Node::new(&keys, &nodes, node, topology))
                .collect(),
            is_known: true,
        }
    }

    /// How many caches there are.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The cache of a CPU; any for a CPU that was added after the topology was read.
    #[inline]
    pub(crate) fn cache(&self, cpu: usize) -> usize {
        match self.caches.get(cpu) {
            Some(&cache) if cache != NONE => usize::from(cache),
            _ => cpu % self.len(),
        }
    }

    /// What two caches share; `None` if the caller gave no topology.
    pub(crate) fn nearness(&self, own: usize, other: usize) -> Option<Nearness> {
        let parts = &self.parts[own];
        let node = self.parts[other].node;
        let is_in = |caches: &Caches| caches.contains(&(other as u16));
        let nearness = if is_in(&parts.core) {
            Nearness::Core
        } else if is_in(&parts.core_group) {
            Nearness::CoreGroup
        } else if is_in(&parts.llc) {
            Nearness::Llc
        } else if node == parts.node {
            Nearness::Node
        } else {
            let others = &self.nodes[usize::from(parts.node)].others;
            let distance = others.iter().find(|(other, _)| *other == node);
            Nearness::Remote(distance.map_or(0, |(_, distance)| *distance))
        };
        self.is_known.then_some(nearness)
    }

    /// Ranges of caches, the nearest first; together they are all caches. A later range repeats the caches of an earlier one of its
    /// node.
    pub(crate) fn nearest_first(&self, own: usize) -> impl Iterator<Item = Range<u32>> {
        let parts = &self.parts[own];
        let node = &self.nodes[usize::from(parts.node)];
        let near = [&parts.core, &parts.core_group, &parts.llc, &node.caches];
        let others = node.others.iter().map(|(other, _)| usize::from(*other));
        let far = others.map(|other| &self.nodes[other].caches);
        near.into_iter()
            .chain(far)
            .map(|caches| u32::from(caches.start)..u32::from(caches.end))
    }
}

impl Order {
    /// All other caches, the nearest first.
    pub(crate) fn others(&self, own: usize) -> impl Iterator<Item = usize> {
        let own = own as u32;
        let mut reached = own..own + 1;
        self.nearest_first(own as usize).flat_map(move |range| {
            let inner = reached.clone();
            if range.contains(&own) {
                reached = range.clone();
            }
            range
                .filter(move |cache| !inner.contains(cache))
                .map(|cache| cache as usize)
        })
    }
}

impl Node {
    fn new(keys: &[Key], nodes: &[u32], node: u32, topology: &Topology) -> Self {
        let row = &topology.distances[node as usize];
        let others = nodes.iter().enumerate();
        let mut others: Box<[(u16, u32)]> = others
            .filter(|(_, other)| **other != node)
            .map(|(index, other)| (index as u16, row[*other as usize]))
            .collect();
        others.sort_by_key(|(_, distance)| *distance);
        Self {
            caches: range(keys, &[node]),
            others,
        }
    }
}

fn key(number: usize, cpu: &Cpu, group: Option<Group>) -> Key {
    let Cpu {
        core,
        core_group,
        llc,
        node,
    } = *cpu;
    match group {
        None => [node, llc, core_group, core, number as u32],
        Some(Group::Core) => [node, llc, core_group, core, 0],
        Some(Group::Llc) => [node, llc, 0, 0, 0],
        Some(Group::Node) => [node, 0, 0, 0, 0],
    }
}

fn parts(keys: &[Key], nodes: &[u32], key: &Key) -> Parts {
    Parts {
        core: range(keys, &key[..4]),
        core_group: range(keys, &key[..3]),
        llc: range(keys, &key[..2]),
        node: nodes.partition_point(|node| *node < key[0]) as u16,
    }
}

/// The sorted keys that begin with these.
fn range(keys: &[Key], prefix: &[u32]) -> Caches {
    let start = keys.partition_point(|key| &key[..prefix.len()] < prefix);
    let end = keys.partition_point(|key| &key[..prefix.len()] <= prefix);
    start as u16..end as u16
}
