//! NUMA balancing's own counts: of the whole machine, and of a task that is alive.
//!
//! ```text
//! /proc/vmstat       numa_hint_faults 120     the whole machine, since it was started
//! /proc/PID/sched    numa_pages_migrated 7    one task; with CONFIG_SCHED_DEBUG, gone when it ends
//! ```

use nearfar_machine::{Known, NodeId};
use nearfar_proc::{Sched, meminfo, tasks};
use serde::{Deserialize, Serialize};

/// Counts of the whole machine (mm/vmstat.c), since it was started or between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MachineCounts {
    /// Page faults that balancing provoked to learn who uses what.
    pub hint_faults: u64,
    /// Those of them where the memory was on the node of the CPU that used it.
    pub hint_faults_local: u64,
    /// Pages that it moved to where they were used.
    pub pages_migrated: u64,
    /// Pages that it unmapped to provoke faults.
    pub pte_updates: u64,
}

/// Where a living task's memory is, as NUMA balancing sees it (proc_sched_show_task() in kernel/sched/debug.c).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskCounts {
    /// The node on which it would run the task.
    pub preferred_node: Option<NodeId>,
    /// Pages that it moved in this task's faults so far.
    pub pages_migrated: u64,
    /// Recent hint faults; the kernel halves them now and then, so they are weights and no count.
    pub recent_faults: u64,
    /// The same by the node of the memory, lowest node first.
    pub by_node: Vec<(NodeId, u64)>,
}

impl MachineCounts {
    /// The counts so far, or why this system has none.
    pub fn read() -> Known<Self> {
        const FILE: &str = "/proc/vmstat";
        match std::fs::read_to_string(FILE) {
            Ok(text) => Self::parse(&text),
            Err(error) => Known::no(format!("cannot read {FILE}: {error}")),
        }
    }

    /// The counts in the text of /proc/vmstat.
    pub fn parse(text: &str) -> Known<Self> {
        let count = |key: &'static str| -> Result<u64, &'static str> {
            meminfo::vmstat(text.as_bytes(), key).ok_or(key)
        };
        let counts = || {
            Ok(Self {
                hint_faults: count("numa_hint_faults")?,
                hint_faults_local: count("numa_hint_faults_local")?,
                pages_migrated: count("numa_pages_migrated")?,
                pte_updates: count("numa_pte_updates")?,
            })
        };
        Known::from_result(counts().map_err(|key: &str| {
            format!("/proc/vmstat has no count {key}: a kernel without NUMA balancing")
        }))
    }

    /// What was counted after an earlier look.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            hint_faults: self.hint_faults.saturating_sub(earlier.hint_faults),
            hint_faults_local: self
                .hint_faults_local
                .saturating_sub(earlier.hint_faults_local),
            pages_migrated: self.pages_migrated.saturating_sub(earlier.pages_migrated),
            pte_updates: self.pte_updates.saturating_sub(earlier.pte_updates),
        }
    }

    /// What was counted between an earlier look and now.
    pub fn since_then(earlier: Known<Self>) -> Known<Self> {
        earlier.and_then(|earlier| Self::read().map(|now| now.since(earlier)))
    }
}

impl TaskCounts {
    /// The counts of a task that is alive, or why there are none.
    pub fn read(pid: i32) -> Known<Self> {
        let file = format!("/proc/{pid}/sched");
        match tasks::sched(pid) {
            Ok(content) => Known::from_option(Self::parse(&content), || {
                format!("{file} has no counts of NUMA balancing")
            }),
            Err(error) => Known::no(format!(
                "cannot read {file}: {error}; it takes CONFIG_SCHED_DEBUG and a task that is alive"
            )),
        }
    }

    /// The counts in the content of /proc/PID/sched; `None` where there are none, as in kernels without NUMA balancing and for
    /// threads of the kernel.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let sched = Sched::of(content);
        let count = |key: &str| u64::try_from(sched.number(key)?).ok();
        Some(Self {
            preferred_node: sched.preferred_node()?,
            pages_migrated: count("numa_pages_migrated")?,
            recent_faults: count("total_numa_faults")?,
            by_node: sched.faults_by_node(),
        })
    }
}
