//! What is asked of a probe.

use std::fmt;
use std::str::FromStr;

use nearfar_loops::access::Pattern;
use nearfar_machine::{CpuSet, NodeId};
use serde::{Deserialize, Serialize};

use crate::options::HugePages;

/// Smallest buffer: one line of the largest cache line there is, twice, so that a chain has somewhere to go.
const LEAST_BYTES: u64 = 4096;
/// Largest buffer: half of the addresses of a process on a machine with four-level page tables.
const MOST_BYTES: u64 = 1 << 46;

/// Where memory or CPUs are: on a node, or left to the kernel. In JSON the node's number or `"floating"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub enum Where {
    /// Bound to this node.
    Node(NodeId),
    /// Not bound: the default policy for memory, the inherited affinity for CPUs.
    Floating,
}

impl Where {
    /// The node, unless it is left to the kernel.
    pub fn node(self) -> Option<NodeId> {
        match self {
            Self::Node(node) => Some(node),
            Self::Floating => None,
        }
    }
}

/// As the published table has it: the node's number, or F.
impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => f.pad(&node.to_string()),
            Self::Floating => f.pad("F"),
        }
    }
}

/// A word that is neither a node's number nor "floating".
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is neither a node's number nor \"floating\" (F)")]
pub struct NoPlace(String);

impl FromStr for Where {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        if text.eq_ignore_ascii_case("f") || text.eq_ignore_ascii_case("floating") {
            return Ok(Self::Floating);
        }
        let number = text
            .parse()
            .ok()
            .filter(|&number| number <= nearfar_machine::MAX_NUMBER);
        number
            .map(|number| Self::Node(NodeId(number)))
            .ok_or_else(|| NoPlace(text.to_owned()))
    }
}

/// [`Where`] in JSON.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Node(NodeId),
    Word(String),
}

impl From<Where> for Written {
    fn from(place: Where) -> Self {
        match place {
            Where::Node(node) => Self::Node(node),
            Where::Floating => Self::Word("floating".to_owned()),
        }
    }
}

impl TryFrom<Written> for Where {
    type Error = NoPlace;

    fn try_from(written: Written) -> Result<Self, NoPlace> {
        match written {
            Written::Node(node) => Ok(Self::Node(node)),
            Written::Word(word) if word == "floating" => Ok(Self::Floating),
            Written::Word(word) => Err(NoPlace(word)),
        }
    }
}

/// One run of the probe.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSpec {
    /// How the buffer is gone through.
    #[serde(default)]
    pub pattern: Pattern,
    /// Size of the buffer in bytes; rounded up to whole pages. [`default_buffer_bytes`](super::default_buffer_bytes)
    /// gives one far beyond the caches.
    pub bytes: u64,
    /// Outer rounds.
    pub counts: u32,
    /// Accesses in each round.
    pub steps: u64,
    /// Where the memory is.
    pub memory: Where,
    /// Where the process may run.
    pub cpus: Where,
    /// The CPUs of `cpus`' node; `None` to have the child ask the kernel which these are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_set: Option<CpuSet>,
    /// Which pages the buffer has. [`HugePages::Auto`] means base pages here: the kernel never moves pages of a pool
    /// between nodes, and transparent ones only as a whole, which would hide what NUMA balancing does.
    #[serde(default)]
    pub huge_pages: HugePages,
}

/// What is asked of a probe that no machine can do.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpecError {
    #[error("bytes is {0}: at least {LEAST_BYTES} are needed")]
    TooSmall(u64),
    #[error("bytes is {0}: no process can map more than {MOST_BYTES}")]
    TooLarge(u64),
    #[error("counts is 0: at least one round is needed")]
    NoRounds,
    #[error("steps is 0: a round needs at least one access")]
    NoSteps,
    #[error("cpu_set is empty: leave it away to have the node's CPUs")]
    NoCpus,
    #[error("cpu_set is given, but cpus is \"floating\"")]
    UnboundCpus,
}

impl ProbeSpec {
    pub(super) fn check(&self) -> Result<(), SpecError> {
        let unbound = self.cpu_set.is_some() && self.cpus == Where::Floating;
        match () {
            () if self.bytes < LEAST_BYTES => Err(SpecError::TooSmall(self.bytes)),
            () if self.bytes > MOST_BYTES => Err(SpecError::TooLarge(self.bytes)),
            () if self.counts == 0 => Err(SpecError::NoRounds),
            () if self.steps == 0 => Err(SpecError::NoSteps),
            () if self.cpu_set.as_ref().is_some_and(CpuSet::is_empty) => Err(SpecError::NoCpus),
            () if unbound => Err(SpecError::UnboundCpus),
            () => Ok(()),
        }
    }
}
