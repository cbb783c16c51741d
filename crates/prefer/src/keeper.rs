//! The keeper: keeps tasks on their node while it has room, releases the surplus while it is full.
//!
//! ```text
//!  start ─► lease (own masks on record, guard) ─► narrow ─► a thread of its own:
//!                                                            every 100 ms   how long did each run and wait; who came and went
//!                                                            rule           who leaves, who is confined again
//!  stop  ─► own masks back ─► report
//! ```
//!
//! A thread's mask is either *narrow* (what its program asked for, on its node's CPUs) or its program's *own*. What a kept
//! thread makes inherits its mask, so it needs no work to be kept; it is found at the next look. A mask that is neither was
//! set by the program or its operator, and the thread is skipped from then on.
//!
//! Looks cost about one part in a hundred and twenty of a CPU's time at most (`pace.rs`): with many threads they become rarer, not
//! dearer, until they are two seconds apart.

mod adopt;
mod error;
mod home;
mod identity;
mod kept;
mod lineage;
mod look;
mod memory;
mod observer;
mod pace;
mod report;
mod spawn;
mod walk;

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearfar_lease::Leases;
use nearfar_machine::{CpuSet, Machine, NodeId};

pub use error::KeeperError;
pub use identity::OpenProcess;
pub use memory::MemoryPolicy;
pub(crate) use report::cpu_time;
pub use report::{KeeperReport, MovedMemory, SkippedTask};

use kept::Kept;
use memory::Mover;
use pace::Pace;

use crate::rule::RuleOptions;

/// Whom to keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Targets {
    /// Processes by number, with all their threads, and the processes they make from now on.
    Pids(Vec<i32>),
    /// The same, for processes that were looked at before: one that has ended since is refused, whoever has its number now.
    Processes(Vec<OpenProcess>),
    /// The processes of a cgroup and of those below it, and whoever is moved there.
    Cgroup(PathBuf),
}

/// What becomes of the memory of who is kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Memory {
    /// Its policy is its own affair.
    #[default]
    Untouched,
    /// Its pages, except those that other processes map, follow it to its node whenever it comes there (move_pages(2)).
    Follow,
}

/// How to keep.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The time between two looks; longer where looks are dear.
    pub interval: Duration,
    /// The thresholds.
    pub rule: RuleOptions,
    /// Whether processes that a kept one makes are kept too. Threads always are.
    pub children: bool,
    /// What becomes of memory.
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

/// A keeper at work, in a thread of its own. Dropped, it puts everything back as [`Keeper::stop`] does.
pub struct Keeper {
    orders: Sender<Order>,
    thread: Option<JoinHandle<Result<KeeperReport, KeeperError>>>,
}

enum Order {
    Add(OpenProcess, Sender<Result<(), KeeperError>>),
    LetGo(i32, Sender<()>),
    Report(Sender<KeeperReport>),
    Stop,
}

impl Keeper {
    /// Starts to keep. Every thread there is is on its node's CPUs when this returns.
    ///
    /// # Errors
    /// When the node has no CPUs, a process is gone or somebody else's, none of its CPUs is the node's, the kernel does not say
    /// how long tasks wait, or there is nowhere to keep the old masks.
    pub fn start(
        targets: Targets,
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<Self, KeeperError> {
        let mut kept = Kept::new(node, machine, options)?;
        kept.adopt_targets(targets)?;
        Ok(Self::of(kept))
    }

    fn of(kept: Kept) -> Self {
        let (orders, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || keep(kept, &inbox));
        // Without a thread `kept` is dropped, and its lease with it.
        Self {
            orders,
            thread: thread.ok(),
        }
    }

    /// Keeps another process too; it is on its node's CPUs when this returns.
    ///
    /// # Errors
    /// As [`Keeper::start`]; the others are kept on.
    pub fn add(&self, process: OpenProcess) -> Result<(), KeeperError> {
        let (answer, answered) = mpsc::channel();
        self.orders
            .send(Order::Add(process, answer))
            .map_err(|_| KeeperError::Died)?;
        answered.recv().map_err(|_| KeeperError::Died)?
    }

    /// Keeps a process no longer, if it was kept: it has its own masks back when this returns. It is not taken in again as the
    /// child of another one.
    pub fn let_go(&self, pid: i32) {
        let (answer, answered) = mpsc::channel();
        if self.orders.send(Order::LetGo(pid, answer)).is_ok() {
            let _ = answered.recv();
        }
    }

    /// What was done so far.
    ///
    /// # Errors
    /// When the keeper's thread is gone.
    pub fn report(&self) -> Result<KeeperReport, KeeperError> {
        let (answer, answered) = mpsc::channel();
        self.orders
            .send(Order::Report(answer))
            .map_err(|_| KeeperError::Died)?;
        answered.recv().map_err(|_| KeeperError::Died)
    }

    /// Whether anybody is left to keep; a cgroup may fill again.
    pub fn is_idle(&self) -> bool {
        self.report().is_ok_and(|report| report.threads_now == 0)
    }

    /// Ends: gives every thread the mask that its program asked for.
    ///
    /// # Errors
    /// When a mask could not be put back; the next nearfar tries again.
    pub fn stop(mut self) -> Result<KeeperReport, KeeperError> {
        self.end().unwrap_or(Err(KeeperError::Died))
    }

    fn end(&mut self) -> Option<Result<KeeperReport, KeeperError>> {
        let thread = self.thread.take()?;
        let _ = self.orders.send(Order::Stop);
        thread.join().ok()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn keep(mut kept: Kept, inbox: &Receiver<Order>) -> Result<KeeperReport, KeeperError> {
    let mut pace = Pace::new(kept.options.interval);
    let (mut due, mut last) = (Instant::now() + kept.options.interval, Instant::now());
    loop {
        match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Order::Add(process, answer)) => {
                let _ = answer.send(kept.adopt_open(&process));
            }
            Ok(Order::LetGo(pid, answer)) => {
                kept.let_go_as_asked(pid);
                let _ = answer.send(());
            }
            Ok(Order::Report(answer)) => {
                let _ = answer.send(kept.report());
            }
            Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return kept.end(),
            Err(RecvTimeoutError::Timeout) => {
                let mood = kept.look();
                let now = Instant::now();
                let pause = pace.after(mood, now.duration_since(last), kept.spent());
                kept.paused(pause);
                (due, last) = (now + pause, now);
            }
        }
    }
}

/// The CPUs of a node that are online.
fn home_of(node: NodeId, machine: &Machine) -> Result<CpuSet, KeeperError> {
    let known = machine.node(node).ok_or(KeeperError::NoNode {
        node,
        there: machine.online_node_set(),
    })?;
    let home = known.cpus.intersection(&machine.cpu_states.online);
    if home.is_empty() {
        Err(KeeperError::NoCpus { node })
    } else {
        Ok(home)
    }
}
