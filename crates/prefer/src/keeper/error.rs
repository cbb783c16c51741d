//! What keeps tasks from being kept.

use std::io;

use nearfar_change::lease::LeaseError;
use nearfar_machine::{CpuSet, NodeId};
use nearfar_proc::error_text;
use nearfar_proc::tasks::is_gone;

use crate::cgroup::CgroupError;
use crate::near::NearError;

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
    pub(super) fn of_process(pid: i32, error: &io::Error) -> Self {
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
