//! The machine as a whole: the questions about it that need no judgement, and the invariants that hold for every source,
//! however odd its input.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::cpu::{Cache, CacheKind, Cpu, CpuStates};
use crate::device::{Disk, HostBridge, NetworkDevice, NvmeSubsystem, OsDevice, PciDevice};
use crate::distance::Distances;
use crate::id::{CpuId, Distance, Irq, NodeId, PciAddress, RootBus};
use crate::interrupt::Interrupt;
use crate::known::Known;
use crate::node::Node;
use crate::origin::{Origin, Warning};
use crate::set::{CpuSet, NodeSet};
use crate::system::{Settings, Writer};
use crate::task::{Cpuset, ServiceGroup, Task};
use crate::timing::{Latency, Timing};

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
    /// Of the services that tasks belong to, by path; none where their paths say all there is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceGroup>,
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
            services: Vec::new(),
            cpusets: Known::no(reason()),
            settings: Settings::unknown(reason()),
            timing: None,
            writers: Known::no(reason()),
            warnings: Vec::new(),
        }
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        by_key(&self.nodes, &id, |node| node.id)
    }

    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        by_key(&self.cpus, &id, |cpu| cpu.id)
    }

    /// What is known of the service of this control group besides its path.
    pub fn service(&self, group: &str) -> Option<&ServiceGroup> {
        let position = self.services.binary_search_by(|it| (*it.group).cmp(group));
        position.ok().map(|at| &self.services[at])
    }

    pub fn pci_device(&self, address: PciAddress) -> Option<&PciDevice> {
        by_key(self.pci.items(), &address, |device| device.address)
    }

    /// The network interface of that name.
    pub fn network(&self, name: &str) -> Option<&NetworkDevice> {
        by_key(self.networks.items(), &name, |it| it.name.as_str())
    }

    /// The NVMe subsystem that the kernel calls so.
    pub fn nvme_subsystem(&self, name: &str) -> Option<&NvmeSubsystem> {
        self.nvme.items().iter().find(|it| it.name == name)
    }

    /// The interrupt of that number.
    pub fn interrupt(&self, irq: Irq) -> Option<&Interrupt> {
        by_key(self.interrupts.items(), &irq, |it| it.irq)
    }

    /// The host bridge of that root bus.
    pub fn host_bridge(&self, root: RootBus) -> Option<&HostBridge> {
        self.host_bridges.items().iter().find(|it| it.root == root)
    }

    /// Nodes that are online, ascending.
    pub fn online_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.online)
    }

    pub fn online_node_set(&self) -> NodeSet {
        self.online_nodes().map(|node| node.id).collect()
    }

    /// The online nodes that any of these CPUs belongs to. A CPU belongs to each fake node of its real one.
    pub fn nodes_of_cpus(&self, cpus: &CpuSet) -> NodeSet {
        let nodes = self.online_nodes();
        let nodes = nodes.filter(|node| node.known_cpus().intersects(cpus));
        nodes.map(|node| node.id).collect()
    }

    /// The online nodes that have memory, or may have some: of unknown memory a use fails and is reported then.
    pub fn nodes_with_memory(&self) -> NodeSet {
        let nodes = self.online_nodes();
        let nodes = nodes.filter(|node| node.has_memory() != Some(false));
        nodes.map(|node| node.id).collect()
    }

    /// Those of [`Machine::nodes_with_memory`] whose memory is for any program: a device's own is for those that use the device, and is
    /// taken only where it is named.
    pub fn nodes_for_any(&self) -> NodeSet {
        let of_devices = self.online_nodes().filter(|node| node.is_of_device());
        let of_devices = of_devices.map(|node| node.id).collect();
        self.nodes_with_memory().difference(&of_devices)
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
        let holds_data = |cache: &&Cache| cache.kind != CacheKind::Instruction;
        let data = move || self.caches.iter().filter(holds_data);
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
        if core.is_none() {
            return CpuSet::single(cpu);
        }
        let same = self.cpus.iter().filter(|other| other.core == core);
        same.map(|other| other.id).collect()
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
        violations(self)
    }
}

