//! How long a cache line takes from one CPU to another and back.
//!
//! ```text
//!  CPU 3   store 1 ───────────►  sees 1, stores 2            one round trip: two hand-overs of the line; each
//!  CPU 7   sees 2, stores 3  ◄───────────                     CPU spins until the other's number is there
//! ```
//!
//! How far two CPUs are apart is what they share: a core, a last-level cache, a node, or nothing of these. One pair
//! stands for each of them on each node, and one for each pair of nodes; or every pair of CPUs is measured. The line is
//! in memory of the first CPU's node.

mod pairs;
mod run;

use nearfar_machine::{CpuId, Distance, Emulation, Nearness, NodeId};
use serde::{Deserialize, Serialize};

use crate::warning::Warning;
use nearfar_statistics::Figures;
pub(crate) use run::{HandOvers, measure_on};

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransferMatrix {
    /// One entry a pair of CPUs, by first CPU, then second; each pair once.
    pub pairs: Vec<TransferPair>,
    /// Pairs of CPUs that were not measured.
    pub skipped: Vec<SkippedTransfer>,
    /// Whether every pair of CPUs was to be measured, and not one for each nearness and pair of nodes.
    pub all_cpus: bool,
    /// How long the measurement took, in seconds.
    pub elapsed_s: f64,
    /// What was true of the measurement and makes it worth less.
    pub warnings: Vec<Warning>,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl TransferMatrix {
    /// The measurement between two CPUs, in either order.
    pub fn pair(&self, a: CpuId, b: CpuId) -> Option<&TransferPair> {
        self.pairs
            .iter()
            .find(|pair| (pair.first, pair.second) == (a.min(b), a.max(b)))
    }
}

/// Two CPUs that hand a line to each other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransferPair {
    /// The lower CPU; the line's memory is on its node.
    pub first: CpuId,
    /// The higher CPU.
    pub second: CpuId,
    pub first_node: Option<NodeId>,
    /// The node of the second.
    pub second_node: Option<NodeId>,
    pub nearness: Nearness,
    /// Nanoseconds from storing to seeing the answer: there and back.
    pub round_trip_ns: Figures,
    /// Round trips in one sample.
    pub round_trips: u64,
    /// The distance between their nodes, where the machine gives one.
    pub distance: Option<Distance>,
}

/// A pair of CPUs without a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SkippedTransfer {
    /// The lower CPU.
    pub first: CpuId,
    /// The higher CPU.
    pub second: CpuId,
    #[serde(alias = "because")]
    pub reason: String,
}
