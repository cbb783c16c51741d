//! How long one load takes, from the CPUs of each node to the memory of each node.
//!
//! ```text
//!  node 0: CPU 7 ──┬── chase ──► buffer bound to node 0      a sample: one chase of `steps` loads, each load's
//!                  └── chase ──► buffer bound to node 2      address being what the load before it returned
//!  node 1: CPU 15 ─┬── chase ──► buffer bound to node 0
//!                  └── chase ──► buffer bound to node 2      a round: every pair once, in random order
//! ```
//!
//! Loads depend on one another, so neither the prefetcher nor out-of-order execution can hide the time. The order of
//! the lines is one random cycle over a buffer several times as large as the last-level cache. Pairs are interleaved,
//! so that what disturbs the machine for a while disturbs all of them. The first round is dropped. A thread of its
//! own does the work: the caller's affinity and memory policy are never touched.

mod chase;
mod conditions;
mod mapping;
mod pinning;
mod room;
mod run;
mod statistics;
mod subjects;
mod warning;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_machine::{CpuId, Distance, Machine, NodeId, SourceKind};
use serde::{Deserialize, Serialize};

pub use statistics::Summary;
pub use warning::Warning;

/// How to measure.
#[derive(Clone, Debug)]
pub struct LatencyOptions {
    /// How long the whole probe may take, preparation included. It ends sooner when it has its samples.
    pub budget: Duration,
    /// Size of the buffer on each node, in bytes; `None` for what the caches ask for and the memory allows.
    pub buffer_bytes: Option<u64>,
    /// The most samples a pair gets.
    pub most_samples: usize,
    /// Set it from anywhere to end the probe early with [`ProbeError::Cancelled`].
    pub cancel: Arc<AtomicBool>,
}

impl Default for LatencyOptions {
    fn default() -> Self {
        Self { budget: Duration::from_secs(10), buffer_bytes: None, most_samples: 41, cancel: Arc::default() }
    }
}

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyMatrix {
    /// One entry a pair of nodes, by CPU node, then memory node.
    pub pairs: Vec<LatencyPair>,
    /// Pairs of nodes that were not measured.
    pub skipped: Vec<SkippedPair>,
    /// Size of the buffer on each node, in bytes.
    pub buffer_bytes: u64,
    /// Distance between the words that are loaded, in bytes: a cache line.
    pub line_bytes: u64,
    /// The largest cache that the buffer has to exceed, in bytes; `None` where the machine's caches are not known.
    pub last_level_cache_bytes: Option<u64>,
    /// What the buffers' pages are.
    pub page_kind: PageKind,
    /// Loads in one sample.
    pub steps: u64,
    /// How long the probe took, in seconds.
    pub elapsed_s: f64,
    /// What was true of the measurement and makes it worth less.
    pub warnings: Vec<Warning>,
    /// The label every figure of an emulated machine carries; handed through from the machine's origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<String>,
}

impl LatencyMatrix {
    /// The measurement of one pair, if it was made.
    pub fn pair(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<&LatencyPair> {
        self.pairs.iter().find(|pair| pair.cpu_node == cpu_node && pair.memory_node == memory_node)
    }
}

/// One pair of nodes: whose CPU loaded, whose memory was loaded from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyPair {
    /// The node of the CPU.
    pub cpu_node: NodeId,
    /// The node of the memory.
    pub memory_node: NodeId,
    /// The CPU that did the loads.
    pub cpu: CpuId,
    /// The mean time of one load in each sample, in nanoseconds, in the order they were taken.
    pub samples_ns: Vec<f64>,
    /// Their median.
    pub median_ns: f64,
    /// Their lower quartile.
    pub low_ns: f64,
    /// Their upper quartile.
    pub high_ns: f64,
    /// The distance between the two nodes, where the machine gives one.
    pub distance: Option<Distance>,
}

/// A pair of nodes without a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SkippedPair {
    /// The node of the CPU; `None` when the memory node cannot be measured from any.
    pub cpu_node: Option<NodeId>,
    /// The node of the memory; `None` when the CPU node cannot measure any.
    pub memory_node: Option<NodeId>,
    /// Why not.
    pub because: String,
}

/// What pages the buffers got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// Transparent huge pages throughout: hardly any address translation in the figures.
    Huge,
    /// Some of them huge.
    Mixed,
    /// Base pages only: most loads also pay for an address translation.
    Base,
    /// `/proc/self/smaps` could not be read.
    Unknown,
}

impl std::fmt::Display for PageKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Huge => "huge pages",
            Self::Mixed => "partly huge pages",
            Self::Base => "base pages",
            Self::Unknown => "pages of unknown size",
        })
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Only the system the process runs on can be measured.
    #[error(
        "cannot measure {place} ({what}): only the live system has memory to measure; leave --source, --root and --fake away"
    )]
    NotThisMachine {
        /// Where the description comes from.
        place: String,
        /// Which kind of source or overlay it is.
        what: String,
    },
    /// No online node has both memory and a CPU that this process may use, in any combination.
    #[error("nothing to measure: {because}")]
    NothingToMeasure {
        /// What is missing.
        because: String,
    },
    /// The buffer could not be had.
    #[error("cannot map {bytes} bytes of memory for the probe: {source}; try a smaller buffer")]
    Memory {
        /// How many bytes were asked for.
        bytes: u64,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The measuring thread could not be started, or the kernel refused to say where it may run.
    #[error("cannot prepare the measuring thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The cancel flag was set.
    #[error("the probe was cancelled before it had its samples")]
    Cancelled,
}

/// Measures every pair of online nodes of the live system, as far as CPUs and memory allow.
///
/// # Errors
/// When the machine is not the live system, nothing can be measured, memory lacks, or the probe was cancelled. What
/// concerns single pairs only is in [`LatencyMatrix::skipped`] and [`LatencyMatrix::warnings`] instead.
pub fn measure(machine: &Machine, options: &LatencyOptions) -> Result<LatencyMatrix, ProbeError> {
    let origin = &machine.origin;
    let place = || origin.place.clone();
    if origin.kind != SourceKind::Live {
        return Err(ProbeError::NotThisMachine { place: place(), what: origin.kind.to_string() });
    }
    if let Some(overlay) = origin.overlays.last() {
        return Err(ProbeError::NotThisMachine { place: place(), what: overlay.clone() });
    }
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("nearfar-latency".to_owned());
        let worker = worker.spawn_scoped(scope, || run::measure(machine, options)).map_err(ProbeError::Thread)?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
