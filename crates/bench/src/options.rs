//! What can be asked of a measurement, and why none may come of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_machine::{Machine, NodeId, NodeSet, SourceKind};
use serde::{Deserialize, Serialize};

/// How to measure.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// How long the whole probe may take, preparation included. It ends sooner when it has its samples.
    pub budget: Duration,
    /// Size of the buffer on each node, in bytes; `None` for what the caches ask for and the memory allows.
    pub buffer_bytes: Option<u64>,
    /// The most samples a pair gets.
    pub max_samples: usize,
    /// Measure from the CPUs of these nodes only; `None` for all.
    pub from: Option<NodeSet>,
    /// Measure the memory of these nodes only; `None` for all.
    pub to: Option<NodeSet>,
    pub huge_pages: HugePages,
    /// Take the samples in blocks spread over the budget, instead of ending as soon as there are enough: load that comes and goes
    /// then disturbs some blocks, and the interval of a median is that of the blocks.
    pub is_spread: bool,
    /// Set it from anywhere to end the probe early with [`ProbeError::Cancelled`].
    pub cancel: Arc<AtomicBool>,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(10),
            buffer_bytes: None,
            max_samples: 41,
            from: None,
            to: None,
            huge_pages: HugePages::Auto,
            is_spread: false,
            cancel: Arc::default(),
        }
    }
}

impl ProbeOptions {
    /// Whether the measurement goes on.
    pub(crate) fn check_cancelled(&self) -> Result<(), ProbeError> {
        match self.cancel.load(Ordering::Relaxed) {
            true => Err(ProbeError::Cancelled),
            false => Ok(()),
        }
    }
}

/// Which pages to use for buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// The node's pool where it has enough free pages, else transparent ones, else base pages.
    #[default]
    Auto,
    /// Transparent ones, else base pages.
    Transparent,
    /// The node's pool (hugetlb); where it lacks pages, transparent ones and a warning.
    Pool,
    /// Base pages.
    Off,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(
        "cannot measure {place} ({what}): only the live system has memory to measure; leave --source, --root and --fake away"
    )]
    NotThisMachine {
        /// Where the description comes from.
        place: String,
        /// Which kind of source or overlay it is.
        what: String,
    },
    #[error("there is no node {node} to measure: online are {online}")]
    NoSuchNode { node: NodeId, online: NodeSet },
    #[error("node {node} has no CPU to measure from, only {has}; nodes with CPUs: {others}")]
    NoCpus {
        node: NodeId,
        /// What it has instead.
        has: &'static str,
        /// The nodes that have CPUs.
        others: NodeSet,
    },
    #[error("node {node} has no memory to measure; nodes with memory: {others}")]
    NoMemory { node: NodeId, others: NodeSet },
    #[error("nothing to measure: {reason}")]
    NothingToMeasure { reason: String },
    #[error("cannot use a buffer of {} on each node: {reason}", in_mebibytes(.bytes))]
    BufferTooLarge {
        /// How many bytes were asked for.
        bytes: u64,
        reason: String,
    },
    #[error(
        "cannot use a buffer of {bytes} bytes on each node: less than {least} would measure caches only"
    )]
    BufferTooSmall {
        /// How many bytes were asked for.
        bytes: u64,
        /// The least.
        least: u64,
    },
    #[error("cannot map {bytes} bytes of memory for the probe: {source}; try a smaller buffer")]
    Memory {
        /// How many bytes were asked for.
        bytes: u64,
        source: std::io::Error,
    },
    #[error("cannot prepare the measuring thread: {0}")]
    Thread(#[source] std::io::Error),
    #[error("interrupted before there were samples: nothing is printed or stored")]
    Cancelled,
}

fn in_mebibytes(bytes: &u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// That a machine is the one this process runs on.
pub(crate) fn check_live(machine: &Machine) -> Result<(), ProbeError> {
    let origin = &machine.origin;
    let refuse = |what: String| {
        Err(ProbeError::NotThisMachine {
            place: origin.place.clone(),
            what,
        })
    };
    match origin.overlays.last() {
        _ if origin.kind != SourceKind::Live => refuse(origin.kind.to_string()),
        Some(overlay) => refuse(overlay.clone()),
        None => Ok(()),
    }
}

/// Does the work on a thread of its own, so that the caller's affinity and memory policy are never touched.
pub(crate) fn on_own_thread<T: Send>(
    work: impl FnOnce() -> Result<T, ProbeError> + Send,
) -> Result<T, ProbeError> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("nearfar-bench".to_owned());
        let worker = worker
            .spawn_scoped(scope, work)
            .map_err(ProbeError::Thread)?;
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
