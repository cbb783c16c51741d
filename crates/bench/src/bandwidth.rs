//! How many bytes a second all CPUs of a node move from or to the memory of each node.
//!
//! ```text
//!  buffer on node 2:  │ CPU 0's │ CPU 1's │ CPU 2's │ CPU 3's │     each thread has a part of its own, whole pages,
//!                     └────►────┴────►────┴────►────┴────►────┘     and goes on where it stood the time before
//!
//!  barrier ─ all run ─┬──── counted: blocks done by the thread's own clock ────┬─ all still run ─ stop
//!                     ramp                                                  ramp
//! ```
//!
//! What is counted is what the program asked for: a plain store also makes the processor read the line first, so the
//! memory moves more than a `write` shows. Figures are sums over threads; 1 GB is 10^9 bytes.

mod part;
mod run;
pub(crate) mod workers;

use nearfar_machine::{CpuSet, Distance, Emulation, NodeId};
use serde::{Deserialize, Serialize};

use crate::mapping::PageKind;
use crate::node_selection::SkippedPair;
use crate::warning::Warning;
use nearfar_statistics::Figures;
pub(crate) use part::Work;
pub(crate) use run::{MIN_WINDOW, Since, Streams, cpus_of, measure_on};

/// What is done to the memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// Every word is loaded.
    Read,
    /// Every word is stored to, with plain stores.
    Write,
    /// Every word of one half is loaded, changed and stored to the other half; both directions are counted.
    Copy,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Copy];
}

impl std::fmt::Display for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
        })
    }
}

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BandwidthMatrix {
    /// One entry a pair of nodes and kind of traffic, by CPU node, memory node, traffic.
    pub pairs: Vec<BandwidthPair>,
    #[serde(flatten)]
    pub method: Method,
}

/// How threads that use memory together were measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Method {
    /// Pairs of nodes that were not measured.
    pub skipped: Vec<SkippedPair>,
    /// Size of the buffer on each node, in bytes; the threads share it.
    pub buffer_bytes: u64,
    pub page_kind: PageKind,
    /// How long bytes were counted for one sample, in seconds.
    pub window_s: f64,
    /// How long the measurement took, in seconds.
    pub elapsed_s: f64,
    /// What was true of the measurement and makes it worth less.
    pub warnings: Vec<Warning>,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl BandwidthMatrix {
    /// The measurement of one pair, if it was made.
    pub fn pair(
        &self,
        traffic: Traffic,
        cpu_node: NodeId,
        memory_node: NodeId,
    ) -> Option<&BandwidthPair> {
        let wanted = (traffic, cpu_node, memory_node);
        self.pairs
            .iter()
            .find(|pair| (pair.traffic, pair.cpu_node, pair.memory_node) == wanted)
    }
}

/// One pair of nodes and kind of traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BandwidthPair {
    pub traffic: Traffic,
    /// The node of the CPUs.
    pub cpu_node: NodeId,
    pub memory_node: NodeId,
    /// The CPUs that did it, one thread each.
    pub cpus: CpuSet,
    /// Bytes a second, all CPUs together.
    pub bytes_per_s: Figures,
    /// The distance between the two nodes, where the machine gives one.
    pub distance: Option<Distance>,
}
