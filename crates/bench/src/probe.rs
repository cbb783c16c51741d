//! The probe: a tight loop over a large buffer, in a process of its own, timed.
//!
//! ```text
//!  caller                                 child: the same program, `bench child probe`
//!  Probe::prepare ── spec, one line ────► maps, touches, binds, verifies, warms up
//!                 ◄─ {"ready": ..} ──────  waits                     (attach a tracer or a keeper to its pid now)
//!  Probe::run     ── go ────────────────► counters ─ clock ─ rounds of steps ─ clock ─ counters
//!                 ◄─ {"done": ..} ───────  sleeps, so that its tracer can ask the kernel about it; ends when dropped
//! ```
//!
//! The child has one thread, so that tracing its pid traces all of it. Between the two clocks it does nothing but its
//! loads and stores: no system call, no lock, no page fault, which its own counters of faults and context switches
//! verify ([`ProbeResult::warnings`]). Floating memory is touched before the CPUs are bound: it lies where the
//! scheduler happened to have the process, as that of any program that starts and only then is confined.

mod counters;
mod serve;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

use nearfar_machine::{CpuSet, Known, Machine, NodeId};
use serde::{Deserialize, Serialize};

use crate::buffer_size::{self, Use};
use crate::child::{Child, DoneLine, ReadyLine};
use crate::options::{HugePages, ProbeOptions};
use crate::warning::Warning;

pub use crate::child::{ChildError, ServeError};
pub use crate::node_buffers::PageKind;
pub use nearfar_loops::access::Pattern;
pub use serve::serve;

/// A size for the buffer, in bytes: four times the last-level cache, at least 64 MiB (32 MiB on an emulated machine),
/// unless one of `nodes`, which are to hold it in turn, has not twice as much memory free. What had to be given up is in
/// the warnings.
pub fn default_buffer_bytes(machine: &Machine, nodes: &[NodeId]) -> (u64, Vec<Warning>) {
    // A probe is filled once a run, which is outside the budget of seconds.
    let options = ProbeOptions {
        budget: std::time::Duration::from_secs(3600),
        ..ProbeOptions::default()
    };
    let size = buffer_size::size_of(
        machine,
        nodes,
        &options,
        &Use::default(),
        buffer_size::spare_memory(),
    );
    (size.one_cpu_bytes, size.warnings)
}

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
    /// Size of the buffer in bytes; rounded up to whole pages. [`default_buffer_bytes`]
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
    /// The CPUs that unbound memory is first touched from, which decides its node; `None`: where the process happens to be. Only with bound
    /// CPUs, to which the process goes afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touch_cpus: Option<CpuSet>,
    /// Which pages the buffer has. [`HugePages::Auto`] means base pages here: the kernel never moves pages of a pool
    /// between nodes, and transparent ones only as a whole, which would hide what NUMA balancing does.
    #[serde(default)]
    pub huge_pages: HugePages,
}

impl ProbeSpec {
    /// Why no machine can do it.
    fn check(&self) -> Result<(), String> {
        let (bytes, cpu_set) = (self.bytes, self.cpu_set.as_ref());
        let reason = match () {
            () if bytes < LEAST_BYTES => {
                format!("bytes is {bytes}: at least {LEAST_BYTES} are needed")
            }
            () if bytes > MOST_BYTES => {
                format!("bytes is {bytes}: no process can map more than {MOST_BYTES}")
            }
            () if self.counts == 0 => "counts is 0: at least one round is needed".to_owned(),
            () if self.steps == 0 => "steps is 0: a round needs at least one access".to_owned(),
            () if cpu_set.is_some_and(CpuSet::is_empty) => {
                "cpu_set is empty: leave it away to have the node's CPUs".to_owned()
            }
            () if cpu_set.is_some() && self.cpus == Where::Floating => {
                "cpu_set is given, but cpus is \"floating\"".to_owned()
            }
            () if self.touch_cpus.is_some() && self.cpus == Where::Floating => {
                "touch_cpus is given, but cpus is \"floating\"".to_owned()
            }
            () => return Ok(()),
        };
        Err(reason)
    }
}

/// What the child says before its timed part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ready {
    pub pid: i32,
    /// The CPUs it may run on.
    pub cpus: CpuSet,
    /// Bytes of the buffer.
    pub buffer_bytes: u64,
    pub page_kind: PageKind,
    /// Where the buffer's pages are.
    pub pages: Known<PagesByNode>,
}

