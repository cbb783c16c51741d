//! The live system and extracted trees: what sysfs and procfs say of a machine.
//!
//! ```text
//! cpus, cpuinfo ──► topology ──► caches        which CPUs there are, what they share
//! nodes ──► memory, distances, performance     what belongs to each node
//! origin                                       which machine this is
//! ```
//!
//! A kernel writes a real tree, anyone can write an extracted one: whatever a file contains, reading goes on, and what
//! is wrong with it becomes a warning that names the file.

mod assemble;
mod attribute;
mod caches;
mod cpuinfo;
mod cpus;
mod cpusets;
mod devices;
mod disks;
mod distances;
mod firmware;
pub(crate) mod interrupts;
mod memory;
mod networks;
mod nodes;
mod notes;
mod nvme;
mod origin;
mod pci;
pub mod pci_ids;
mod performance;
mod settings;
mod tasks;
mod topology;
mod virtio;
mod writers;

use nearfar_machine::{CpuSet, Known, Machine, NOT_ASKED_FOR, Task};

use crate::tree::Tree;
use crate::want::Want;
use notes::Notes;

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
pub enum SysfsError {
    #[error(
        "{place}: no CPU, node or device found in sys/devices, sys/bus/pci, sys/class or proc; \
         the directory that holds `sys` and `proc` is wanted"
    )]
    NotATree {
        /// The root that was read.
        place: String,
    },
}

/// Reads the machine that a tree describes.
///
/// # Errors
/// When the tree has neither CPUs nor nodes nor devices: then it is no tree of a Linux system. Everything else that is
/// wrong with it becomes a warning or a [`Known::No`](nearfar_machine::Known).
pub fn read(tree: &Tree, want: &Want) -> Result<Machine, SysfsError> {
    let notes = Notes::default();
    let mut machine = read_machine(tree, want, &notes)?;
    devices::read(tree, want, &notes, &mut machine);
    notes.finish(tree, &mut machine);
    Ok(machine)
}

/// Reads processes, and nothing else of the machine.
pub fn read_tasks(tree: &Tree, want: &Want) -> Known<Vec<Task>> {
    tasks::read(tree, want, &Notes::default())
}

fn read_machine(tree: &Tree, want: &Want, notes: &Notes) -> Result<Machine, SysfsError> {
    let cpuinfo = cpuinfo::CpuInfo::new(tree, notes);
    let mut cpus = cpus::find(tree, &cpuinfo, notes);
    let nodes = nodes::read(tree, &cpus, notes);
    if cpus.online.is_empty() {
        // A tree with nothing but node directories. The kernel lists the online CPUs there (node_read_cpumap() in
        // drivers/base/node.c).
        cpus.online = nodes
            .nodes
            .iter()
            .fold(CpuSet::new(), |all, node| all.union(node.known_cpus()));
        cpus.unknown = cpus.unknown.difference(&cpus.online);
    }
    let has_cpus_or_nodes =
        !cpus.online.is_empty() || !cpus.present.is_empty() || !nodes.nodes.is_empty();
    if !has_cpus_or_nodes && !PARTS.iter().any(|part| tree.exists(part)) {
        return Err(SysfsError::NotATree {
            place: tree.place().display().to_string(),
        });
    }
    let packages = topology::read(tree, &cpus.online, want.cpu_details, notes);
    let distances = distances::read(tree, &nodes, notes);
    memory::compare(tree, &nodes.nodes, notes);
    let mut machine = Machine::empty(origin::read(tree, &cpuinfo, want), NOT_ASKED_FOR);
    machine.firmware_distances = Known::no("the tree holds no table of the firmware");
    machine.cpu_states = cpus::states(tree, cpus.online.clone(), notes);
    machine.cpus = assemble::cpus(tree, &cpus, &nodes.nodes, &packages, &cpuinfo, notes);
    if want.cpu_details {
        machine.caches = assemble::caches(tree, &cpus.online, packages, &cpuinfo);
    }
    machine.possible_nodes = nodes.possible;
    machine.nodes = nodes.nodes;
    machine.distances = distances;
    Ok(machine)
}
