//! What accesses take on a machine, as it was measured or published.

use serde::{Deserialize, Serialize};

use crate::emulation::{Bandwidth, CacheModel, LineDelay};
use crate::id::NodeId;

/// The figures that are known. An emulated machine in simulated time has them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// In ascending order of the CPU's node and the memory's, each pair once; pairs without a figure are left out.
    pub latencies: Vec<Latency>,
    /// Each last-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheModel>,
    /// A line that another CPU has written, one way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<LineDelay>,
    #[serde(default, skip_serializing_if = "Bandwidth::is_unlimited")]
    pub bandwidth: Bandwidth,
    /// Picoseconds of an instruction that waits for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction_ps: Option<u32>,
    /// Where the figures come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
}

/// Nanoseconds of a load that waits for the one before, from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Latency {
    pub cpu_node: NodeId,
    pub memory_node: NodeId,
    pub ns: u32,
}

impl Timing {
    /// These figures, and those of `other` that are missing here.
    pub fn or(mut self, other: Self) -> Self {
        self.latencies.extend(other.latencies);
        // A stable order: of equal pairs the first is kept.
        self.latencies.sort_by_key(Latency::pair);
        self.latencies.dedup_by_key(|it| it.pair());
        self.sources.extend(other.sources);
        Self {
            cache: self.cache.or(other.cache),
            transfer: self.transfer.or(other.transfer),
            bandwidth: self.bandwidth.or(other.bandwidth),
            instruction_ps: self.instruction_ps.or(other.instruction_ps),
            ..self
        }
    }

    /// Nanoseconds from the CPUs of a node to the memory of another.
    pub fn latency_ns(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<u32> {
        let pair = (cpu_node, memory_node);
        let at = self.latencies.binary_search_by_key(&pair, Latency::pair);
        at.ok().map(|at| self.latencies[at].ns)
    }
}

impl Latency {
    /// The nodes of the CPU and the memory.
    pub fn pair(&self) -> (NodeId, NodeId) {
        (self.cpu_node, self.memory_node)
    }
}
