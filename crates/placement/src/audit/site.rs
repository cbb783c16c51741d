//! What several rules need, made once a machine, and what evidence names: the file that was read, or what says it in a source without
//! files.
//!
//! ```text
//! this system            /sys/devices/system/node/node0/meminfo
//! a tree                 sosreport-x/sys/devices/system/node/node0/meminfo
//! a snapshot             server.nearfar: /sys/devices/system/node/node0/meminfo
//! hwloc XML              topology.xml: NUMANode 0, local_memory
//! a description          machines/two-node.toml: [[node]] 0 memory
//! a text, several ones   mail.txt: node 0 memory
//! a snapshot of these    server.nearfar (of machines/two-node.toml): [[node]] 0 memory
//! ```

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

use nearfar_machine::{
    CpuId, CpuSet, Distance, Interrupt, Irq, Machine, NodeId, NodeSet, PciAddress, SourceKind,
    shell_words,
};

use crate::audit::AuditOptions;
use crate::fallback::MemoryHomes;
use crate::locality::{EffectiveNode, Localities};
use crate::near::{self, Ring};

pub(crate) struct Site<'a> {
    pub machine: &'a Machine,
    source: String,
    /// CPUs that may be given interrupts.
    pub usable: CpuSet,
    /// Online CPUs that are kept free of them.
    pub kept_free: CpuSet,
    /// Online nodes that have online CPUs.
    pub cpu_nodes: Vec<NodeId>,
    /// That the devices of some interrupts are unknown, and why.
    pub devices_unknown: Option<String>,
    /// Why a CPU may be on a node that does not list it: then what is near to a node is unknown.
    pub cpu_nodes_unknown: Option<String>,
    pub localities: Localities<'a>,
    pub homes: MemoryHomes,
    /// Interrupts of each device, in the order of their numbers.
    pub by_device: BTreeMap<PciAddress, Vec<&'a Interrupt>>,
    /// Whether some CPU is in several nodes, as with fake ones.
    shared: bool,
    rings: RefCell<HashMap<Option<NodeId>, Rc<[Ring]>>>,
}

impl<'a> Site<'a> {
    pub fn new(machine: &'a Machine, options: &AuditOptions) -> Self {
        let states = &machine.cpu_states;
        let usable = if options.isolated_too {
            states.online.clone()
        } else {
            states.housekeeping()
        };
        let mut by_device: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for interrupt in machine.interrupts.get().into_iter().flatten() {
            if let Some(device) = interrupt.device {
                by_device.entry(device).or_default().push(interrupt);
            }
        }
        let in_nodes: usize = machine
            .online_nodes()
            .map(|node| node.known_cpus().len())
            .sum();
        let with_node = machine.cpus.iter().filter(|cpu| cpu.node.is_some()).count();
        let cpu_nodes = machine
            .online_nodes()
            .filter(|node| node.known_cpus().intersects(&states.online));
        Self {
            kept_free: states.online.difference(&usable),
            cpu_nodes: cpu_nodes.map(|node| node.id).collect(),
            devices_unknown: devices_unknown(machine),
            cpu_nodes_unknown: machine.cpu_nodes_unknown_reason(),
            localities: Localities::new(machine),
            homes: MemoryHomes::of(machine),
            by_device,
            shared: in_nodes > with_node,
            source: options.source.clone(),
            rings: RefCell::default(),
            usable,
            machine,
        }
    }

    /// Usable CPUs in rings around a node, each distance once and strictly further than the last. Unlike in a spread the
    /// node itself does not lead by right: nothing is called far where no figure says so.
    pub fn rings(&self, from: Option<NodeId>) -> Rc<[Ring]> {
        let make = || {
            let mut merged: BTreeMap<(bool, Option<Distance>), Ring> = BTreeMap::new();
            for ring in near::rings(self.machine, from, &self.usable) {
                match merged.entry((ring.distance.is_none(), ring.distance)) {
                    Entry::Vacant(empty) => _ = empty.insert(ring),
                    Entry::Occupied(same) => same.into_mut().absorb(ring),
                }
            }
            merged.into_values().collect()
        };
        Rc::clone(self.rings.borrow_mut().entry(from).or_insert_with(make))
    }

