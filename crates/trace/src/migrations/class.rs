//! What two CPUs share, and so what a move from one to the other costs.

use std::collections::HashMap;

use nearfar_machine::{Cache, CacheKind, CpuId, Machine, NodeId};
use serde::{Deserialize, Serialize};

/// How far a move went: the narrowest thing that both CPUs are in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// SMT siblings: all caches stay.
    SameCore,
    /// The last-level cache stays, the core's own are left behind.
    SameCache,
    /// Another last-level cache of the same node; also where it is unknown which CPUs share one.
    SameNode,
    /// Another node: caches left behind, and memory is as far as it is.
    CrossNode,
    /// A CPU of which no node is known.
    Unknown,
}

/// What CPUs share, looked up once for a machine.
#[derive(Clone, Debug)]
pub struct Sharing {
    cpus: HashMap<CpuId, Place>,
    caches_known: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    node: Option<NodeId>,
    core: Option<CpuId>,
    cache: Option<usize>,
}

impl Sharing {
    /// Looks through the CPUs and caches of a machine.
    pub fn new(machine: &Machine) -> Self {
        let mut last: HashMap<CpuId, usize> = HashMap::new();
        for (index, cache) in machine.caches.iter().enumerate() {
            if cache.kind == CacheKind::Instruction {
                continue;
            }
            for cpu in cache.cpus.iter() {
                let place = last.entry(cpu).or_insert(index);
                let level =
                    |index: usize| machine.caches.get(index).map(|cache: &Cache| cache.level);
                if level(*place) < Some(cache.level) {
                    *place = index;
                }
            }
        }
        let place = |cpu: &nearfar_machine::Cpu| Place {
            node: cpu.node,
            core: cpu.core,
            cache: last.get(&cpu.id).copied(),
        };
        Self {
            cpus: machine
                .cpus
                .iter()
                .map(|cpu| (cpu.id, place(cpu)))
                .collect(),
            caches_known: !last.is_empty(),
        }
    }

    /// Whether it is known which CPUs share a last-level cache; if not, no move is ever [`Class::SameCache`].
    pub fn caches_known(&self) -> bool {
        self.caches_known
    }

    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.cpus.get(&cpu)?.node
    }

    /// The class of a move. The node decides first: with sub-NUMA clusters a last-level cache may span nodes.
    pub fn class(&self, from: CpuId, to: CpuId) -> Class {
        let (Some(from), Some(to)) = (self.cpus.get(&from), self.cpus.get(&to)) else {
            return Class::Unknown;
        };
        let same = |a: Option<_>, b: Option<_>| a.is_some() && a == b;
        match (from.node, to.node) {
            (Some(a), Some(b)) if a != b => Class::CrossNode,
            (Some(_), Some(_)) if same(from.core, to.core) => Class::SameCore,
            (Some(_), Some(_)) if from.cache.is_some() && from.cache == to.cache => {
                Class::SameCache
            }
            (Some(_), Some(_)) => Class::SameNode,
            _ => Class::Unknown,
        }
    }
}
