//! How long a load takes while other CPUs read from the same memory.
//!
//! ```text
//!  buffer on node 2:  │ chain of one CPU          │ CPU 1's │ CPU 2's │ CPU 3's │
//!
//!  the others:        idle │ 2048, 1024, ... 1 steps of a calculation after each line │ one line after the other
//!                     ────────────────────────── more and more bytes a second ─────────────────────────────►
//! ```
//!
//! The one CPU's loads depend on one another, as those of [`crate::latency`]. Memory answers each later the more it has to do: first
//! little, and close to what it can carry as much as the lines that wait.

pub(crate) mod run;

use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_statistics::Figures;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Method;
pub(crate) use run::measure_on;

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadedLatency {
    /// One a node that has CPUs and memory, ascending.
    pub curves: Vec<LoadedCurve>,
    /// A half of each buffer is for the chain, a half for all readers.
    #[serde(flatten)]
    pub method: Method,
}

/// The memory of one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadedCurve {
    /// The node of the CPUs and of the memory.
    pub node: NodeId,
    /// The CPU whose loads are timed.
    pub cpu: CpuId,
    /// The CPUs that read, one thread each.
    pub readers: CpuSet,
    /// By the load, ascending.
    pub points: Vec<LoadedPoint>,
}

/// What was measured under one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadedPoint {
    /// Steps that each reader computes after each line; `None` where the readers are idle.
    pub pause: Option<u32>,
    /// Bytes a second, all readers together.
    pub read_bytes_per_s: Figures,
    /// Nanoseconds of a load.
    pub latency_ns: Figures,
}
