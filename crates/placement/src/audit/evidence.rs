//! What evidence names: the file that was read, or what says it in a source without files.
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

use std::path::Path;

use nearfar_machine::{Irq, NodeId, Origin, PciAddress, SourceKind};

/// A value that findings are based on.
#[derive(Clone, Copy)]
pub(super) enum Fact<'a> {
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
    /// The last CPU, and the time where that is the only one.
    TaskStat(i32),
    ThreadStats(i32),
    CpusetCpus(&'a str),
    CpusetNodes(&'a str),
}

/// Where a machine's source has a value.
pub(super) fn place(origin: &Origin, fact: Fact<'_>) -> String {
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
        SourceKind::Tree | SourceKind::Archive => Path::new(at).join(file).display().to_string(),
        SourceKind::Snapshot => format!("{at}: /{file}"),
        _ => format!("{at}: {words}"),
    }
}

/// What a source itself named as evidence.
pub(super) fn said(origin: &Origin, evidence: &str) -> String {
    match origin.kind {
        SourceKind::Snapshot => format!("{}: {evidence}", origin.place),
        _ => evidence.to_owned(),
    }
}

/// A device's node as the file `numa_node` has it.
pub(super) fn node_number(node: Option<NodeId>) -> String {
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
            Self::TaskStat(pid) => task(pid, "stat", "cpu_seconds"),
            Self::ThreadStats(pid) => task(pid, "task/*/stat", "cpu_seconds"),
            Self::CpusetCpus(path) => cpuset(path, "cpuset.cpus.effective", "cpus"),
            Self::CpusetNodes(path) => cpuset(path, "cpuset.mems.effective", "nodes"),
        }
    }
}
