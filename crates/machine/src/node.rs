//! Memory nodes: what they hold, in which state they are, what the firmware says of their speed.

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::known::Known;
use crate::set::{CpuSet, NodeSet};

/// A memory node. It may be possible but not online, and have no CPUs, no memory, or neither.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    /// Whether the kernel has switched the node on; only online nodes have a directory in sysfs.
    pub online: bool,
    /// The CPUs that belong to it, online or not. Fake nodes of one real node share theirs, so sets may overlap.
    /// Unknown where the source has no list of them: then nothing says that the node has none.
    pub cpus: Known<CpuSet>,
    pub memory: Known<Memory>,
    /// Performance as ACPI's HMAT (or CXL's CDAT) gives it, by access class; empty where the kernel gives none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access: Vec<Access>,
    /// Caches that sit before this node's memory (`memory_side_cache/`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_side_caches: Vec<MemorySideCache>,
    /// Whether the kernel lists it as a generic initiator: a device that accesses memory, without CPUs
    /// (`/sys/devices/system/node/has_generic_initiator`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub generic_initiator: bool,
    /// The kernel's memory tier (`/sys/devices/virtual/memory_tiering/memory_tierN`); lower is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<u32>,
    /// The real node this one was split from, where a fake layout lies over the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fake_of: Option<NodeId>,
}

impl Node {
    /// An online node with nothing known about its memory.
    pub fn new(id: NodeId, cpus: impl Into<Known<CpuSet>>) -> Self {
        Self {
            id,
            online: true,
            cpus: cpus.into(),
            memory: Known::no("the source gives no memory sizes"),
            access: Vec::new(),
            memory_side_caches: Vec::new(),
            generic_initiator: false,
            tier: None,
            fake_of: None,
        }
    }

    /// Its CPUs as far as they are known: none where they are not. This is for those who look for CPUs to use; whether
    /// the node has any is [`Node::has_cpus`].
    pub fn known_cpus(&self) -> &CpuSet {
        static NONE: CpuSet = CpuSet::new();
        self.cpus.get().unwrap_or(&NONE)
    }

    /// Whether it has CPUs, online or not; unknown where they are.
    pub fn has_cpus(&self) -> Option<bool> {
        self.cpus.get().map(|cpus| !cpus.is_empty())
    }

    /// The size of its memory, where known.
    pub fn total_bytes(&self) -> Option<u64> {
        self.memory.get().map(|memory| memory.total_bytes)
    }

    /// Whether it has memory; unknown where its size is.
    pub fn has_memory(&self) -> Option<bool> {
        self.total_bytes().map(|bytes| bytes > 0)
    }

    /// Whether what memory it has is a device's own, such as a GPU's: it is a generic initiator, which has no CPUs.
    pub fn is_of_device(&self) -> bool {
        self.generic_initiator && self.has_cpus() == Some(false)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// All of it, in bytes; 0 for a node without memory.
    pub total_bytes: u64,
    /// What was free when the source looked, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// What the kernel could free without swap at that time, in bytes: file pages on its lists and reclaimable slab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimable_bytes: Option<u64>,
    /// Pools of huge pages, by ascending page size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub huge_pages: Vec<HugePages>,
}

impl Memory {
    /// Memory of which only the size is known.
    pub fn of(total_bytes: u64) -> Self {
        Self {
            total_bytes,
            free_bytes: None,
            reclaimable_bytes: None,
            huge_pages: Vec::new(),
        }
    }
}

/// One node's pool of huge pages of one size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HugePages {
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Free pages.
    pub free: Option<u64>,
}

/// What the firmware promises of a node's memory when it is accessed by its nearest initiators.
///
/// From `/sys/devices/system/node/nodeN/accessC/initiators/` (Documentation/admin-guide/mm/numaperf.rst in the
/// kernel). Class 0 counts every initiator, class 1 only CPUs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Access {
    /// 0 or 1.
    pub class: u32,
    /// The nodes from which the figures hold.
    pub initiators: NodeSet,
    /// Nanoseconds.
    pub read_latency_ns: Option<u64>,
    /// Nanoseconds.
    pub write_latency_ns: Option<u64>,
    /// MiB per second, the kernel's unit.
    pub read_bandwidth_mib_per_s: Option<u64>,
    /// MiB per second, the kernel's unit.
    pub write_bandwidth_mib_per_s: Option<u64>,
}

/// A cache between the CPUs and a node's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemorySideCache {
    /// 1 is nearest to the memory.
    pub level: u32,
    pub size_bytes: u64,
    pub line_bytes: Option<u64>,
    /// 0 for direct-mapped, as the kernel's `indexing` file has it.
    pub indexing: Option<u32>,
}