/// One run of the probe.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProbeResult {
    /// The timed part, in seconds on the wall.
    pub seconds: f64,
    /// Seconds of it that the process was on a CPU, by its own clock.
    pub on_cpu_s: f64,
    /// Seconds of it that the process waited for a CPU while it could have run.
    pub waited_s: Known<f64>,
    /// Seconds from the fork to the end of the timed part; exact to one clock tick (usually 10 ms).
    pub elapsed_life_s: f64,
    /// Outer rounds.
    pub counts: u32,
    /// Accesses in each round.
    pub steps: u64,
    /// Seconds a round, in the order of time, each the mean of `rounds_a_figure` rounds: at most 1000 figures. Empty
    /// where reading the clock would be a system call.
    pub round_s: Vec<f64>,
    /// Rounds that a figure of `round_s` stands for (the last may stand for fewer).
    pub rounds_a_figure: u32,
    /// Page faults in the timed part.
    pub faults: Faults,
    /// Context switches in the timed part.
    pub switches: Switches,
    /// Seconds that a hypervisor took from the CPUs that the process may run on, all together, in the timed part.
    pub stolen_s: Known<f64>,
    /// How often one of these CPUs, or its package, throttled for heat in the timed part.
    pub throttled: Known<u64>,
    /// Whether automatic NUMA balancing was on.
    pub numa_balancing: Known<bool>,
    /// The CPUs it may run on, at the end of the timed part.
    pub cpus: CpuSet,
    /// Bytes of the buffer.
    pub buffer_bytes: u64,
    pub page_kind: PageKind,
    /// Where the buffer's pages were before the timed part.
    pub pages_before: Known<PagesByNode>,
    /// Where they were after it.
    pub pages_after: Known<PagesByNode>,
    pub warnings: Vec<SampleWarning>,
}

/// Page faults of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Without I/O. The hint faults of NUMA balancing are among them.
    pub minor: u64,
    /// With I/O.
    pub major: u64,
}

/// Context switches of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Switches {
    pub voluntary: u64,
    /// The scheduler ran another task.
    pub involuntary: u64,
}

/// Where a buffer's pages are, by move_pages(2) without targets.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PagesByNode {
    /// Pages that were asked for their node: all, or evenly spread ones of a large buffer.
    pub looked_at: u64,
    /// Those found, by node in ascending order; nodes without any are left out.
    pub by_node: Vec<NodePages>,
    /// Those that are on no node: swapped out, or on their way.
    pub nowhere: u64,
}

impl PagesByNode {
    /// The share of the pages that is on `node`, 0 to 1.
    pub fn share_on(&self, node: NodeId) -> f64 {
        let there = self
            .by_node
            .iter()
            .find(|pages| pages.node == node)
            .map_or(0, |pages| pages.pages);
        there as f64 / self.looked_at.max(1) as f64
    }
}

/// Pages on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodePages {
    pub node: NodeId,
    pub pages: u64,
}

/// A reason to trust one run of the probe less.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SampleWarning {
    /// A hypervisor gave the CPUs to another guest.
    Stolen {
        /// How much of the time of the CPUs in use, in percent.
        percent: f64,
    },
    /// The processor slowed down for heat.
    Throttled { times: u64 },
    /// The control group's CPU quota stopped the probe.
    Quota { times: u64 },
    /// Page faults in the timed part that NUMA balancing does not explain.
    Faults {
        /// Without I/O.
        minor: u64,
        /// With I/O.
        major: u64,
    },
    /// The probe waited for something in the timed part.
    Waited { times: u64 },
    /// Far more involuntary switches than a competing load explains.
    Switched {
        /// Switches a second.
        per_second: f64,
    },
    /// Pages of bound memory were on another node when the timed part began.
    Elsewhere {
        node: NodeId,
        /// How many of the pages that were looked at, in percent.
        percent: f64,
    },
    /// Pages of bound memory left their node in the timed part.
    Moved {
        node: NodeId,
        /// How many of the pages that were looked at, in percent.
        percent: f64,
    },
    /// The kernel refused to bind the memory; all of it is on its node nevertheless.
    BindRefused { node: NodeId, error: String },
    /// Where bound pages are could not be asked.
    Unverified { node: NodeId, error: String },
    /// CPUs that the probe might use went offline, or came back, in the timed part.
    Offline {
        /// Those that were online only before or only after.
        cpus: CpuSet,
    },
    /// The probe's affinity was changed, although its CPUs are bound.
    Rebound {
        /// Where it could run at the end.
        cpus: CpuSet,
    },
}

