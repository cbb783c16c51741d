//! What a probe found out.

use nearfar_machine::{CpuSet, Known, NodeId};
use serde::{Deserialize, Serialize};

use super::warning::SampleWarning;
use crate::mapping::PageKind;

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
