//! What can be asked of a measurement, and why none may come of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_machine::{Machine, NodeId, NodeSet, SourceKind};
use serde::{Deserialize, Serialize};

use crate::registry::{number, size, within};

const BUDGET: Duration = Duration::from_secs(10);
const MAX_SAMPLES: usize = 41;

/// How to measure; what a command's options say of it.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct ProbeOptions {
    /// How long the whole probe may take, preparation included. It ends sooner when it has its samples.
    #[arg(skip = BUDGET)]
    pub budget: Duration,
    /// Measure from the CPUs of these nodes only, such as 0-1,4
    #[arg(long, value_name = "NODES")]
    pub from: Option<NodeSet>,
    /// Measure the memory of these nodes only (for transfers: their CPUs)
    #[arg(long, value_name = "NODES")]
    pub to: Option<NodeSet>,
    /// Size of the buffer on each node, such as 256M; by default as the caches ask and the memory allows
    #[arg(id = "buffer", long, value_name = "SIZE", value_parser = size(1..=u64::MAX))]
    pub buffer_bytes: Option<u64>,
    /// Which pages the buffers have
    #[arg(
        id = "huge",
        long,
        value_name = "PAGES",
        value_enum,
        default_value = "auto"
    )]
    pub huge_pages: HugePages,
    /// The most samples that a pair gets
    #[arg(id = "samples", long, value_name = "N", default_value_t = MAX_SAMPLES, value_parser = within(1..=100_000, number::<usize>))]
    pub max_samples: usize,
    /// Take the samples in blocks spread over the budget, instead of ending as soon as there are enough: load that comes and goes
    /// then disturbs some blocks, and the interval of a median is that of the blocks.
    #[arg(skip)]
    pub is_spread: bool,
    /// Set it from anywhere to end the probe early with [`ProbeError::Cancelled`].
    #[arg(skip)]
    pub cancel: Arc<AtomicBool>,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            budget: BUDGET,
            buffer_bytes: None,
            max_samples: MAX_SAMPLES,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// The nodes' pools where they have enough free pages, else transparent huge pages, else base pages
    #[default]
    Auto,
    /// Transparent huge pages, else base pages
    #[value(name = "thp")]
    Transparent,
    /// The nodes' pools; where they lack pages, transparent huge pages and a warning
    #[value(name = "hugetlb")]
    Pool,
    /// Base pages
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
