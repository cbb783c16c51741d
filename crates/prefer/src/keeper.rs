//! The keeper: keeps tasks on their node while it has room, releases the surplus while it is full.
//!
//! ```text
//! Keeper<A> ── a thread with one loop (actuator.rs), which waits, looks, decides, acts and paces itself
//!   A = ThreadMasks   threads of processes one by one, through their affinity masks     (this folder)
//!   A = GroupCpuset   a control group as one, through its cpuset                        (crate::cgroup)
//!
//! start ─► lease: old masks on record, guard ─► narrow ─► the loop ─► stop: masks back, report
//! ```
//!
//! A thread's mask is either *narrow* (what its program asked for, on its node's CPUs) or its program's *own*. What a kept
//! thread makes inherits its mask, so it needs no work to be kept; it is found at the next look. A mask that is neither was
//! set by the program or its operator, and the thread is skipped from then on.
//!
//! Looks take at most one part in 120 of a CPU (`pace.rs`): with many threads they become rarer, until they are two seconds
//! apart.

mod actuator;
mod adopt;
mod error;
mod home;
mod identity;
mod ignored;
mod lineage;
mod look;
mod masks;
mod memory;
mod observer;
mod pace;
mod record;
mod report;
mod spawn;
mod threads;
mod walk;

use std::path::PathBuf;
use std::time::Duration;

use nearfar_change::lease::Leases;
use nearfar_machine::{Machine, NodeId};

pub use error::KeeperError;
pub use identity::OpenProcess;
pub use memory::MemoryPolicy;
pub use report::{KeeperReport, MovedMemory, SkippedTask};

use actuator::Running;
pub use actuator::{Actuator, Effort, Looked};
pub use pace::Load;
pub use threads::ThreadMasks;

use crate::rule::RuleOptions;

/// What to keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Targets {
    /// Processes by number, with all their threads, and the processes they make from now on.
    Pids(Vec<i32>),
    /// The same, for processes that were looked at before: one that has ended since is refused, also if another has its number now.
    Processes(Vec<OpenProcess>),
    /// The processes of a cgroup and of those below it, and those that are moved there.
    Cgroup(PathBuf),
}

/// What becomes of the memory of kept processes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Memory {
    /// It is left alone.
    #[default]
    Untouched,
    /// Its pages, except those that other processes map, follow it to its node whenever it comes there (move_pages(2)).
    Follow,
}

/// How to keep.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The time between two looks; longer where they cost much.
    pub interval: Duration,
    pub rule: RuleOptions,
    /// Whether processes that a kept one makes are kept too. Threads always are.
    pub children: bool,
    pub memory: Memory,
    /// Whether to observe forks and changes of affinity through tracepoints where this user may: exact where /proc is not
    /// (docs/prefer.md).
    pub observe: bool,
    /// Where the running system describes its nodes, if the machine is that one: /sys/devices/system/node. The node's CPUs are
    /// read again now and then, since some may come online. None: they stay what the machine says.
    pub nodes: Option<PathBuf>,
    /// Where the old masks are kept; by default where this user's leases are.
    pub leases: Option<Leases>,
}

impl Default for KeeperOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(100),
            rule: RuleOptions::default(),
            children: true,
            memory: Memory::default(),
            observe: false,
            nodes: None,
            leases: None,
        }
    }
}

/// A keeper in a thread of its own: of processes through the masks of their threads, or of a group through its cpuset
/// ([`crate::cgroup::GroupCpuset`]). Dropped, it puts everything back as [`Keeper::stop`] does.
pub struct Keeper<A: Actuator = ThreadMasks>(Running<A>);

impl<A: Actuator> Keeper<A> {
    pub(crate) fn run(actuator: A, interval: Duration) -> Result<Self, KeeperError> {
        Running::start(actuator, interval).map(Self)
    }

    /// Whether it keeps still: a group may be gone, or another program may have set its CPUs.
    pub fn is_running(&self) -> bool {
        self.0.is_running()
    }

    /// What was done so far.
    ///
    /// # Errors
    /// When the keeper's thread has ended.
    pub fn report(&self) -> Result<A::Report, KeeperError> {
        self.0.ask(|actuator, effort| actuator.report(effort))
    }

    /// Ends, and puts back what the tasks had.
    ///
    /// # Errors
    /// When something could not be put back; the next nearfar tries again.
    pub fn stop(mut self) -> Result<A::Report, KeeperError> {
        self.0.stop()
    }
}

impl Keeper {
    /// Starts to keep. Every thread there is is on its node's CPUs when this returns; one that was being made meanwhile has its maker's
    /// old mask until the next look.
    ///
    /// # Errors
    /// When the node has no CPUs, a process is gone or another user's, none of its CPUs is the node's, the kernel does not say
    /// how long tasks wait, or the old masks cannot be put on record.
    pub fn start(
        targets: Targets,
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<Self, KeeperError> {
        let interval = options.interval;
        let mut threads = ThreadMasks::new(node, machine, options)?;
        threads.adopt_targets(targets)?;
        Self::run(threads, interval)
    }

    /// Keeps another process too; it is on its node's CPUs when this returns.
    ///
    /// # Errors
    /// As [`Keeper::start`]; the others are kept on.
    pub fn add(&self, process: OpenProcess) -> Result<(), KeeperError> {
        self.0.ask(move |threads, _| threads.adopt_open(&process))?
    }

    /// Keeps a process no longer, if it was kept: it has its own masks back when this returns. It is not taken in again as the
    /// child of another one.
    pub fn let_go(&self, pid: i32) {
        let _ = self.0.ask(move |threads, _| threads.let_go_as_asked(pid));
    }

    /// Whether no thread is left to keep; a cgroup may fill again.
    pub fn is_idle(&self) -> bool {
        self.report().is_ok_and(|report| report.threads_now == 0)
    }
}
