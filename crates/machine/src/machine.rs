//! The machine as a whole, and the questions about it that need no judgement.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::cpu::{Cache, CacheKind, Cpu, CpuStates};
use crate::disk::Disk;
use crate::distance::Distances;
use crate::id::{CpuId, Distance, Irq, NodeId, PciAddress};
use crate::interrupt::Interrupt;
use crate::known::Known;
use crate::network::NetworkDevice;
use crate::node::Node;
use crate::nvme::NvmeSubsystem;
use crate::origin::Origin;
use crate::os_device::OsDevice;
use crate::pci::{HostBridge, PciDevice, RootBus};
use crate::set::{CpuSet, NodeSet};
use crate::system::{Settings, Writer};
use crate::task::{Cpuset, Task};
use crate::timing::Timing;
use crate::warning::Warning;

/// Everything a source saw of one machine. Immutable once read: a change of the system means a new one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Where this description comes from.
    pub origin: Origin,
    /// Nodes by ascending number: the online ones, and those that are possible or named by the firmware. Every machine
    /// has one, so none means that the source does not tell ([`Machine::nodes_unknown_reason`]).
    pub nodes: Vec<Node>,
    /// Nodes the kernel could bring online.
    pub possible_nodes: Known<NodeSet>,
    /// Distances between nodes.
    pub distances: Known<Distances>,
    /// The firmware's own table, where it can be read: it also covers nodes that are not online.
    pub firmware_distances: Known<Distances>,
    /// CPUs by ascending number, offline ones included.
    pub cpus: Vec<Cpu>,
    /// CPUs by state.
    pub cpu_states: CpuStates,
    /// Caches, by level and lowest CPU; none where the source has none or was not asked for details of CPUs.
    pub caches: Vec<Cache>,
    /// PCI functions, by address.
    pub pci: Known<Vec<PciDevice>>,
    /// Host bridges, by root bus.
    pub host_bridges: Known<Vec<HostBridge>>,
    /// Interrupts, by number.
    pub interrupts: Known<Vec<Interrupt>>,
    /// Network devices with hardware behind them, by name.
    pub networks: Known<Vec<NetworkDevice>>,
    /// Disks below PCI functions, by name; none where the source has none or was not asked for devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// Other names of PCI functions, in order; none where the source has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub os_devices: Vec<OsDevice>,
    /// NVMe subsystems, by name.
    pub nvme: Known<Vec<NvmeSubsystem>>,
    /// Processes, by number; only read on request.
    pub tasks: Known<Vec<Task>>,
    /// Cpusets, by path.
    pub cpusets: Known<Vec<Cpuset>>,
    pub settings: Settings,
    /// What accesses take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
    /// Programs that write placement by themselves.
    pub writers: Known<Vec<Writer>>,
    /// What was wrong with the input. `diagnostics` in snapshots and runs that were stored before it was renamed.
    #[serde(alias = "diagnostics")]
    pub warnings: Vec<Warning>,
}

