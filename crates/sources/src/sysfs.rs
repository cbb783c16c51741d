//! The live system and extracted trees: what sysfs and procfs say of a machine.
//!
//! ```text
//! cpuinfo ──► cpus ──► caches          which CPUs there are, what they share
//! nodes                                what belongs to each node, how far they are
//! origin                               which machine this is
//! pci, devices, nvme, interrupts, firmware     what hangs on it
//! tasks, writers                       what runs on it
//! ```
//!
//! A kernel writes a real tree, anyone can write an extracted one: whatever a file contains, reading goes on, and what
//! is wrong with it becomes a warning that names the file.

mod caches;
mod cpuinfo;
mod cpus;
mod devices;
mod firmware;
pub(crate) mod interrupts;
mod nodes;
mod nvme;
mod origin;
mod pci;
pub(crate) mod pci_ids;
mod services;
mod tasks;
mod writers;

use std::collections::BTreeSet;

use nearfar_machine::{
    CpuSet, Known, Machine, NOT_ASKED_FOR, Node, NodeSet, PciDevice, RootBus, ServiceGroup,
    Settings, Task,
};

use crate::device_files::add_open_devices;
use crate::request::{TaskScope, Want};
use crate::tree::Tree;
use crate::value::{self, ValueError};

/// What a tree without CPUs and nodes may have.
const PARTS: [&str; 6] = [
    pci::DEVICES,
    "sys/class/nvme-subsystem",
    "sys/class/nvme",
    "sys/class/net",
    "proc/interrupts",
    "proc/irq",
];

/// Whether a directory may be such a tree. Whether there is anything in its files is found by [`read`].
pub fn is_tree(tree: &Tree) -> bool {
    let others = [
        "sys/devices/system/cpu",
        "sys/devices/system/node",
        "proc/cpuinfo",
    ];
    PARTS.iter().chain(&others).any(|part| tree.exists(part))
}

/// Why a tree gives no machine at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{place}: no CPU, node or device found in sys/devices, sys/bus/pci, sys/class or proc; \
     the directory that holds `sys` and `proc` is wanted"
)]
pub struct SysfsError {
    /// The root that was read.
    place: String,
}

/// Reads the machine that a tree describes.
///
/// # Errors
/// When the tree has neither CPUs nor nodes nor devices: then it is no tree of a Linux system. Everything else that is
/// wrong with it becomes a warning or a [`Known::No`](nearfar_machine::Known).
pub fn read(tree: &Tree, want: &Want) -> Result<Machine, SysfsError> {
    let mut machine = read_machine(tree, want)?;
    add_parts(tree, want, &mut machine);
    tree.finish(&mut machine);
    Ok(machine)
}

/// Reads processes, and nothing else of the machine.
pub fn read_tasks(tree: &Tree, want: &Want) -> Known<Vec<Task>> {
    let tasks = tasks::read(tree, want);
    // They tell no user anything: a task that ended meanwhile is usual where this is read again and again.
    tree.forget_notes();
    tasks
}

/// Reads what is known of the services of all tasks besides their paths. `known` are those of the look before.
pub fn read_services(tree: &Tree, tasks: &[Task], known: &[ServiceGroup]) -> Vec<ServiceGroup> {
    let services = services::read(tree, tasks, true, known);
    tree.forget_notes();
    services
}

fn read_machine(tree: &Tree, want: &Want) -> Result<Machine, SysfsError> {
    let cpuinfo = cpuinfo::CpuInfo::new(tree);
    let mut cpus = cpus::find(tree, &cpuinfo);
    let nodes = nodes::read(tree, &cpus);
    if cpus.online.is_empty() {
        // A tree with nothing but node directories. The kernel lists the online CPUs there (node_read_cpumap() in
        // drivers/base/node.c).
        cpus.online = nodes.nodes.iter().map(Node::known_cpus).collect();
        cpus.unknown = cpus.unknown.difference(&cpus.online);
    }
    let has_cpus_or_nodes =
        !cpus.online.is_empty() || !cpus.present.is_empty() || !nodes.nodes.is_empty();
    if !has_cpus_or_nodes && !PARTS.iter().any(|part| tree.exists(part)) {
        let place = tree.place().display().to_string();
        return Err(SysfsError { place });
    }
    let packages = cpus::packages(tree, &cpus.online, want.cpu_details);
    let distances = nodes::distances(tree, &nodes);
    nodes::compare_memory(tree, &nodes.nodes);
    let mut machine = Machine::empty(origin::read(tree, &cpuinfo, want), NOT_ASKED_FOR);
    machine.cpu_states = cpus::states(tree, cpus.online.clone());
    machine.cpus = cpus::assembled(tree, &cpus, &nodes.nodes, &packages, &cpuinfo);
    if want.cpu_details {
        machine.caches = cpus::all_caches(tree, &cpus.online, packages, &cpuinfo);
    }
    machine.possible_nodes = nodes.possible;
    machine.nodes = nodes.nodes;
    machine.distances = distances;
    Ok(machine)
}

