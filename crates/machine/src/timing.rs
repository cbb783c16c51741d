//! What accesses take on a machine, as it was measured or published.

use serde::{Deserialize, Serialize};

use crate::emulation::{Bandwidth, CacheModel, LineDelay};
use crate::id::NodeId;

/// The figures that are known. An emulated machine in simulated time has them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// By node of the CPU and node of the memory; pairs without a figure are left out.
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
        for more in other.latencies {
            if self.latency_ns(more.cpu_node, more.memory_node).is_none() {
                self.latencies.push(more);
            }
        }
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
        let mut latencies = self.latencies.iter();
        let known = latencies.find(|it| (it.cpu_node, it.memory_node) == pair);
        known.map(|it| it.ns)
    }
}
