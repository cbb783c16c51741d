//! How an allocator is made, and the policies under which it keeps free tags.

use std::fmt;

use crate::Tags;
use crate::topology::{Group, Order, Topology};

/// Where free tags are kept, and whose are taken when there are none left at hand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// A cache of N / possible CPUs tags (1 to 64) for each CPU under a lock, over a pool under a lock; a CPU without tags takes all
    /// of any other CPU's cache, in turns. As the kernel's block layer did with lib/percpu_ida.c (Linux 3.13 to 3.15).
    Stock,
    /// As `Stock`, with caches of N / min(8, online CPUs) tags, as a patch of April 2014 proposed. These caches, and those of
    /// `LimitTopology`, together can hold every tag.
    Limit,
    /// As `Limit`, from the nearest cache first: same core, core group, last-level cache, node, then by the nodes' distance. As the
    /// patch that followed it.
    LimitTopology,
    /// Words of bits for each group of CPUs, without locks and without caches; where they are empty, a tag of the nearest group's.
    Coarse(Group),
    /// Words of bits with a hint for each CPU and deferred clears, as the block layer has used since: lib/sbitmap.c (Linux 4.9).
    Bitmap,
    /// A cache for each CPU without a lock (restartable sequences) while there are many tags, words of bits that all CPUs share
    /// while they are scarce or where the kernel or the C library has no restartable sequences.
    #[default]
    Auto,
}

/// How an allocator is made.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) tags: u32,
    pub(crate) capacity: u32,
    pub(crate) reserved: u32,
    pub(crate) policy: Policy,
    pub(crate) topology: Option<Topology>,
    pub(crate) possible_cpus: Option<u32>,
    pub(crate) without_rseq: bool,
}

/// Why an allocator cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no tag that is not reserved.
    NoTags,
    /// More than `MAX_TAGS`.
    TooMany(u32),
    /// The policy needs a topology: where each CPU is.
    NoTopology(Policy),
    /// The topology has no CPU, or more numbers of CPUs than 65535: how many.
    CpuNumbers(usize),
    /// No possible CPU, or more than 65535: how many.
    PossibleCpus(u32),
    /// The topology's distances are not one row for each node with a distance to each node: the first node without.
    Distances { node: u32 },
    /// A CPU is on a node without distances.
    NoSuchNode { cpu: usize, node: u32 },
    /// CPUs of a core are on several nodes, or share no last-level cache or core group: two of them.
    SplitCore { core: u32, cpus: [usize; 2] },
}

impl Builder {
    /// The most tags of an allocator: 2^24.
    pub const MAX_TAGS: u32 = 1 << 24;

    pub(crate) fn new(tags: u32) -> Self {
        Self {
            tags,
            capacity: tags,
            reserved: 0,
            policy: Policy::default(),
            topology: None,
            possible_cpus: None,
            without_rseq: false,
        }
    }

    /// Up to how many tags `Tags::resize` may grow; as many as there are at first unless this is called.
    pub fn capacity(mut self, tags: u32) -> Self {
        self.capacity = tags;
        self
    }

    /// Tags 0..`tags` are handed out by [`Tags::reserved`] only: for work that frees other tags.
    pub fn reserved(mut self, tags: u32) -> Self {
        self.reserved = tags;
        self
    }

    /// How free tags are kept.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Where each CPU is; `LimitTopology` and `Coarse` need it, the others only count steals with it.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// How many CPUs may come online: `Stock` divides the tags by it. Without it, as many as the topology has numbers or, without a
    /// topology, the system has. For experiments; there is space for the system's CPUs at least.
    pub fn possible_cpus(mut self, cpus: u32) -> Self {
        self.possible_cpus = Some(cpus);
        self
    }

    /// `Auto` without restartable sequences, as where the system has none. For tests and comparisons.
    pub fn without_rseq(mut self) -> Self {
        self.without_rseq = true;
        self
    }

    /// # Errors
    /// No tag that is not reserved, more than [`MAX_TAGS`](Self::MAX_TAGS), no possible CPU or more than 65535, a topology that
    /// contradicts itself, or a policy without the topology it needs.
    pub fn build(self) -> Result<Tags, BuildError> {
        let capacity = self.capacity.max(self.tags);
        if capacity > Self::MAX_TAGS {
            return Err(BuildError::TooMany(capacity));
        }
        if self.tags <= self.reserved {
            return Err(BuildError::NoTags);
        }
        let needs_topology = matches!(self.policy, Policy::LimitTopology | Policy::Coarse(_));
        match &self.topology {
            Some(topology) => topology.check()?,
            None if needs_topology => return Err(BuildError::NoTopology(self.policy)),
            None => {}
        }
        if let Some(cpus) = self.possible_cpus
            && !(1..=Order::MAX_CPUS).contains(&(cpus as usize))
        {
            return Err(BuildError::PossibleCpus(cpus));
        }
        Ok(Tags::of(&self, capacity))
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most_tags, most_cpus) = (Builder::MAX_TAGS, Order::MAX_CPUS);
        match self {
            Self::NoTags => f.write_str("no tag that is not reserved"),
            Self::TooMany(tags) => write!(f, "{tags} tags, at most {most_tags} are possible"),
            Self::NoTopology(policy) => {
                write!(f, "the policy {policy:?} needs to know where each CPU is")
            }
            Self::CpuNumbers(0) => f.write_str("topology: no CPU"),
            Self::CpuNumbers(cpus) => write!(
                f,
                "topology: {cpus} numbers of CPUs, at most {most_cpus} are possible"
            ),
            Self::PossibleCpus(cpus) => {
                write!(f, "{cpus} possible CPUs: 1 to {most_cpus} are possible")
            }
            Self::Distances { node } => {
                write!(f, "topology: node {node} has no distance to each node")
            }
            Self::NoSuchNode { cpu, node } => write!(
                f,
                "topology: CPU {cpu} is on node {node}, which has no distances"
            ),
            Self::SplitCore { core, cpus } => {
                let [one, other] = cpus;
                write!(
                    f,
                    "topology: CPUs {one} and {other} share core {core} but not its core group, last-level cache or node"
                )
            }
        }
    }
}

impl std::error::Error for BuildError {}
