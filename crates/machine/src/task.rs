//! Tasks and groups of tasks: where they may run, where they ran, where their memory and the cached parts of their files are.

use serde::{Deserialize, Serialize};

use crate::device::OpenDevice;
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
    /// Its memory was sampled, not counted: a count stops its mmap(2) for as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<MemorySample>,
    /// What of its memory was used, where it was watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Known<UsedMemory>>,
    /// What its memory is, in bytes.
    #[serde(default = "Known::left_out")]
    pub resident: Known<ResidentBytes>,
    /// When it started, in clock ticks since boot: with the number, what identifies it.
    #[serde(default = "Known::left_out")]
    pub start: Known<u64>,
    /// How long ago it started when it was read, in milliseconds.
    #[serde(default = "Known::left_out")]
    pub age_ms: Known<u64>,
    /// The real user id.
    #[serde(default = "Known::left_out")]
    pub user: Known<u32>,
    /// Its control group, from the root of the hierarchy: `/system.slice/redis.service`.
    #[serde(default = "Known::left_out")]
    pub group: Known<String>,
    /// The CPU time of its threads so far, by the CPU that each ran on last.
    #[serde(default = "Known::left_out")]
    pub cpu_times: Known<Vec<CpuTime>>,
    /// The devices that read and write its memory, since it has a file of theirs open: GPUs and other accelerators, RDMA, VFIO; by
    /// address.
    #[serde(default = "Known::left_out")]
    pub devices: Known<Vec<OpenDevice>>,
    /// Its threads, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<Thread>,
}

impl Task {
    /// A task of which nothing else is known.
    pub fn new(pid: i32, name: &str) -> Self {
        const REASON: &str = "not read";
        Self {
            pid,
            name: name.to_owned(),
            allowed_cpus: Known::no(REASON),
            allowed_nodes: Known::no(REASON),
            last_cpu: Known::no(REASON),
            memory: Known::no(REASON),
            policies: Known::no(REASON),
            preferred_node: Known::no(REASON),
            pinned_bytes: Known::no(REASON),
            cpu_ms: Known::no(REASON),
            sample: None,
            used: None,
            resident: Known::no(REASON),
            start: Known::no(REASON),
            age_ms: Known::no(REASON),
            user: Known::no(REASON),
            group: Known::no(REASON),
            cpu_times: Known::no(REASON),
            devices: Known::no(REASON),
            threads: Vec::new(),
        }
    }
}

/// How sure a sample of memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemorySample {
    /// Pages that were found, of those that were asked for.
    pub pages: u32,
    /// Half the width of the 95 % interval of each node's bytes.
    pub error_bytes: u64,
}

/// What of a task's memory was used while it was watched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UsedMemory {
    /// For how long.
    pub watched_ms: u64,
    /// Memory of which an access was seen, in bytes.
    pub bytes: u64,
    /// Half the width of its 95 % interval.
    pub error_bytes: u64,
    /// These bytes, as accesses divide them among the nodes: a page counts by how many of the looks found it accessed since the look
    /// before.
    pub nodes: Vec<NodeBytes>,
    /// Pages of which an access was seen, and the error of each node's part of the bytes above.
    pub sample: MemorySample,
}

/// The resident memory of a task (`RssAnon`, `RssFile`, `RssShmem`, `HugetlbPages` and `VmPin` of
/// `/proc/PID/status`), in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResidentBytes {
    pub anonymous: u64,
    /// Mapped files.
    pub file: u64,
    /// Shared memory: tmpfs, System V, `MAP_SHARED` without a file.
    pub shared: u64,
    /// Of hugetlbfs; transparent huge pages are in the other three.
    pub huge: u64,
    /// Of all these, what devices and io_uring have pinned (`VmPin`): the kernel cannot move it.
    #[serde(default)]
    pub pinned: u64,
}

impl ResidentBytes {
    pub fn total(&self) -> u64 {
        let others = [self.file, self.shared, self.huge].into_iter();
        others.fold(self.anonymous, u64::saturating_add)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuTime {
    pub cpu: CpuId,
    pub ms: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Thread {
    pub tid: i32,
    /// As [`Task::name`].
    pub name: String,
    /// As [`Task::start`].
    pub start: u64,
    /// The CPU it ran on last.
    pub last_cpu: Known<CpuId>,
    pub cpu_ms: u64,
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

/// A control group that is a unit, container, job or machine, as far as its path does not say it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceGroup {
    /// As in [`Task::group`], without the groups that it made below its own.
    pub group: String,
    /// What its runtime calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerName>,
    /// What all of its tasks have mapped, a page that several map once, in bytes by node. Read where it has several tasks.
    #[serde(default = "Known::left_out")]
    pub memory: Known<Vec<NodeBytes>>,
}

/// The name of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerName {
    pub name: String,
    /// Kubernetes' namespace and name of the pod that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<(String, String)>,
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
    /// Whether it is in the version 2 hierarchy; `None` where the source does not tell, such as older snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_2: Option<bool>,
}

/// What of a file is in memory, by node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PageCache {
    /// Its size.
    pub file_bytes: u64,
    /// Cached, by node; nodes without any are left out.
    pub nodes: Vec<NodeBytes>,
    /// Cached when it was looked for, and no longer when the node was asked for.
    pub unknown_bytes: u64,
}

impl PageCache {
    pub fn cached_bytes(&self) -> u64 {
        self.nodes.iter().map(|on| on.bytes).sum()
    }
}
