//! What two CPUs share.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::CpuId;
use crate::machine::Machine;

/// Nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nearness {
    /// A core: they are its hardware threads.
    Core,
    /// A last-level cache.
    Cache,
    /// A node, and no cache as far as is known.
    Node,
    /// They are on different nodes.
    Nodes,
}

impl fmt::Display for Nearness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "same core",
            Self::Cache => "same cache",
            Self::Node => "same node",
            Self::Nodes => "other node",
        })
    }
}

/// The CPUs of a machine by what they share.
#[derive(Debug)]
pub struct Neighbourhood<'a> {
    machine: &'a Machine,
    /// The last-level cache of each CPU that has a known one, by position.
    caches: BTreeMap<CpuId, usize>,
}

impl<'a> Neighbourhood<'a> {
    /// Those of a machine.
    pub fn of(machine: &'a Machine) -> Self {
        let caches = machine.last_level_caches().enumerate();
        let caches = caches
            .flat_map(|(index, cache)| cache.cpus.iter().map(move |cpu| (cpu, index)))
            .collect();
        Self { machine, caches }
    }

    /// What two CPUs share. CPUs whose nodes are unknown count as of one.
    pub fn nearness(&self, a: CpuId, b: CpuId) -> Nearness {
        let core = |cpu: CpuId| self.machine.cpu(cpu).and_then(|cpu| cpu.core);
        let cache = |cpu| self.caches.get(&cpu);
        if core(a).is_some() && core(a) == core(b) {
            Nearness::Core
        } else if self.machine.node_of(a) != self.machine.node_of(b) {
            Nearness::Nodes
        } else if cache(a).is_some() && cache(a) == cache(b) {
            Nearness::Cache
        } else {
            Nearness::Node
        }
    }
}
