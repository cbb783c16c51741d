//! What interleaved memory brings all CPUs, and costs one of them.
//!
//! ```text
//!  near             each CPU reads memory of its own node         what first touch gives a program that starts its threads first
//!  node 2           all CPUs read memory of node 2                what it gives one whose first thread fills all memory
//!  interleaved      all CPUs read pages of all nodes in turn      numactl --interleave=all
//! ```
//!
//! Reading alone, a CPU waits for the latency of its memory, of which interleaved memory has a mean. Reading all at once, they
//! wait for the memory or the link that is busiest, and interleaving spreads the load over all.

mod run;

use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_statistics::Figures;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Method;
pub(crate) use run::measure_on;

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InterleavedMemory {
    /// The CPU whose loads are timed while the others are idle.
    pub cpu: CpuId,
    /// The CPUs that read together, one thread each.
    pub readers: CpuSet,
    /// Near memory, where each of these CPUs has some, the memory of each node alone, and interleaved memory.
    pub placements: Vec<MeasuredPlacement>,
    /// A half of each buffer is for the chain, a half for all readers.
    #[serde(flatten)]
    pub method: Method,
}

/// Where the memory is that all CPUs use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPlacement {
    /// That of each CPU on its own node.
    Near,
    /// All of it on this node.
    Node(NodeId),
    /// On all nodes with memory, page by page.
    Interleaved,
}

impl std::fmt::Display for MemoryPlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Near => f.write_str("near"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Interleaved => f.write_str("interleaved"),
        }
    }
}

/// What was measured of one placement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MeasuredPlacement {
    pub memory: MemoryPlacement,
    /// Bytes a second, all readers together.
    pub read_bytes_per_s: Figures,
    /// Nanoseconds of a load.
    pub latency_ns: Figures,
}
