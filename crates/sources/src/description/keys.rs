//! The keys of a description file.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    /// What the machine is, in one line; the list of the gallery shows it.
    #[expect(
        dead_code,
        reason = "a machine has no place for it, and the file must be allowed to have it"
    )]
    pub description: Option<String>,
    /// As `uname -m` says it; also decides what an emulated machine is.
    pub architecture: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    pub product: Option<String>,
    /// `kernel.numa_balancing`.
    pub numa_balancing: Option<u32>,
    /// Fake nodes over the machine, as `--fake` takes them.
    pub fake: Option<Spanned<String>>,
    /// Rows over all nodes in ascending order. The kernel knows the part between online nodes, the firmware all.
    pub distances: Option<Spanned<Vec<Vec<DistanceEntry>>>>,
    /// The firmware's own rows, where they differ.
    pub firmware_distances: Option<Spanned<Vec<Vec<DistanceEntry>>>>,
    #[serde(default)]
    pub cpu: Cpus,
    pub timing: Option<TimingEntry>,
    #[serde(default)]
    pub node: Vec<Spanned<NodeEntry>>,
    #[serde(default)]
    pub cache: Vec<Spanned<CacheEntry>>,
    #[serde(default)]
    pub bridge: Vec<Spanned<BridgeEntry>>,
    #[serde(default)]
    pub pci: Vec<Spanned<PciEntry>>,
    #[serde(default)]
    pub nic: Vec<Spanned<NicEntry>>,
    #[serde(default)]
    pub nvme: Vec<Spanned<NvmeEntry>>,
    #[serde(default)]
    pub task: Vec<Spanned<TaskEntry>>,
    #[serde(default)]
    pub cpuset: Vec<Spanned<CpusetEntry>>,
}

/// What accesses take. Values as `--delay` takes them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimingEntry {
    /// Rows as those of distances.
    pub latency: Option<Spanned<Vec<Vec<LatencyEntry>>>>,
    pub cache: Option<Spanned<String>>,
    pub transfer: Option<Spanned<String>>,
    /// GB/s of each node's memory, from a package to another, and of one CPU that reads a stream.
    pub bandwidth: Option<Spanned<f64>>,
    pub link: Option<Spanned<f64>>,
    pub stream: Option<Spanned<f64>>,
    /// Nanoseconds of an instruction.
    pub instruction: Option<Spanned<f64>>,
    /// Where the figures come from; the file itself, when left out.
    #[serde(default)]
    pub sources: Vec<String>,
}

/// One distance, or "-" for a hole.
#[derive(Deserialize, Clone)]
#[serde(untagged, expecting = "expected a distance, or \"-\" for a hole")]
pub(super) enum DistanceEntry {
    Distance(u32),
    Hole(String),
}