    /// How far a CPU is from a device's node; of several fake nodes that share the CPU the nearest counts.
    pub fn distance(&self, from: Option<NodeId>, cpu: CpuId) -> Option<Distance> {
        let from = from?;
        if !self.shared {
            return self.machine.distance(from, self.machine.node_of(cpu)?);
        }
        let nodes = self
            .machine
            .online_nodes()
            .filter(|node| node.known_cpus().contains(cpu));
        nodes
            .filter_map(|node| self.machine.distance(from, node.id))
            .min()
    }

    /// Whether there is more than one online node: with one, nothing on the machine is far.
    pub fn has_several_nodes(&self) -> bool {
        self.machine.online_nodes().nth(1).is_some()
    }

    /// Why a source that lists one node may have left out others: some texts, such as the table of `nvidia-smi` or a few
    /// lines of `lscpu`, show the nodes of what they are about.
    pub fn other_nodes_unknown(&self) -> Option<String> {
        let machine = self.machine;
        let node = machine.online_nodes().next()?;
        if self.has_several_nodes() {
            return None;
        }
        let elsewhere = machine.cpus.iter().filter(|cpu| cpu.is_online());
        let elsewhere: CpuSet = elsewhere
            .filter(|cpu| cpu.node.is_none())
            .map(|cpu| cpu.id)
            .collect();
        // What lists all nodes has their distances (numactl), or describes the processor (lscpu).
        let says_nothing = machine.origin.kind == SourceKind::Text
            && machine.possible_nodes.get().is_none()
            && machine.distances.get().is_none()
            && machine.origin.architecture.get().is_none()
            && machine.cpus.iter().all(|cpu| cpu.core.is_none());
        let reason = match &self.cpu_nodes_unknown {
            Some(reason) => reason.clone(),
            None if !elsewhere.is_empty() => {
                let verb = if elsewhere.len() == 1 { "is" } else { "are" };
                format!("{} {verb} on none of the nodes listed", cpus(&elsewhere))
            }
            None => node
                .memory
                .unknown_reason()
                .filter(|_| says_nothing)?
                .to_owned(),
        };
        Some(format!(
            "there may be other nodes than {}: {reason}",
            node.id
        ))
    }

    /// The node a CPU of this node gets its memory from: itself, or the nearest that has memory.
    pub fn memory_home(&self, node: NodeId) -> NodeId {
        self.homes.home(node)
    }

    pub fn locality(&self, device: PciAddress) -> EffectiveNode {
        self.localities.of(device)
    }

    /// Where the source has a value.
    pub fn place(&self, fact: Fact<'_>) -> String {
        let origin = &self.machine.origin;
        let at = &origin.place;
        // The source has other nodes than the machine.
        if fact.is_by_node() && !origin.overlays.is_empty() {
            let (_, words) = fact.names(SourceKind::Joined);
            return format!("{at}, {}: {words}", origin.overlays.join(", "));
        }
        let (usual, words) = fact.names(origin.kind);
        let file = origin.read_instead.get(&usual).unwrap_or(&usual);
        match origin.kind {
            SourceKind::Live => format!("/{file}"),
            SourceKind::Tree | SourceKind::Archive => {
                Path::new(at).join(file).display().to_string()
            }
            SourceKind::Snapshot => format!("{at}: /{file}"),
            _ => format!("{at}: {words}"),
        }
    }

    /// A command about this machine, for advice, see [`pasteable`].
    pub fn command(&self, command: &str) -> Option<String> {
        pasteable(command, &self.source)
    }

    /// What the source itself named as evidence.
    pub fn said(&self, evidence: &str) -> String {
        let origin = &self.machine.origin;
        match origin.kind {
            SourceKind::Snapshot => format!("{}: {evidence}", origin.place),
            _ => evidence.to_owned(),
        }
    }
}

