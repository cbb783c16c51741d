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
//! Looks take at most one part in 120 of a CPU (`Pace`): with many threads they become rarer, until they are two seconds
//! apart.

mod actuator;
mod adopt;
mod lineage;
mod look;
mod memory;
mod threads;

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;
use std::{fmt, io};

use nearfar_change::lease::{LeaseError, Leases};
use nearfar_machine::{CpuSet, Machine, NodeId};
use nearfar_proc::memory_policy::{MemoryPolicy, PreparedPolicy};
use nearfar_proc::tasks::{self, is_gone};
use nearfar_proc::{affinity, error_text};
use serde::{Deserialize, Serialize};

use crate::cgroup::CgroupError;
use crate::near::NearError;
use crate::rule::RuleOptions;

pub use actuator::{Actuator, Effort, Keeper, Load, Looked};
pub use nearfar_proc::OpenProcess;
pub use threads::ThreadMasks;

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
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
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
        self.ask(move |threads, _| threads.adopt_open(&process))?
    }

    /// Keeps a process no longer, if it was kept: it has its own masks back when this returns. It is not taken in again as the
    /// child of another one.
    pub fn let_go(&self, pid: i32) {
        let _ = self.ask(move |threads, _| threads.let_go_as_asked(pid));
    }

    /// Whether no thread is left to keep; a cgroup may fill again.
    pub fn is_idle(&self) -> bool {
        self.report().is_ok_and(|report| report.threads_now == 0)
    }
}

/// Why a process or group is not kept, or was not put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// There is no such node, or it has no CPUs.
    #[error(transparent)]
    Node(#[from] NearError),
    /// The kernel does not count waiting.
    #[error(
        "this kernel does not say how long tasks wait for a CPU (/proc/PID/schedstat: {reason}): it was built without \
         CONFIG_SCHED_INFO; `taskset` confines without looking"
    )]
    NoWaits { reason: String },
    /// `ended`: it is a zombie.
    #[error("there is no process {pid}{}", if *.ended { " any more: it has ended, and its parent has not asked how" } else { "" })]
    NoProcess { pid: i32, ended: bool },
    /// The process is another user's, or cannot be looked at.
    #[error("cannot keep process {pid}: {reason}")]
    Process { pid: i32, reason: String },
    /// The program is confined to other nodes. `who`: "process 4711"; `own`: the CPUs it may use; `home`: the node's.
    #[error(
        "{who} may run on CPUs {own}, and none of them is one of node {node} (CPUs {home}): let it run there first \
         (taskset, or its cpuset), or prefer another node"
    )]
    Elsewhere {
        who: String,
        own: CpuSet,
        node: NodeId,
        home: CpuSet,
    },
    /// Another keeper has it: process `by`, which says that it does `what`.
    #[error("process {pid} is kept by process {by} already, which says \"{what}\": end that first")]
    Kept { pid: i32, by: u32, what: String },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A group's cpuset was asked for and does not serve.
    #[error("not through its cpuset: {reason}")]
    NotByCpuset { reason: String },
    /// A group's cpuset has other CPUs than the keeper gave it.
    #[error("its cpuset was set to {cpus} meanwhile")]
    CpusetChanged { cpus: String },
    #[error("the group is gone")]
    GroupGone,
    #[error("cannot wait for tasks: {}", error_text(.0))]
    Wait(#[source] io::Error),
    /// What was there before cannot be put on record or put back.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("cannot start {program}: {}", error_text(reason))]
    Spawn { program: String, reason: io::Error },
    #[error("cannot start the keeper's thread: {}", error_text(.0))]
    Start(#[source] io::Error),
    /// The keeper's thread is gone.
    #[error("the keeper has ended; the masks are put back by its guard or by the next nearfar")]
    Died,
}

impl KeeperError {
    /// What the system said of a process.
    fn of_process(pid: i32, error: &io::Error) -> Self {
        let reason = error_text(error);
        match error.kind() {
            _ if is_gone(error) => Self::NoProcess { pid, ended: false },
            io::ErrorKind::PermissionDenied => Self::Process {
                pid,
                reason: format!("{reason}; it takes its owner, or root (CAP_SYS_NICE)"),
            },
            _ => Self::Process { pid, reason },
        }
    }
}

/// What a keeper did so far, or in its whole life.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct KeeperReport {
    /// The preferred node.
    pub node: NodeId,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Whether all kept threads may run on this node only anyway: nothing was narrowed.
    pub nothing_to_narrow: bool,
    /// How long it kept.
    pub seconds: f64,
    /// CPU time that its thread took.
    pub cpu_s: f64,
    /// How often it looked.
    pub looks: u64,
    /// The longest time between two looks that it chose, so as not to cost more.
    pub longest_pause_s: f64,
    /// Processes that were kept.
    pub processes: u64,
    /// Threads that were seen; one that lived between two looks was kept too, but not seen.
    pub threads: u64,
    /// Threads that are kept now.
    pub threads_now: u64,
    /// How often a thread was confined to the node, at the begin and when it came back.
    pub narrowed: u64,
    /// How often a thread was released.
    pub widened: u64,
    /// Threads that run anywhere now.
    pub out_now: u64,
    /// Threads that set their own affinity, or had it set, and were skipped from then on.
    pub skipped: Vec<SkippedTask>,
    /// The same in numbers; the list holds the first hundred.
    pub skipped_count: u64,
    /// Whether a guard stands by that puts the masks back at once if the keeper is killed.
    pub guarded: bool,
    /// Memory that followed, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MovedMemory>,
}

