//! What makes a measurement worth less, each with what probably happened and what to do about it.

use std::fmt;

use nearfar_experiment::sampler;
use nearfar_machine::{CpuId, NodeId};
use serde::{Deserialize, Serialize};

use crate::node_buffers::PageKind;

/// A warning about the measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Warning {
    /// The clock frequency may have been low.
    Governor { governor: String },
    /// A hypervisor gave the CPU to another guest.
    StolenTime {
        /// The CPU that lost most.
        cpu: CpuId,
        /// How much of the measuring time, in percent.
        percent: f64,
    },
    /// The buffer is smaller than several times the last-level cache.
    SmallBuffer {
        /// What the caches asked for, in bytes.
        wanted_bytes: u64,
        /// What it became, in bytes.
        got_bytes: u64,
        #[serde(alias = "because")]
        reason: String,
    },
    /// The size of the last-level cache is not known.
    UnknownCache,
    /// Memory could not be bound to its node; it was touched first from there instead.
    BindRefused { node: NodeId, error: String },
    /// Where the pages are could not be asked.
    Unverified { node: NodeId, error: String },
    /// Some pages are on another node than they were meant for.
    PagesElsewhere {
        node: NodeId,
        /// How many of the pages that were looked at, in percent.
        percent: f64,
    },
    /// Base pages only: most loads include an address translation.
    BasePages,
    /// Interleaved memory has other pages than that of single nodes: a part of the difference is address translation.
    OtherPages {
        interleaved: PageKind,
        bound: PageKind,
    },
    /// Base pages, as asked for.
    BasePagesAsked,
    /// The pool of huge pages that was asked for could not be used.
    NoPool {
        node: NodeId,
        #[serde(alias = "because")]
        reason: String,
    },
    /// Other processes kept CPUs busy.
    OtherLoad {
        /// How much they used, in percent of one CPU.
        percent: f64,
    },
    /// The scheduler took the CPU away within timed parts.
    Interrupted {
        /// Involuntary context switches in timed parts.
        switches: u64,
        /// Samples taken, the dropped ones included.
        samples: u64,
    },
    /// What the samples themselves show.
    #[serde(untagged)]
    Sampling(sampler::Warning),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Governor { governor } => write!(
                f,
                "the CPU frequency governor is {governor}: clocks may have been low; for comparable figures set it to \
                 performance while measuring"
            ),
            Self::StolenTime { cpu, percent } => write!(
                f,
                "the hypervisor took {percent:.1} % of CPU {cpu}'s time: times may be too long and rates too low; repeat \
                 when the host is quiet"
            ),
            Self::SmallBuffer { wanted_bytes, got_bytes, reason } => write!(
                f,
                "buffers are {} instead of {}, because {reason}: the smaller they are, the more loads come from a cache",
                mib(*got_bytes),
                mib(*wanted_bytes)
            ),
            Self::UnknownCache => {
                f.write_str("the size of the last-level cache is not known: part of the loads may come from it")
            }
            Self::BindRefused { node, error } => write!(
                f,
                "memory could not be bound to node {node} ({error}; containers often forbid mbind): it was touched \
                 first from that node instead, which places it there only while the node has free memory"
            ),
            Self::Unverified { node, error } => {
                write!(f, "whether node {node}'s buffer is on that node could not be checked (move_pages: {error})")
            }
            Self::PagesElsewhere { node, percent } => write!(
                f,
                "{percent:.0} % of node {node}'s buffer is on another node: the node is short of memory, or a policy \
                 forbids it; its figures mix both nodes"
            ),
            Self::BasePages => f.write_str(
                "the kernel gave no huge pages: most loads include an address translation; transparent huge pages set \
                 to madvise or always would avoid that",
            ),
            Self::OtherPages { interleaved, bound } => write!(
                f,
                "interleaved memory has {interleaved}, that of single nodes {bound}: a part of the difference is address translation"
            ),
            Self::BasePagesAsked => f.write_str("huge pages were declined: most loads include an address translation"),
            Self::NoPool { node, reason } => write!(
                f,
                "node {node}'s pool of huge pages was not used ({reason}): its pages are transparent ones or base pages; \
                 nr_hugepages below the node's hugepages folder in /sys/devices/system/node fills the pool"
            ),
            Self::OtherLoad { percent } => write!(
                f,
                "other processes kept {percent:.0} % of a CPU busy: they share caches, memory and CPUs with the \
                 measurement; repeat on an idle machine"
            ),
            Self::Interrupted { switches, samples } => write!(
                f,
                "{switches} context switches fell into the {samples} samples: other tasks wanted the same CPUs and \
                 caches; repeat on an idle machine"
            ),
            Self::Sampling(warning) => warning.fmt(f),
        }
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
