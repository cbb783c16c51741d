//! Tasks and groups of tasks: where they may run, where their memory is.

use serde::{Deserialize, Serialize};

use crate::id::{CpuId, NodeId};
use crate::known::Known;
use crate::set::{CpuSet, NodeSet};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Task {
    pub pid: i32,
    /// The kernel's name for it (`comm`), at most 15 bytes; never its command line.
    pub name: String,
    /// CPUs its main thread may run on.
    pub allowed_cpus: Known<CpuSet>,
    /// Nodes its memory may come from.
    pub allowed_nodes: Known<NodeSet>,
    /// The CPU its main thread ran on last.
    pub last_cpu: Known<CpuId>,
    /// Its memory by node, in bytes; nodes without any are left out.
    pub memory: Known<Vec<NodeBytes>>,
    /// Memory policies of its mappings and the bytes under each (`default`, `bind:0`, `interleave:0-3`).
    pub policies: Known<Vec<PolicyBytes>>,
    /// The node automatic NUMA balancing prefers for it; `null` while it has chosen none.
    pub preferred_node: Known<Option<NodeId>>,
    /// Locked and pinned bytes (`VmLck` and `VmPin`): NUMA balancing cannot move them.
    pub pinned_bytes: Known<u64>,
    /// User and system time so far, in milliseconds.
    pub cpu_ms: Known<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeBytes {
    pub node: NodeId,
    pub bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PolicyBytes {
    /// The policy as `/proc/PID/numa_maps` writes it.
    pub policy: String,
    /// Resident bytes under it.
    pub bytes: u64,
}

/// A cpuset: CPUs and memory nodes that a group of tasks is confined to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cpuset {
    /// The group's path below the hierarchy's root, `/system.slice/redis.service`.
    pub path: String,
    /// The CPUs its tasks get (`cpuset.cpus.effective`, or `cpuset.cpus` of version 1).
    pub cpus: Known<CpuSet>,
    /// The nodes its tasks get memory from (`cpuset.mems.effective`).
    pub nodes: Known<NodeSet>,
    /// Whether this group is configured; otherwise it inherits.
    pub configured: bool,
}
