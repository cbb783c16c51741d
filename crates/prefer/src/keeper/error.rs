//! What keeps tasks from being kept.

use nearfar_lease::LeaseError;
use nearfar_machine::{CpuSet, NodeId, NodeSet};

/// Why somebody is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// There is no such node.
    #[error("there is no node {node}: this machine has {there}")]
    NoNode {
        /// The node asked for.
        node: NodeId,
        /// The nodes there are.
        there: NodeSet,
    },
    /// The node has memory only.
    #[error(
        "node {node} has no CPU that is online: prefer the nearest node that has (`nearfar topo` shows the distances)"
    )]
    NoCpus {
        /// The node asked for.
        node: NodeId,
    },
    /// The kernel does not count waiting.
    #[error(
        "this kernel does not say how long tasks wait for a CPU (/proc/PID/schedstat: {because}): it was built without \
         CONFIG_SCHED_INFO; `taskset` confines without looking"
    )]
    NoWaits {
        /// The system's answer.
        because: String,
    },
    /// There is no such process, or it has ended.
    #[error("there is no process {pid}{}", if *.ended { " any more: it has ended, and its parent has not asked how" } else { "" })]
    NoProcess {
        /// The process.
        pid: i32,
        /// Whether it is a zombie.
        ended: bool,
    },
    /// The process is somebody else's, or cannot be looked at.
    #[error("cannot keep process {pid}: {because}")]
    Process {
        /// The process.
        pid: i32,
        /// The system's answer.
        because: String,
    },
    /// The program is confined to other nodes.
    #[error(
        "{who} may run on CPUs {own}, and none of them is one of node {node} (CPUs {home}): let it run there first \
         (taskset, or its cpuset), or prefer another node"
    )]
    Elsewhere {
        /// "process 4711".
        who: String,
        /// The CPUs it may use.
        own: CpuSet,
        /// The node asked for.
        node: NodeId,
        /// The node's CPUs.
        home: CpuSet,
    },
    /// Another keeper has it.
    #[error("process {pid} is kept by process {by} already, which says \"{what}\": end that first")]
    Kept {
        /// The process.
        pid: i32,
        /// The other nearfar.
        by: u32,
        /// What it does.
        what: String,
    },
    /// The cgroup cannot be read.
    #[error(transparent)]
    Cgroup(#[from] crate::cgroup::CgroupError),
    /// The old masks cannot be kept or put back.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The command cannot be started.
    #[error("cannot start {program}: {}", nearfar_proc::error_text(because))]
    Spawn {
        /// Its name.
        program: String,
        /// The system's answer.
        because: std::io::Error,
    },
    /// The keeper's thread is gone.
    #[error("the keeper has ended; the masks are put back by its guard or by the next nearfar")]
    Died,
}
