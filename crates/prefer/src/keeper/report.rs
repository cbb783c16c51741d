//! What a keeper did.

use std::fmt;

use nearfar_machine::{CpuSet, NodeId};
use serde::Serialize;

use super::memory::Counts;

/// What a keeper did so far, or in its whole life.
#[derive(Clone, PartialEq, Debug, Serialize)]
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
    pub(super) fn add(&mut self, counts: Counts) {
        let Counts {
            moved,
            shared,
            busy,
            no_memory,
            other,
        } = counts;
        self.pages_moved += moved;
        self.pages_left += shared + busy + no_memory + other;
        self.left_shared += shared;
        self.left_busy += busy;
        self.left_no_memory += no_memory;
        self.left_other += other;
    }
}

/// As many are listed.
pub(super) const LISTED: usize = 100;

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
    pub(super) fn new(node: NodeId, home: &CpuSet, guarded: bool) -> Self {
        Self {
            node,
            cpus: home.clone(),
            nothing_to_narrow: false,
            seconds: 0.0,
            cpu_s: 0.0,
            looks: 0,
            longest_pause_s: 0.0,
            processes: 0,
            threads: 0,
            threads_now: 0,
            narrowed: 0,
            widened: 0,
            out_now: 0,
            skipped: Vec::new(),
            skipped_count: 0,
            guarded,
            memory: None,
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