impl Machine {
    /// A machine without anything, every part unknown for the given reason. Sources fill in what they see.
    pub fn empty(origin: Origin, reason: impl Into<Cow<'static, str>>) -> Self {
        let reason = reason.into();
        let reason = || reason.clone();
        Self {
            origin,
            nodes: Vec::new(),
            possible_nodes: Known::no(reason()),
            distances: Known::no(reason()),
            firmware_distances: Known::no(reason()),
            cpus: Vec::new(),
            cpu_states: CpuStates::online_only(CpuSet::new(), reason()),
            caches: Vec::new(),
            pci: Known::no(reason()),
            host_bridges: Known::no(reason()),
            interrupts: Known::no(reason()),
            networks: Known::no(reason()),
            disks: Vec::new(),
            os_devices: Vec::new(),
            nvme: Known::no(reason()),
            tasks: Known::no(reason()),
            cpusets: Known::no(reason()),
            settings: Settings::unknown(reason()),
            timing: None,
            writers: Known::no(reason()),
            warnings: Vec::new(),
        }
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes
            .binary_search_by_key(&id, |node| node.id)
            .ok()
            .map(|index| &self.nodes[index])
    }

    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus
            .binary_search_by_key(&id, |cpu| cpu.id)
            .ok()
            .map(|index| &self.cpus[index])
    }

    pub fn pci_device(&self, address: PciAddress) -> Option<&PciDevice> {
        let devices = self.pci.get()?;
        devices
            .binary_search_by_key(&address, |device| device.address)
            .ok()
            .map(|index| &devices[index])
    }

    /// The network interface of that name.
    pub fn network(&self, name: &str) -> Option<&NetworkDevice> {
        let networks = self.networks.get()?;
        let index = networks.binary_search_by(|it| it.name.as_str().cmp(name));
        index.ok().map(|index| &networks[index])
    }

    /// The NVMe subsystem that the kernel calls so.
    pub fn nvme_subsystem(&self, name: &str) -> Option<&NvmeSubsystem> {
        self.nvme.get()?.iter().find(|it| it.name == name)
    }

    /// The interrupt of that number.
    pub fn interrupt(&self, irq: Irq) -> Option<&Interrupt> {
        let interrupts = self.interrupts.get()?;
        let index = interrupts.binary_search_by_key(&irq, |it| it.irq).ok()?;
        interrupts.get(index)
    }

    /// The host bridge of that root bus.
    pub fn host_bridge(&self, root: RootBus) -> Option<&HostBridge> {
        self.host_bridges
            .get()?
            .iter()
            .find(|bridge| bridge.root == root)
    }

    /// Nodes that are online, ascending.
    pub fn online_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.online)
    }

    pub fn online_node_set(&self) -> NodeSet {
        self.online_nodes().map(|node| node.id).collect()
    }

    /// Why it is unknown which nodes there are; `None` where they are known.
    pub fn nodes_unknown_reason(&self) -> Option<&str> {
        let reason = || self.possible_nodes.unknown_reason();
        self.nodes
            .is_empty()
            .then(|| reason().unwrap_or("the source names no node"))
    }

    /// Why a CPU that no node lists may be on one all the same: nodes, or the CPUs of an online node, are unknown.
    pub fn cpu_nodes_unknown_reason(&self) -> Option<String> {
        let unknown: Vec<&Node> = self
            .online_nodes()
            .filter(|node| node.has_cpus().is_none())
            .collect();
        let nodes: NodeSet = unknown.iter().map(|node| node.id).collect();
        let noun = if nodes.len() == 1 { "node" } else { "nodes" };
        let of_cpus = unknown
            .first()
            .and_then(|first| first.cpus.unknown_reason());
        match (self.nodes_unknown_reason(), of_cpus) {
            (Some(reason), _) => Some(format!("which nodes there are is unknown: {reason}")),
            (None, reason) => Some(format!(
                "the CPUs of {noun} {nodes} are unknown: {}",
                reason?
            )),
        }
    }

    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.cpu(cpu)?.node
    }

    /// The distance between two nodes: the kernel's, or else the firmware's table for nodes that are not online.
    /// A node is 10 from itself even where no table says so.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<Distance> {
        let in_table = |table: &Known<Distances>| table.get().and_then(|table| table.get(from, to));
        in_table(&self.distances)
            .or_else(|| in_table(&self.firmware_distances))
            .or_else(|| (from == to).then_some(Distance::LOCAL))
    }

    /// The caches of the highest level that hold data; none where caches are unknown.
    pub fn last_level_caches(&self) -> impl Iterator<Item = &Cache> {
        let data = || {
            self.caches
                .iter()
                .filter(|cache| cache.kind != CacheKind::Instruction)
        };
        let level = data().map(|cache| cache.level).max();
        data().filter(move |cache| Some(cache.level) == level)
    }

    /// The last-level cache of a CPU, where it is known.
    pub fn last_level_cache(&self, cpu: CpuId) -> Option<&Cache> {
        self.last_level_caches()
            .find(|cache| cache.cpus.contains(cpu))
    }

    /// The CPUs of one core: SMT siblings of `cpu`, itself included.
    pub fn siblings(&self, cpu: CpuId) -> CpuSet {
        let core = self.cpu(cpu).and_then(|cpu| cpu.core);
        match core {
            Some(core) => self
                .cpus
                .iter()
                .filter(|other| other.core == Some(core))
                .map(|other| other.id)
                .collect(),
            None => CpuSet::single(cpu),
        }
    }

    /// How many numbers a CPU mask of this machine's kernel spans (`nr_cpu_ids`): highest possible CPU plus one.
    pub fn mask_width(&self) -> u32 {
        let possible = self.cpu_states.possible.get().and_then(CpuSet::last);
        let listed = self.cpus.last().map(|cpu| cpu.id);
        possible.max(listed).map_or(1, |cpu| cpu.0 + 1)
    }

    /// Contradictions between parts of the description that no source may produce, in words; empty if there is none.
    /// Every source's tests call it.
    pub fn check(&self) -> Vec<String> {
        crate::check::violations(self)
    }
}