/// A thread that has chosen for itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SkippedTask {
    pub tid: i32,
    /// Its process.
    pub pid: i32,
    pub name: String,
    /// The CPUs it has now.
    pub cpus: CpuSet,
}

/// Memory that followed its tasks. Pages are of the system's size, also where they are parts of huge ones.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct MovedMemory {
    /// How often a process's pages were moved to the node.
    pub moves: u64,
    /// Pages that were moved, over all moves.
    pub pages_moved: u64,
    /// Pages that could not be moved, over all moves: the sum of those below.
    pub pages_left: u64,
    /// Of these, pages that other processes map as well.
    pub left_shared: u64,
    /// Of these, pages that the kernel had in use at that moment.
    pub left_busy: u64,
    /// Of these, pages for which the node had no room.
    pub left_no_memory: u64,
    /// Of these, all others: unmapped meanwhile, or of a kind that cannot be moved.
    pub left_other: u64,
    /// Whether the keeper ended before all pages had been looked at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_interrupted: bool,
    /// The last refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl MovedMemory {
    fn add(&mut self, more: &Self) {
        self.pages_moved += more.pages_moved;
        self.pages_left += more.pages_left;
        self.left_shared += more.left_shared;
        self.left_busy += more.left_busy;
        self.left_no_memory += more.left_no_memory;
        self.left_other += more.left_other;
    }
}

/// As many are listed.
const LISTED: usize = 100;

/// One line, for a log.
impl fmt::Display for KeeperReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            threads,
            processes,
            seconds,
            widened,
            skipped_count,
            ..
        } = self;
        write!(
            f,
            "{threads} threads of {processes} processes in {seconds:.0} s, released {widened} times"
        )?;
        if *skipped_count > 0 {
            write!(f, ", {skipped_count} skipped with a mask of their own")?;
        }
        write!(f, "; {:.2} % of a CPU for it", 100.0 * self.cpu_share())
    }
}

impl KeeperReport {
    /// Nothing yet.
    pub(crate) fn new(node: NodeId, home: &CpuSet, guarded: bool) -> Self {
        Self {
            node,
            cpus: home.clone(),
            guarded,
            ..Self::default()
        }
    }

    /// The keeper's own CPU time as a share of the time it kept.
    pub fn cpu_share(&self) -> f64 {
        if self.seconds > 0.0 {
            self.cpu_s / self.seconds
        } else {
            0.0
        }
    }
}

impl Keeper {
    /// Starts a command on its node's CPUs and keeps it. What the command makes is kept too, also where its maker has ended
    /// before it was seen: this process becomes the parent of such orphans (PR_SET_CHILD_SUBREAPER).
    ///
    /// # Errors
    /// As [`Keeper::start`], and when the command cannot be started.
    pub fn spawn(
        mut command: Command,
        policy: Option<MemoryPolicy>,
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<(Self, Child), KeeperError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |reason| KeeperError::Spawn {
            program: program.clone(),
            reason,
        };
        let interval = options.interval;
        let mut kept = ThreadMasks::new(node, machine, options)?;
        let own = affinity::get(0).map_err(failed)?;
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        let process = std::process::id().cast_signed();
        let group = kept
            .masks
            .group_of(me, &own)
            .ok_or_else(|| kept.elsewhere(program.clone(), own.clone()))?;
        // On record before there is a task: a child of this thread's process with the narrow mask is ours.
        kept.orphans_except = Some(own_children());
        kept.note_sessions();
        kept.note(group, &[(process, me)])?;
        let narrow = kept.masks.groups[group].narrow.clone();
        let confine = affinity::Confinement::to(&narrow);
        let policy = policy.map(|policy| policy.on(&policy.nodes(node, &machine.nodes_for_any())));
        // SAFETY: between fork and exec only system calls are made, on memory that was prepared before.
        unsafe {
            command.pre_exec(move || {
                confine.calling_thread()?;
                policy
                    .as_ref()
                    .map_or(Ok(()), PreparedPolicy::calling_thread)
            });
        }
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let child = command.spawn().map_err(failed)?;
        // The caller waits for it.
        kept.orphans_except
            .get_or_insert_default()
            .insert(child.id().cast_signed());
        kept.counts.narrowed += u64::from(kept.masks.confines(group));
        // Its first system call set the narrow mask, which is no choice of the program.
        kept.observe();
        let adopted = kept.adopt(child.id().cast_signed(), Some(group));
        // A command that has ended already was kept all its life.
        match adopted {
            Ok(()) | Err(KeeperError::Process { .. } | KeeperError::NoProcess { .. }) => {
                Ok((Self::run(kept, interval)?, child))
            }
            Err(error) => Err(error),
        }
    }
}

fn own_children() -> BTreeSet<i32> {
    let me = std::process::id().cast_signed();
    let threads = tasks::threads(me).unwrap_or_default();
    threads
        .into_iter()
        .flat_map(|tid| tasks::children(me, tid).unwrap_or_default())
        .collect()
}
