//! CPUs, the caches they share, and what else two of them share.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{CpuId, NodeId};
use crate::known::Known;
use crate::machine::Machine;
use crate::set::CpuSet;

/// One logical CPU: a hardware thread, as the scheduler sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cpu {
    pub id: CpuId,
    /// Whether the scheduler may use it; unknown where the source names the CPU and not its state.
    pub online: Known<bool>,
    /// The real node it belongs to (the lowest, where fake nodes share it); `None` where no node lists it, which says
    /// that it is on none only if the CPUs of all nodes are known ([`Machine::cpu_nodes_unknown_reason`]).
    ///
    /// [`Machine::cpu_nodes_unknown_reason`]: crate::Machine::cpu_nodes_unknown_reason
    pub node: Option<NodeId>,
    /// The lowest CPU of its core: CPUs with the same leader are SMT siblings. `None` where the source cannot tell
    /// (an offline CPU has no topology directory).
    pub core: Option<CpuId>,
    /// `core_id` as the kernel prints it; unique only within a package, and -1 where the firmware is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_core_id: Option<i64>,
    /// The lowest CPU of its cluster (CPUs that share more than a core and less than a last-level cache).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<CpuId>,
    /// The lowest CPU of its die.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub die: Option<CpuId>,
    /// `physical_package_id` as the kernel prints it; -1 where the firmware is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<i64>,
    /// The lowest CPU of its package. Unlike the kernel's number it distinguishes packages on machines (many powerpc,
    /// s390 and virtual ones) where that number is -1 or the same everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_leader: Option<CpuId>,
    /// s390's book.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub book: Option<i64>,
    /// s390's drawer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawer: Option<i64>,
    /// Relative speed of a hybrid machine's CPUs, 1024 for the fastest (`cpu_capacity`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
}

impl Cpu {
    /// An online CPU of which nothing else is known.
    pub fn new(id: CpuId, node: Option<NodeId>) -> Self {
        Self {
            id,
            online: Known::Yes(true),
            node,
            core: None,
            kernel_core_id: None,
            cluster: None,
            die: None,
            package: None,
            package_leader: None,
            book: None,
            drawer: None,
            capacity: None,
        }
    }

    /// Those of these CPUs that the scheduler may certainly use.
    pub fn online_set(cpus: &[Self]) -> CpuSet {
        let online = cpus.iter().filter(|cpu| cpu.is_online());
        online.map(|cpu| cpu.id).collect()
    }

    /// Whether the scheduler may certainly use it.
    pub fn is_online(&self) -> bool {
        self.online == Known::Yes(true)
    }

    /// Whether the scheduler certainly may not.
    pub fn is_offline(&self) -> bool {
        self.online == Known::Yes(false)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    Unified,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u32,
    pub kind: CacheKind,
    /// The CPUs behind it.
    pub cpus: CpuSet,
    pub size_bytes: Known<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u32>,
    /// Ways; 0 for fully associative, as the kernel writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
}

impl Cache {
    /// Sorts caches as a machine has them.
    pub fn sort(caches: &mut [Self]) {
        caches.sort_by_key(|cache| (cache.level, cache.cpus.first(), cache.kind));
    }
}

/// Sets of CPUs by state, as `/sys/devices/system/cpu/` and the boot command line have them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuStates {
    /// CPUs that could ever be there.
    pub possible: Known<CpuSet>,
    /// CPUs the scheduler may use, as far as that is known ([`Cpu::online`]).
    pub online: CpuSet,
    /// Taken from the scheduler's balancing by `isolcpus=` or an isolated cpuset partition.
    pub isolated: Known<CpuSet>,
    /// Without a regular tick when one task runs (`nohz_full=`).
    pub nohz_full: Known<CpuSet>,
    /// CPUs that the kernel gives managed interrupts only if their mask has no others (`isolcpus=managed_irq,...`).
    #[serde(default = "Known::left_out")]
    pub managed_irq: Known<CpuSet>,
    /// What the process that read the source may run on; unknown for anything but the live system.
    pub allowed: Known<CpuSet>,
}

impl CpuStates {
    /// These CPUs online, nothing else known, with the reason why.
    pub fn online_only(online: CpuSet, reason: impl Into<Cow<'static, str>>) -> Self {
        let reason = reason.into();
        let reason = || reason.clone();
        Self {
            possible: Known::no(reason()),
            online,
            isolated: Known::no(reason()),
            nohz_full: Known::no(reason()),
            managed_irq: Known::no(reason()),
            allowed: Known::no(reason()),
        }
    }

    /// Isolated or tickless: CPUs that are kept free of housekeeping.
    pub fn kept_free(&self) -> CpuSet {
        let or_none = |set: &Known<CpuSet>| set.get().cloned().unwrap_or_default();
        or_none(&self.isolated).union(&or_none(&self.nohz_full))
    }

    /// Online CPUs that may be given interrupts and other housekeeping; all of them when every CPU is isolated.
    pub fn housekeeping(&self) -> CpuSet {
        let free = self.online.difference(&self.kept_free());
        if free.is_empty() {
            self.online.clone()
        } else {
            free
        }
    }
}

/// Nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nearness {
    /// A core: they are its hardware threads.
    Core,
    /// A last-level cache.
    Cache,
    /// A node, and no cache as far as is known.
    Node,
    /// They are on different nodes.
    Nodes,
}

impl fmt::Display for Nearness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "same core",
            Self::Cache => "same cache",
            Self::Node => "same node",
            Self::Nodes => "other node",
        })
    }
}

/// The CPUs of a machine by what they share.
#[derive(Debug)]
pub struct Neighbourhood<'a> {
    machine: &'a Machine,
    /// The last-level cache of each CPU that has a known one, by position.
    caches: BTreeMap<CpuId, usize>,
}

impl<'a> Neighbourhood<'a> {
    /// Those of a machine.
    pub fn of(machine: &'a Machine) -> Self {
        let caches = machine.last_level_caches().enumerate();
        let caches = caches
            .flat_map(|(index, cache)| cache.cpus.iter().map(move |cpu| (cpu, index)))
            .collect();
        Self { machine, caches }
    }

    /// What two CPUs share. CPUs whose nodes are unknown count as of one.
    pub fn nearness(&self, a: CpuId, b: CpuId) -> Nearness {
        let core = |cpu: CpuId| self.machine.cpu(cpu).and_then(|cpu| cpu.core);
        let cache = |cpu| self.caches.get(&cpu);
        if core(a).is_some() && core(a) == core(b) {
            Nearness::Core
        } else if self.machine.node_of(a) != self.machine.node_of(b) {
            Nearness::Nodes
        } else if cache(a).is_some() && cache(a) == cache(b) {
            Nearness::Cache
        } else {
            Nearness::Node
        }
    }
}