/// A command with the arguments that choose its machine; none where that came from standard input, which is used up.
pub fn pasteable(command: &str, source: &str) -> Option<String> {
    let is_used_up = shell_words(source).any(|word| word == "-");
    (!is_used_up).then(|| format!("{command} {source}").trim_end().to_owned())
}

fn devices_unknown(machine: &Machine) -> Option<String> {
    let interrupts = machine.interrupts.get().into_iter().flatten();
    let reasons: Vec<&String> = interrupts
        .filter(|interrupt| interrupt.immovable_reason.is_none())
        .filter_map(|interrupt| interrupt.device_unknown_reason.as_ref())
        .collect();
    let (first, number) = (reasons.first()?, reasons.len());
    let noun = if number == 1 {
        "interrupt"
    } else {
        "interrupts"
    };
    Some(format!("the device of {number} {noun} is unknown: {first}"))
}

/// CPUs for a sentence: "CPU 4", "CPUs 0-3".
pub(crate) fn cpus(set: &CpuSet) -> String {
    if set.len() == 1 {
        format!("CPU {set}")
    } else {
        format!("CPUs {set}")
    }
}

/// Nodes for a sentence: "node 0", "nodes 0,2".
pub(crate) fn nodes(set: &NodeSet) -> String {
    if set.len() == 1 {
        format!("node {set}")
    } else {
        format!("nodes {set}")
    }
}

pub(crate) fn spoken(distance: Option<Distance>) -> String {
    distance.map_or_else(
        || "an unknown distance".to_owned(),
        |distance| distance.to_string(),
    )
}