/// The item with this key in a list that ascends by it.
fn by_key<'a, T, K: Ord>(items: &'a [T], key: &K, of: impl Fn(&'a T) -> K) -> Option<&'a T> {
    let index = items.binary_search_by_key(key, of).ok()?;
    Some(&items[index])
}

/// Each broken invariant in words.
fn violations(machine: &Machine) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(disorder("nodes", &machine.nodes, |it| it.id));
    found.extend(disorder("cpus", &machine.cpus, |it| it.id));
    found.extend(disorder("pci", machine.pci.items(), |it| it.address));
    let bridges = machine.host_bridges.items();
    found.extend(disorder("host_bridges", bridges, |it| it.root));
    let interrupts = machine.interrupts.items();
    found.extend(disorder("interrupts", interrupts, |it| it.irq));
    let networks = machine.networks.items();
    found.extend(disorder("networks", networks, |it| &it.name));
    found.extend(disorder("services", &machine.services, |it| &it.group));
    cpus(machine, &mut found);
    nodes(machine, &mut found);
    let latencies = machine.timing.as_ref().map(|it| it.latencies.as_slice());
    let latencies = latencies.unwrap_or_default();
    found.extend(disorder("latencies", latencies, Latency::pair));
    let of_nodes = latencies
        .iter()
        .flat_map(|it| [it.cpu_node, it.memory_node]);
    found.extend(stray_node("latencies", machine, of_nodes));
    found
}

fn disorder<'a, T, K: Ord>(what: &str, items: &'a [T], key: impl Fn(&'a T) -> K) -> Option<String> {
    let ascends = items.is_sorted_by(|a, b| key(a) < key(b));
    (!ascends).then(|| format!("{what} are not in ascending order, each once"))
}

fn stray_node(
    what: &str,
    machine: &Machine,
    mut nodes: impl Iterator<Item = NodeId>,
) -> Option<String> {
    let stray = nodes.find(|&node| machine.node(node).is_none())?;
    Some(format!(
        "{what} name node {stray}, which is not in the list of nodes"
    ))
}

fn cpus(machine: &Machine, found: &mut Vec<String>) {
    let listed: CpuSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let online = Cpu::online_set(&machine.cpus);
    if online != machine.cpu_states.online {
        found.push(format!(
            "CPUs marked online are {online}, the set of online CPUs is {}",
            machine.cpu_states.online
        ));
    }
    for cpu in &machine.cpus {
        let leaders = [
            ("core", cpu.core),
            ("cluster", cpu.cluster),
            ("die", cpu.die),
            ("package", cpu.package_leader),
        ];
        for (what, leader) in leaders {
            if let Some(leader) =
                leader.filter(|&leader| !listed.contains(leader) || leader > cpu.id)
            {
                found.push(format!(
                    "CPU {} has {what} leader {leader}, which is not a lower CPU",
                    cpu.id
                ));
            }
        }
        if let Some(node) = cpu.node
            && !machine
                .node(node)
                .is_some_and(|node| node.known_cpus().contains(cpu.id))
        {
            found.push(format!(
                "CPU {} says node {node}, which does not list it",
                cpu.id
            ));
        }
    }
    for cache in &machine.caches {
        if cache.cpus.is_empty() || !cache.cpus.is_subset(&listed) {
            found.push(format!(
                "a level {} cache has CPUs {:?}, some of them unknown",
                cache.level, cache.cpus
            ));
        }
    }
}

fn nodes(machine: &Machine, found: &mut Vec<String>) {
    for node in &machine.nodes {
        if let Some(cpu) = node
            .known_cpus()
            .iter()
            .find(|&cpu| machine.cpu(cpu).is_none_or(|cpu| cpu.node.is_none()))
        {
            found.push(format!(
                "node {} lists CPU {cpu}, which is unknown or says no node",
                node.id
            ));
        }
    }
    for (what, table) in [
        ("distances", &machine.distances),
        ("firmware_distances", &machine.firmware_distances),
    ] {
        let nodes = table.get().map_or(&[][..], Distances::nodes);
        found.extend(stray_node(what, machine, nodes.iter().copied()));
    }
}
