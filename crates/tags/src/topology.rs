//! Which CPUs are near each other, as the caller says; which cache is a CPU's, and which caches are near it.
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

use std::collections::HashMap;
use std::ops::Range;

use crate::BuildError;

/// CPUs that share a part of the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Group {
    /// The hardware threads of a core.
    Core,
    /// The CPUs that share a last-level cache.
    Llc,
    /// The CPUs of a memory node.
    Node,
}

/// Where a CPU is. The numbers only say which CPUs share a part; equal numbers of different parts mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Cpu {
    pub core: u32,
    /// A group of cores below the last-level cache: a module, a cluster. The core's number where there is none.
    pub core_group: u32,
    pub llc: u32,
    /// The index of its node in `Topology::distances`.
    pub node: u32,
}

/// The machine as far as the order of stealing needs it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Topology {
    /// By CPU number, up to the highest possible CPU; a number without a CPU is `None`.
    pub cpus: Vec<Option<Cpu>>,
    /// From node to node by index, as ACPI SLIT: 10 to itself.
    pub distances: Vec<Vec<u32>>,
}

impl Cpu {
    /// A CPU of this core and node: the core is a group of its own, and the node's CPUs share a last-level cache.
    pub fn new(core: u32, node: u32) -> Self {
        Self {
            core,
            core_group: core,
            llc: node,
            node,
        }
    }

    pub fn with_core_group(self, core_group: u32) -> Self {
        Self { core_group, ..self }
    }

    pub fn with_llc(self, llc: u32) -> Self {
        Self { llc, ..self }
    }
}

impl Topology {
    /// The fields of that name. [`Builder::build`](crate::Builder::build) checks them.
    pub fn new(cpus: Vec<Option<Cpu>>, distances: Vec<Vec<u32>>) -> Self {
        Self { cpus, distances }
    }

    /// Whether the order of stealing can be made of it. A last-level cache or core group may span nodes, as with emulated nodes: its
    /// CPUs on one node are near each other. A core may not.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let cpus = || self.cpus.iter().enumerate();
        let numbers = self.cpus.len();
        if numbers > Order::MAX_CPUS {
            return Err(BuildError::CpuNumbers(numbers));
        }
        if self.cpus.iter().all(Option::is_none) {
            return Err(BuildError::CpuNumbers(0));
        }
        let nodes = self.distances.len();
        if let Some(node) = self.distances.iter().position(|row| row.len() != nodes) {
            let node = node as u32;
            return Err(BuildError::Distances { node });
        }
        let mut cores = HashMap::new();
        for (number, cpu) in cpus().filter_map(|(number, cpu)| Some((number, cpu.as_ref()?))) {
            if cpu.node as usize >= nodes {
                let node = cpu.node;
                return Err(BuildError::NoSuchNode { cpu: number, node });
            }
            let (first, other) = *cores.entry(cpu.core).or_insert((number, cpu));
            if other != cpu {
                let (core, cpus) = (cpu.core, [first, number]);
                return Err(BuildError::SplitCore { core, cpus });
            }
        }
        Ok(())
    }
}

/// Steals by what both CPUs share: how often tags of another cache or group were taken. None is counted by an allocator without a
/// topology, nor under `Bitmap` and `Auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Steals {
    pub core: u64,
    pub core_group: u64,
    pub llc: u64,
    pub node: u64,
    /// From another node.
    pub remote: u64,
    /// The sum over `remote` of the nodes' distances.
    pub remote_distance: u64,
    /// The tags that were taken in all of these together: all of a cache at once, one of a group.
    pub tags: u64,
}

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

type CacheRange = Range<u16>;

/// The caches that share a part with a cache, itself counted.
struct Parts {
    core: CacheRange,
    core_group: CacheRange,
    llc: CacheRange,
    node: u16,
}

struct Node {
    caches: CacheRange,
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
            nodes: (nodes.iter())
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
        let is_in = |caches: &CacheRange| caches.contains(&(other as u16));
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
    let (node, llc, core_group, core) = (cpu.node, cpu.llc, cpu.core_group, cpu.core);
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
fn range(keys: &[Key], prefix: &[u32]) -> CacheRange {
    let start = keys.partition_point(|key| &key[..prefix.len()] < prefix);
    let end = keys.partition_point(|key| &key[..prefix.len()] <= prefix);
    start as u16..end as u16
}