/// A value that findings are based on.
#[derive(Clone, Copy)]
pub(crate) enum Fact<'a> {
    OnlineNodes,
    Cpus(NodeId),
    Memory(NodeId),
    /// The pages of this size in bytes.
    HugePages(NodeId, u64),
    /// The row of a node.
    Distances(NodeId),
    DeviceNode(PciAddress),
    /// Of a subsystem's controller.
    ControllerNode(&'a str, &'a str),
    IoPolicy(&'a str),
    Affinity(Irq),
    EffectiveAffinity(Irq),
    Isolated,
    NohzFull,
    ManagedIrq,
    Xps(&'a str, u32),
    Rps(&'a str, u32),
    NumaBalancing,
    ZoneReclaimMode,
    TaskMemory(i32),
    TaskCpus(i32),
    TaskFiles(i32),
    /// The last CPU, and the time where that is the only one.
    TaskStat(i32),
    ThreadStats(i32),
    CpusetCpus(&'a str),
    CpusetNodes(&'a str),
}

/// A device's node as the file `numa_node` has it.
pub(crate) fn node_number(node: Option<NodeId>) -> String {
    node.map_or_else(|| "-1".to_owned(), |node| node.to_string())
}

impl Fact<'_> {
    fn is_by_node(self) -> bool {
        matches!(
            self,
            Self::OnlineNodes
                | Self::Cpus(_)
                | Self::Memory(_)
                | Self::HugePages(..)
                | Self::Distances(_)
                | Self::DeviceNode(_)
                | Self::ControllerNode(..)
                | Self::TaskMemory(_)
                | Self::CpusetNodes(_)
        )
    }

    /// The file below the root that usually has it, and what a source of this kind without files calls it.
    fn names(self, kind: SourceKind) -> (String, String) {
        let is_description = kind == SourceKind::Description;
        let entry = |file: String, table: &str, entry: &dyn std::fmt::Display, key: &str| {
            let words = match is_description {
                true => format!("[[{table}]] {entry} {key}"),
                false => format!("{table} {entry} {key}"),
            };
            (file, words)
        };
        let node = |id: NodeId, name: &str, key: &str, xml: &str| {
            let file = format!("sys/devices/system/node/node{id}/{name}");
            match kind {
                SourceKind::HwlocXml => (file, format!("NUMANode {id}, {xml}")),
                _ => entry(file, "node", &id, key),
            }
        };
        let interrupt = |irq: Irq, name: &str, words: &str| {
            let words = if is_description { "queue_cpus" } else { words };
            let file = format!("proc/irq/{irq}/{name}");
            (file, format!("interrupt {irq} {words}"))
        };
        let queue = |interface: &str, name: String, words: String| {
            let file = format!("sys/class/net/{interface}/queues/{name}");
            (file, format!("{interface} {words}"))
        };
        let task = |pid: i32, name: &str, key: &str| {
            entry(format!("proc/{pid}/{name}"), "task", &pid, key)
        };
        let cpuset = |path: &str, name: &str, key: &str| {
            let file = format!("sys/fs/cgroup{}/{name}", path.trim_end_matches('/'));
            entry(file, "cpuset", &path, key)
        };
        let one = |file: &str, words: &str| (file.to_owned(), words.to_owned());
        match self {
            Self::OnlineNodes => one("sys/devices/system/node/online", "online nodes"),
            Self::Cpus(id) => node(id, "cpulist", "cpus", "cpuset and subtype"),
            Self::Memory(id) => node(id, "meminfo", "memory", "local_memory"),
            Self::HugePages(id, bytes) => {
                let name = format!("hugepages/hugepages-{}kB/nr_hugepages", bytes >> 10);
                node(id, &name, "huge pages", "page_type")
            }
            Self::Distances(id) => one(
                &format!("sys/devices/system/node/node{id}/distance"),
                &format!("distances of node {id}"),
            ),
            Self::DeviceNode(device) => {
                let file = format!("sys/bus/pci/devices/{device}/numa_node");
                match kind {
                    SourceKind::HwlocXml => (file, format!("PCIDev {device}")),
                    _ => (file, format!("{device} node")),
                }
            }
            Self::ControllerNode(subsystem, name) => {
                let file = format!("sys/class/nvme-subsystem/{subsystem}/{name}/numa_node");
                (file, format!("{name} node"))
            }
            Self::IoPolicy(subsystem) => {
                let file = format!("sys/class/nvme-subsystem/{subsystem}/iopolicy");
                (file, format!("{subsystem} iopolicy"))
            }
            Self::Affinity(irq) => interrupt(irq, "smp_affinity_list", "affinity"),
            Self::EffectiveAffinity(irq) => {
                interrupt(irq, "effective_affinity_list", "effective affinity")
            }
            Self::Isolated => one("sys/devices/system/cpu/isolated", "isolated CPUs"),
            Self::NohzFull => one("sys/devices/system/cpu/nohz_full", "nohz_full CPUs"),
            Self::ManagedIrq => one("proc/cmdline", "managed_irq CPUs"),
            Self::Xps(name, number) => queue(
                name,
                format!("tx-{number}/xps_cpus"),
                format!("transmit queue {number} xps"),
            ),
            Self::Rps(name, number) => queue(
                name,
                format!("rx-{number}/rps_cpus"),
                format!("receive queue {number} rps"),
            ),
            Self::NumaBalancing => one("proc/sys/kernel/numa_balancing", "numa_balancing"),
            Self::ZoneReclaimMode => one("proc/sys/vm/zone_reclaim_mode", "zone_reclaim_mode"),
            Self::TaskMemory(pid) => task(pid, "numa_maps", "memory"),
            Self::TaskCpus(pid) => task(pid, "status", "cpus"),
            Self::TaskFiles(pid) => task(pid, "fd", "devices"),
            Self::TaskStat(pid) => task(pid, "stat", "cpu_seconds"),
            Self::ThreadStats(pid) => task(pid, "task/*/stat", "cpu_seconds"),
            Self::CpusetCpus(path) => cpuset(path, "cpuset.cpus.effective", "cpus"),
            Self::CpusetNodes(path) => cpuset(path, "cpuset.mems.effective", "nodes"),
        }
    }
}
