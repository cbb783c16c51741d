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
//! so that what disturbs the machine for a while disturbs all of them. The first round is dropped.

mod run;

use std::time::Instant;

use nearfar_machine::{CpuId, Distance, Emulation, Machine, NodeId};
use nearfar_runs::Cell;
use nearfar_statistics::Interval;
use serde::{Deserialize, Serialize};

pub use crate::mapping::PageKind;
pub use crate::node_selection::SkippedPair;
pub use crate::options::{ProbeError, ProbeOptions as LatencyOptions};
pub use crate::sampling::Measured;
pub use crate::warning::Warning;
pub(crate) use run::{Chases, measure_on};

use crate::buffer_size::{self, BufferSize, Use};
use crate::mapping::HUGE_PAGE;
use crate::options::{check_live, on_own_thread};
use crate::{node_buffers, node_selection};
use nearfar_proc::affinity;

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
    pub page_kind: PageKind,
    /// Loads in one sample.
    pub steps: u64,
    /// How long the probe took, in seconds.
    pub elapsed_s: f64,
    /// What was true of the measurement and makes it worth less.
    pub warnings: Vec<Warning>,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl LatencyMatrix {
    /// The measurement of one pair, if it was made.
    pub fn pair(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<&LatencyPair> {
        self.pairs
            .iter()
            .find(|pair| pair.cpu_node == cpu_node && pair.memory_node == memory_node)
    }
}

/// One pair of nodes: whose CPU loaded, whose memory was loaded from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyPair {
    /// The node of the CPU.
    pub cpu_node: NodeId,
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
    /// The 95 % confidence interval of the median; `None` where there are too few samples for one.
    #[serde(default)]
    pub confidence_ns: Option<Interval>,
    /// How many samples lie far from the others.
    #[serde(default)]
    pub outliers: usize,
    /// The distance between the two nodes, where the machine gives one.
    pub distance: Option<Distance>,
}

/// The cell of a pair of nodes in stored runs.
pub(crate) fn cell(cpu_node: NodeId, memory_node: NodeId) -> Cell {
    Cell::new()
        .with("cpu_node", cpu_node.0)
        .with("memory_node", memory_node.0)
}

/// Nanoseconds of a load that a last-level cache answers, from the first node that the options name to its memory; `None` where the
/// size of the caches is unknown. Half of a cache holds all lines, and other CPUs' too.
///
/// # Errors
/// As those of [`measure`].
pub(crate) fn of_cache_hits(
    machine: &Machine,
    options: &LatencyOptions,
) -> Result<Option<f64>, ProbeError> {
    let Some(half) = buffer_size::last_level_cache(machine).map(|bytes| bytes / 2) else {
        return Ok(None);
    };
    let size = |nodes: &[NodeId], spare| {
        let usual = buffer_size::size_of(machine, nodes, options, &Use::default(), spare);
        Ok(BufferSize {
            buffer_bytes: half.next_multiple_of(HUGE_PAGE as u64),
            one_cpu_bytes: half,
            warnings: Vec::new(),
            ..usual
        })
    };
    let measured = measure_in(machine, options, size)?.answer;
    Ok(measured.pairs.first().map(|pair| pair.median_ns))
}

/// Measures every pair of online nodes of the live system, as far as CPUs and memory allow.
///
/// # Errors
/// When the machine is not the live system, nothing can be measured, memory lacks, or the probe was cancelled before each
/// pair had a sample. What concerns single pairs only is in [`LatencyMatrix::skipped`] and [`LatencyMatrix::warnings`] instead.
pub fn measure(
    machine: &Machine,
    options: &LatencyOptions,
) -> Result<Measured<LatencyMatrix>, ProbeError> {
    measure_in(machine, options, |nodes, spare| {
        buffer_size::decide(machine, nodes, options, &Use::default(), spare)
    })
}

/// The same in buffers of the size that is decided for these nodes, by the memory that this process may still take.
fn measure_in(
    machine: &Machine,
    options: &LatencyOptions,
    size: impl FnOnce(&[NodeId], Option<u64>) -> Result<BufferSize, ProbeError> + Send,
) -> Result<Measured<LatencyMatrix>, ProbeError> {
    check_live(machine)?;
    let start = Instant::now();
    on_own_thread(|| {
        let allowed = affinity::get(0).map_err(ProbeError::Thread)?;
        let selection = node_selection::select(machine, &allowed, options)?;
        let size = size(&selection.memory, buffer_size::spare_memory())?;
        let mut buffers = node_buffers::allocate(
            machine,
            &selection.memory,
            &selection.sources,
            size.buffer_bytes,
            options,
        )?;
        let mut measured = measure_on(Chases {
            machine,
            options,
            sources: &selection.sources,
            size: &size,
            buffers: &mut buffers,
            deadline: start + options.budget,
        })?;
        let matrix = &mut measured.answer;
        matrix.skipped.splice(0..0, selection.skipped);
        matrix.elapsed_s = start.elapsed().as_secs_f64();
        Ok(measured)
    })
}