/// Nanoseconds of a load, or "-" where they are unknown.
#[derive(Deserialize, Clone)]
#[serde(
    untagged,
    expecting = "expected a latency in nanoseconds, or \"-\" where it is unknown"
)]
pub(super) enum LatencyEntry {
    Ns(f64),
    Unknown(String),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Cpus {
    /// How many CPUs of a node, in order, make a core; 1 when left out, unless `cores` lists them.
    pub threads_per_core: Option<Spanned<u32>>,
    /// Which CPUs of a node share a core: neighbours, or those half a node apart, as x86 firmware numbers them.
    #[serde(default)]
    pub siblings: Siblings,
    /// How many cores of a node, in order, make a cluster.
    pub cores_per_cluster: Option<Spanned<u32>>,
    /// Every core, as CPU lists, instead of the counts above.
    pub cores: Option<Vec<Spanned<String>>>,
    pub clusters: Option<Vec<Spanned<String>>>,
    pub dies: Option<Vec<Spanned<String>>>,
    /// Package number to CPU list, instead of `package` of each node.
    pub packages: Option<BTreeMap<String, Spanned<String>>>,
    pub offline: Option<Spanned<String>>,
    pub possible: Option<Spanned<String>>,
    pub isolated: Option<Spanned<String>>,
    pub nohz_full: Option<Spanned<String>>,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Siblings {
    #[default]
    Adjacent,
    Apart,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeEntry {
    /// One more than the node before, when left out.
    pub id: Option<u32>,
    /// None, when left out.
    pub cpus: Option<Spanned<CpuCount>>,
    /// Unknown if left out.
    pub memory: Option<Spanned<String>>,
    /// Of its memory; unknown if left out.
    pub free: Option<Spanned<String>>,
    pub online: Option<bool>,
    pub package: Option<i64>,
    #[serde(default)]
    pub generic_initiator: bool,
    pub tier: Option<u32>,
    #[serde(default)]
    pub access: Vec<AccessEntry>,
    #[serde(default)]
    pub memory_side_cache: Vec<Spanned<SideCacheEntry>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a count of CPUs, or a list such as \"0-3,8-11\""
)]
pub(super) enum CpuCount {
    Count(u32),
    List(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessEntry {
    #[serde(default)]
    pub class: u32,
    pub initiators: Spanned<String>,
    pub read_latency_ns: Option<u64>,
    pub write_latency_ns: Option<u64>,
    pub read_bandwidth_mib_per_s: Option<u64>,
    pub write_bandwidth_mib_per_s: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SideCacheEntry {
    pub size: String,
    pub line: Option<u64>,
    pub indexing: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheEntry {
    pub level: u32,
    pub kind: Option<nearfar_machine::CacheKind>,
    pub size: Option<String>,
    pub line: Option<u32>,
    pub ways: Option<u32>,
    /// One cache for each of these, instead of `cpus`.
    pub each: Option<Each>,
    /// One cache for each of these CPU lists.
    pub cpus: Option<Vec<Spanned<String>>>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Each {
    Cpu,
    Core,
    Cluster,
    Die,
    Node,
    Package,
}

/// A node that the kernel gives a device: its number, "none" for -1, or "unknown".
#[derive(Deserialize, Clone)]
#[serde(
    untagged,
    expecting = "expected the number of a node, \"none\" or \"unknown\""
)]
pub(super) enum KernelNode {
    Node(u32),
    Word(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BridgeEntry {
    /// Domain and first bus: "0000:20".
    pub root: String,
    /// Where the firmware says it is; `node`, when left out.
    pub firmware_node: Option<u32>,
    /// Where the kernel says its devices are; the firmware's node where that is online, otherwise none.
    pub node: Option<KernelNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PciEntry {
    pub address: String,
    /// The root bus; that of the address, when left out.
    pub bridge: Option<String>,
    pub parent: Option<String>,
    /// Vendor and device, "8086:10c9".
    pub id: String,
    /// "0x020000".
    pub class: String,
    pub driver: Option<String>,
    pub name: Option<String>,
    pub node: Option<KernelNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NicEntry {
    pub name: String,
    pub bridge: Option<String>,
    /// The next free one on the bridge's root bus, when left out; or that of a `[[pci]]`.
    pub address: Option<String>,
    pub id: Option<String>,
    pub driver: Option<String>,
    pub node: Option<KernelNode>,
    pub queues: Option<u32>,
    /// The CPU (or CPU list) that serves each queue's interrupt; no interrupts, when left out.
    pub queue_cpus: Option<Vec<CpuCount>>,
    /// CPU list for each transmit queue; unknown if left out.
    pub xps: Option<Vec<String>>,
    /// CPU list for each receive queue; unknown if left out.
    pub rps: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NvmeEntry {
    pub name: Option<String>,
    pub nqn: Option<String>,
    pub model: Option<String>,
    pub iopolicy: Option<String>,
    /// How many, each reached through all controllers; 1 when left out.
    pub namespaces: Option<u32>,
    pub controllers: Vec<ControllerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ControllerEntry {
    pub name: Option<String>,
    pub bridge: Option<String>,
    pub address: Option<String>,
    pub id: Option<String>,
    pub node: Option<KernelNode>,
    /// "pcie", when left out.
    pub transport: Option<String>,
    pub state: Option<String>,
    /// "optimized", when left out.
    pub ana: Option<String>,
    pub queues: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskEntry {
    pub pid: Spanned<i32>,
    pub name: String,
    pub user: Option<u32>,
    /// From the root of the hierarchy: "/system.slice/redis.service".
    pub group: Option<String>,
    /// CPUs it may run on; all, when left out.
    pub cpus: Option<Spanned<String>>,
    /// Nodes its memory may come from; all, when left out.
    pub nodes: Option<Spanned<String>>,
    /// Node to size.
    #[serde(default)]
    pub memory: BTreeMap<String, Spanned<String>>,
    /// How much of it is pinned; nothing, when left out.
    pub pinned: Option<Spanned<String>>,
    /// Of all its memory, as numa_maps writes it; "default", when left out.
    pub policy: Option<String>,
    /// CPU list to seconds, the same on each of these CPUs.
    #[serde(default)]
    pub cpu_seconds: BTreeMap<String, Spanned<u32>>,
    /// Names or addresses of devices that it has open and that read and write its memory; unknown, when left out.
    pub devices: Option<Vec<Spanned<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CpusetEntry {
    /// From the root of the hierarchy.
    pub path: String,
    pub cpus: Spanned<String>,
    pub nodes: Spanned<String>,
}