fn often(times: u64) -> String {
    if times == 1 {
        "once".to_owned()
    } else {
        format!("{times} times")
    }
}

impl fmt::Display for SampleWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stolen { percent } => write!(
                f,
                "the hypervisor took {percent:.1} % of the CPUs' time: the run may have taken longer for it; repeat when \
                 the host is quiet"
            ),
            Self::Throttled { times } => {
                write!(
                    f,
                    "the processor throttled for heat {}: its clock was low; let it cool down",
                    often(*times)
                )
            }
            Self::Quota { times } => write!(
                f,
                "the control group's CPU quota stopped the probe {}: measure in a group without cpu.max",
                often(*times)
            ),
            Self::Faults { minor, major } => write!(
                f,
                "{minor} minor and {major} major page faults fell into the timed part: pages were swapped out, merged or \
                 moved by the kernel; memory may be short"
            ),
            Self::Waited { times } => {
                write!(
                    f,
                    "the probe waited {} in the timed part: something stopped it, such as a debugger or SIGSTOP",
                    often(*times)
                )
            }
            Self::Switched { per_second } => write!(
                f,
                "{per_second:.0} involuntary context switches per second: more than a load explains; something else wakes \
                 up very often on these CPUs"
            ),
            Self::Elsewhere { node, percent } => write!(
                f,
                "{percent:.1} % of the pages were not on node {node}, which they are bound to: the node is short of memory"
            ),
            Self::Moved { node, percent } => write!(
                f,
                "{percent:.1} % of the pages left node {node} in the timed part, although they are bound to it: another \
                 process moved them (migratepages, a cpuset with memory_migrate)"
            ),
            Self::BindRefused { node, error } => write!(
                f,
                "the memory could not be bound to node {node} ({error}; containers often forbid mbind): it is there, but \
                 may be moved"
            ),
            Self::Unverified { node, error } => {
                write!(
                    f,
                    "whether the memory is on node {node} could not be checked (move_pages: {error})"
                )
            }
            Self::Offline { cpus } => {
                write!(f, "CPUs {cpus} went offline or came back during the run")
            }
            Self::Rebound { cpus } => write!(
                f,
                "the probe's affinity was changed to CPUs {cpus} although it is bound: by a daemon or a cpuset"
            ),
        }
    }
}

/// A probe that is prepared and waits. Dropping it ends it. It stays on the thread that prepared it, with which it ends.
pub struct Probe {
    child: Child,
    ready: Ready,
}

impl Probe {
    /// Starts the child and waits until its memory is where it should be.
    ///
    /// `program` is one that answers `bench child probe`: `/proc/self/exe` from within nearfar.
    ///
    /// # Errors
    /// When the program cannot be started, the spec is impossible, or the system refuses memory or CPUs.
    pub fn prepare(program: &Path, spec: &ProbeSpec) -> Result<Self, ChildError> {
        Self::prepare_under(program, spec, |_| ())
    }

    /// The same, with something done to the child's pid before it touches any memory: attaching a keeper, say.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_under(
        program: &Path,
        spec: &ProbeSpec,
        before: impl FnOnce(i32),
    ) -> Result<Self, ChildError> {
        let mut child = Child::untold(program, "probe")?;
        before(child.pid());
        child.tell(spec)?;
        let ReadyLine { ready } = child.listen(&AtomicBool::new(false))?;
        Ok(Self { child, ready })
    }

    /// The process that will do the work, on its only thread.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// What it got.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Lets it run once, and waits for the result. The child then sleeps until it is dropped, so that what the kernel counted for
    /// it can still be asked for.
    ///
    /// # Errors
    /// When the child is killed, or `cancel` becomes true meanwhile.
    pub fn run(&mut self, cancel: &AtomicBool) -> Result<ProbeResult, ChildError> {
        self.child.say("go")?;
        let DoneLine { done } = self.child.listen(cancel)?;
        Ok(done)
    }
}
