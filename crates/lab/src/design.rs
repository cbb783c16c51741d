//! A machine's virtual hardware: what QEMU is asked to build.
//!
//! ```text
//! Machine ─► processors ─► numbers ─► memory, distances ─► Hardware ─┬─► render    QEMU's arguments
//!            (vCPUs)       (nodes)    devices, performance           └─► expected  the machine seen from inside
//! ```
//!
//! Everything in here is pure but for one look for a firmware file. What differs between boards is in `board`.

mod board;
mod distances;
mod expected;
pub mod hardware;
mod memory;
mod numbers;
mod processors;
mod render;

use nearfar_machine::{CpuId, Machine, NodeId};

use crate::arch::Arch;
use crate::error::LabError;
use crate::qemu::{Acceleration, Qemu};
use hardware::{GuestNode, Hardware};
use numbers::Numbers;

/// The virtual hardware for one machine.
#[derive(Clone, Debug)]
pub struct Design {
    /// The guest's architecture.
    pub arch: Arch,
    /// What this design could not reproduce, in sentences for the user ("eth0's 49 queues become 8: ...").
    pub notes: Vec<String>,
    /// Where each node's memory lies in the guest's physical address space, ascending.
    pub memory_map: Vec<MemoryRange>,
    /// The node of each vCPU, by number.
    pub cpu_nodes: Vec<NodeId>,
    /// Disks whose content the guest process has to provide: each becomes the block node of that name.
    pub disks: Vec<Disk>,
    /// Ports left free for hot plug.
    pub spare_ports: Vec<SparePort>,
    /// Words for the guest kernel's command line (`numa=fake=4`).
    pub append: Vec<String>,
    /// What `nearfar topo` inside the guest should show: node states, distances, CPUs and devices by node.
    pub expected: Machine,
    /// The hardware itself, from which arguments are made.
    pub hardware: Hardware,
}

/// A part of the guest's physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// First guest physical address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// The node that owns it.
    pub node: NodeId,
}

/// A disk of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// QEMU's node name, referred to by the design's `-device` arguments as `drive=NAME`.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// A PCI Express root port with nothing behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SparePort {
    /// QEMU's id, to be used as `bus=`.
    pub id: String,
    /// The node of the host bridge it is on; `None` for a bridge without one.
    pub node: Option<NodeId>,
}

impl Design {
    /// Designs the hardware of a machine (already scaled).
    ///
    /// # Errors
    /// When the machine has more CPUs, nodes or memory than QEMU's board takes, or no CPU; says how to scale it down.
    pub fn new(machine: &Machine, arch: Arch) -> Result<Self, LabError> {
        let board = board::of(arch);
        let mut notes = Vec::new();
        let cpus = processors::present(machine, board, &mut notes)?;
        let numbers = Numbers::new(machine, &cpus, board, &mut notes)?;
        let sizes = memory::sizes(machine, &numbers, board, &mut notes)?;
        let mut hardware = Hardware {
            nodes: sizes.iter().map(|&bytes| GuestNode { bytes, ..GuestNode::default() }).collect(),
            topology: processors::topology(machine, &cpus, board, &mut notes),
            distances: distances::matrix(machine, &numbers, &mut notes),
            ..Hardware::default()
        };
        let cpu_nodes: Vec<NodeId> = cpus.iter().filter_map(|cpu| numbers.guest(cpu.node)).collect();
        for (node, number) in cpu_nodes.iter().zip(0..) {
            hardware.nodes[node.0 as usize].cpus.insert(CpuId(number));
        }
        let expected = expected::machine(machine, arch, board, &hardware, &numbers, &mut notes);
        Ok(Self {
            arch,
            notes,
            memory_map: board.memory_map(&sizes),
            cpu_nodes,
            disks: Vec::new(),
            spare_ports: Vec::new(),
            append: Vec::new(),
            expected,
            hardware,
        })
    }

    /// QEMU's arguments for the hardware: machine, CPUs, memory, nodes, distances, bridges and devices. Not the kernel,
    /// the block backends of [`Self::disks`], or the channels to the guest. On the first root bus (`pcie.0`, `pci.0` on
    /// Power) the slots from 0x18 up are left free for those.
    pub fn arguments(&self, qemu: &Qemu, acceleration: Acceleration) -> Vec<String> {
        render::arguments(board::of(self.arch), &self.hardware, qemu, acceleration)
    }
}