/// Reads what is wanted into a machine that has its nodes and CPUs already.
fn add_parts(tree: &Tree, want: &Want, machine: &mut Machine) {
    machine.settings = settings(tree);
    machine.writers = writers::read(tree);
    if want.devices || want.tasks != TaskScope::None {
        machine.cpusets = tasks::cpusets(tree);
    }
    machine.tasks = tasks::read(tree, want);
    let is_of_all = want.tasks == TaskScope::All;
    machine.services = services::read(tree, machine.tasks.items(), is_of_all, &[]);
    if !want.devices && !want.interrupts {
        return;
    }
    let pci = pci::read(tree, &machine.nodes);
    let functions = pci.items();
    missing_nodes(tree, functions, &machine.possible_nodes);
    if want.interrupts {
        let virtio = devices::virtio(tree);
        machine.interrupts = interrupts::read(tree, want, functions, &virtio);
    }
    if want.devices {
        machine.networks = devices::networks(tree, functions);
        machine.nvme = nvme::read(tree, functions);
        machine.disks = devices::disks(tree);
        machine.os_devices = devices::others(tree, functions);
        let roots = pci.as_ref().map(|functions| root_buses(functions));
        locate_bridges(tree, roots, machine);
        machine.pci = pci;
        let mut tasks = std::mem::replace(&mut machine.tasks, Known::no(NOT_ASKED_FOR));
        add_open_devices(tree, machine, tasks.items_mut());
        machine.tasks = tasks;
    }
}

/// Notes devices on a node that cannot exist: the kernel has each of its nodes in `possible`.
fn missing_nodes(tree: &Tree, functions: &[PciDevice], possible: &Known<NodeSet>) {
    let Some(possible) = possible.get() else {
        return;
    };
    for device in functions {
        if let Some(node) = device.node.get().copied().flatten()
            && !possible.contains(node)
        {
            let nodes = tree.display(nodes::DIRECTORY);
            let path = format!("{}/{}/numa_node", pci::DEVICES, device.address);
            let message = format!("names node {node}, but {nodes} has only nodes {possible}");
            tree.note(&path, message);
        }
    }
}

fn root_buses(functions: &[PciDevice]) -> Vec<RootBus> {
    let roots: BTreeSet<RootBus> = functions.iter().map(|device| device.root).collect();
    roots.into_iter().collect()
}

/// Asks the firmware where the host bridges are. Nodes that it names and the kernel has not switched on are added to
/// the list of nodes: they are where some of the devices are.
fn locate_bridges(tree: &Tree, roots: Known<Vec<RootBus>>, machine: &mut Machine) {
    let firmware = firmware::read(tree, roots.items());
    for id in firmware.nodes().iter() {
        if let Err(place) = machine.nodes.binary_search_by_key(&id, |node| node.id) {
            let mut node = Node::new(id, CpuSet::new());
            node.online = false;
            node.memory = Known::no("the node is not online");
            machine.nodes.insert(place, node);
        }
    }
    machine.firmware_distances = firmware.distances;
    machine.host_bridges = roots.map(|_| firmware.bridges);
}

/// Reads the settings; each that is not there is unknown for itself.
fn settings(tree: &Tree) -> Settings {
    const GOVERNOR: &str = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    const HUGE_PAGES: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    Settings {
        numa_balancing: tree.known("proc/sys/kernel/numa_balancing", value::natural32),
        default_interrupt_affinity: tree.known("proc/irq/default_smp_affinity", value::mask),
        governor: tree.known(GOVERNOR, value::word),
        transparent_huge_pages: tree.known(HUGE_PAGES, chosen),
        zone_reclaim_mode: tree.known("proc/sys/vm/zone_reclaim_mode", value::natural32),
    }
}

/// The word in brackets of `always [madvise] never`.
fn chosen(bytes: &[u8]) -> Result<String, ValueError> {
    let text = value::text(bytes)?;
    let chosen = nearfar_proc::choice::chosen(text).map(str::to_owned);
    chosen.ok_or_else(|| ValueError::malformed(text, "a list with one word in brackets"))
}
