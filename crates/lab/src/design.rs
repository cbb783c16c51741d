//! A machine's virtual hardware: what QEMU is asked to build.
//!
//! ```text
//! Machine ─► processors ─► numbers ─► memory, distances ─► Hardware ─┬─► render    QEMU's arguments
//!            (vCPUs)       (nodes)    devices, performance           └─► expected  the machine seen from inside
//! ```
//!
//! Everything in here is pure but for one look for a firmware file. What differs between boards is in `board`.

mod board;
mod devices;
mod expected;
pub(crate) mod fakes;
pub mod hardware;
mod nodes;
mod processors;
mod render;

pub use render::LateDevice;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::arch::Arch;
use crate::design::devices::Devices;
use crate::design::hardware::{Bridge, Device, GuestNode, Hardware};
use crate::design::nodes::Numbers;
use crate::design::processors::VirtualCpu;
use crate::error::LabError;
use crate::guest::Start;
use crate::kernels::Series;
use crate::qemu::Qemu;
use nearfar_machine::{Acceleration, CpuId, CpuSet, IoPolicy, Known, Machine, NodeId, Timing};

/// The virtual hardware for one machine.
#[derive(Clone, Debug)]
pub struct Design {
    /// The guest's architecture.
    pub arch: Arch,
    /// What this design could not reproduce, in sentences for the user ("eth0's 49 queues become 8: ...").
    pub notes: Vec<String>,
    /// Where each node's memory lies in the guest's physical address space, ascending. Fake nodes lie over these.
    pub memory_map: Vec<MemoryRange>,
    /// The node of each vCPU, by number. Fake nodes lie over these.
    pub cpu_nodes: Vec<NodeId>,
    /// The last-level cache of each vCPU, counted from 0; `None` where the machine's caches are unknown.
    pub cpu_caches: Option<Vec<usize>>,
    /// The package of each vCPU on the machine, counted from 0; `None` where the machine's packages are unknown.
    pub cpu_packages: Option<Vec<usize>>,
    /// What accesses take on the machine, by the guest's nodes, where that is known.
    pub timing: Option<Timing>,
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
    /// The UEFI image of an arm64 guest.
    pub firmware: Option<PathBuf>,
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
    /// Designs the hardware of a machine (already scaled), with the UEFI firmware that is installed here where the
    /// architecture wants one.
    ///
    /// # Errors
    /// When the machine has more CPUs, nodes or memory than QEMU's board takes, or no CPU; says how to scale it down.
    pub fn new(machine: &Machine, arch: Arch) -> Result<Self, LabError> {
        Self::with_firmware(machine, arch, board::virt::find_firmware(arch))
    }

    /// The same with a given UEFI image, or none.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_firmware(
        machine: &Machine,
        arch: Arch,
        firmware: Option<PathBuf>,
    ) -> Result<Self, LabError> {
        Self::build(machine, arch, firmware, None)
    }

    /// The same for a guest with a kernel of this series: what it brings online is expected, whatever the description
    /// says. [`Self::new`] believes the description where kernels differ.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn under(machine: &Machine, arch: Arch, kernel: Series) -> Result<Self, LabError> {
        Self::build(
            machine,
            arch,
            board::virt::find_firmware(arch),
            Some(kernel),
        )
    }

    fn build(
        machine: &Machine,
        arch: Arch,
        firmware: Option<PathBuf>,
        kernel: Option<Series>,
    ) -> Result<Self, LabError> {
        let board = board::of(arch, firmware.is_some());
        let mut notes = Vec::new();
        let (machine, fake) = fakes::real(machine);
        let machine = &machine;
        nodes::check_count(machine)?;
        let cpus = processors::present(machine, board, &mut notes)?;
        let numbers = Numbers::new(machine, &cpus, board, &mut notes);
        let cpu_nodes = cpus.iter().filter_map(|cpu| numbers.guest(cpu.node));
        let cpu_nodes: Vec<NodeId> = cpu_nodes.collect();
        let sizes = nodes::memory_sizes(machine, &numbers, board, &mut notes)?;
        let nodes = guest_nodes(&sizes, &cpu_nodes);
        let mut devices = Devices::of(machine, &numbers, cpus.len(), &mut notes);
        let bridges = devices::bridges(&mut devices, board, &mut notes)?;
        let hardware = Hardware {
            topology: processors::topology(machine, &cpus, board, &mut notes),
            distances: nodes::distances(machine, &numbers, &mut notes),
            performance: nodes::performance(machine, &numbers, &nodes, board, &mut notes),
            nodes,
            subsystems: devices.subsystems,
            bridges,
        };
        let mut append = described_words(machine, &cpus);
        let real = expected::machine(
            machine, arch, kernel, board, &hardware, &numbers, &mut notes,
        );
        let expected = match &fake {
            Some(spec) => fakes::again(real, spec, arch, &mut append, &mut notes)?,
            None => real,
        };
        let spare_port = |bridge: &Bridge| SparePort {
            id: board.spare(bridge),
            node: bridge.node,
        };
        Ok(Self {
            arch,
            notes,
            memory_map: board.memory_map(&sizes),
            cpu_nodes,
            cpu_caches: processors::caches(machine, &cpus),
            cpu_packages: processors::packages(machine, &cpus),
            timing: machine.timing.as_ref().map(|it| numbers.timing(it)),
            disks: devices.disks,
            spare_ports: hardware.bridges.iter().map(spare_port).collect(),
            append,
            expected,
            hardware,
            firmware,
        })
    }

    /// QEMU's arguments for the hardware: machine, CPUs, memory, nodes, distances, bridges and devices. Not the kernel,
    /// the block backends of [`Self::disks`], or the channels to the guest. On the first root bus (`pcie.0`, `pci.0` on
    /// Power) the slots from 0x18 up are left free for those.
    pub fn arguments(&self, qemu: &Qemu, acceleration: Acceleration) -> Vec<String> {
        self.arguments_with(multi_queue_card(qemu), acceleration)
    }

    /// The same with a given multi-queue network card.
    pub fn arguments_with(&self, card: &str, acceleration: Acceleration) -> Vec<String> {
        self.render(card, acceleration, Start::Boot, &|_| String::new())
    }

    /// The same for a guest that starts in this way. One that is saved is without [`Self::late_devices`], one that starts from
    /// a saved guest has [`Self::placeholders`] besides, to be unplugged before the state is loaded. Both have each node's
    /// memory in a file; `memory_file` gives the options of `memory-backend-file` that name the file of a node.
    pub fn start_arguments(
        &self,
        qemu: &Qemu,
        acceleration: Acceleration,
        start: Start,
        memory_file: &dyn Fn(usize) -> String,
    ) -> Vec<String> {
        self.render(multi_queue_card(qemu), acceleration, start, memory_file)
    }

    fn render(
        &self,
        card: &str,
        acceleration: Acceleration,
        start: Start,
        memory_file: &dyn Fn(usize) -> String,
    ) -> Vec<String> {
        let started = render::Started { start, memory_file };
        let (board, firmware) = (self.board(), self.firmware.as_deref());
        render::arguments(board, &self.hardware, firmware, card, acceleration, started)
    }

    /// The ids of the controllers that [`Self::start_arguments`] has besides the design's own devices.
    pub fn placeholders(&self) -> Vec<String> {
        render::placeholders(&self.hardware)
    }

    /// The numbers of the host bridges that can be plugged in; empty where Linux takes none.
    pub(crate) fn spare_host_bridges(&self) -> Vec<u32> {
        self.board().spare_host_bridges(&self.hardware.bridges)
    }

    /// The nodes of the NVMe controllers that are on one, by QEMU's id.
    pub(crate) fn controller_nodes(&self) -> BTreeMap<String, NodeId> {
        let node = |(device, node): (&Device, Option<NodeId>)| match device {
            Device::Nvme { id, .. } => Some((id.clone(), node?)),
            _ => None,
        };
        let bridges = self.hardware.bridges.iter();
        let devices = bridges.flat_map(|it| it.devices.iter().map(|device| (device, it.node)));
        devices.filter_map(node).collect()
    }

    /// The devices that QEMU cannot save, in the order of their addresses; they are plugged in after the start. `None` when there
    /// are some and this board's guests do not take devices at run time.
    pub fn late_devices(&self) -> Option<Vec<LateDevice>> {
        render::late_devices(self.board(), self.arch, &self.hardware)
    }

    fn board(&self) -> &'static dyn board::Board {
        board::of(self.arch, self.firmware.is_some())
    }
}

/// Both have their queues without a host device behind them; igb came with QEMU 8.0.
fn multi_queue_card(qemu: &Qemu) -> &'static str {
    match qemu.has_device("igb") {
        true => "igb",
        false => "vmxnet3",
    }
}

fn guest_nodes(sizes: &[u64], cpu_nodes: &[NodeId]) -> Vec<GuestNode> {
    let cpus_of = |node| {
        let cpus = (0..).map(CpuId).zip(cpu_nodes);
        cpus.filter(|(_, of)| **of == node)
            .map(|(cpu, _)| cpu)
            .collect()
    };
    let node = |(node, &bytes)| GuestNode {
        cpus: cpus_of(node),
        bytes,
    };
    (0..).map(NodeId).zip(sizes).map(node).collect()
}

/// Words for the guest kernel's command line: what the description says that a kernel takes as a parameter.
fn described_words(machine: &Machine, cpus: &[VirtualCpu]) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(machine.settings.numa_balancing.get().map(|&mode| {
        let word = if mode == 0 { "disable" } else { "enable" };
        format!("numa_balancing={word}")
    }));
    // "numa" is the kernel's own choice.
    let subsystems = machine.nvme.get().into_iter().flatten();
    let mut policies = subsystems.filter_map(|subsystem| subsystem.iopolicy.get());
    let policy = policies.next().filter(|&policy| *policy != IoPolicy::Numa);
    if let Some(policy) = policy.filter(|&policy| policies.all(|other| other == policy)) {
        words.push(format!("nvme_core.iopolicy={policy}"));
    }
    let states = &machine.cpu_states;
    let sets = [
        ("isolcpus", &states.isolated),
        ("nohz_full", &states.nohz_full),
    ];
    for (word, set) in sets {
        let set = renumbered(set, cpus);
        if !set.is_empty() {
            words.push(format!("{word}={set}"));
        }
    }
    words
}

fn renumbered(set: &Known<CpuSet>, cpus: &[VirtualCpu]) -> CpuSet {
    let Some(set) = set.get() else {
        return CpuSet::new();
    };
    let members = (0..)
        .zip(cpus)
        .filter(|(_, cpu)| set.contains(cpu.described));
    members.map(|(number, _)| CpuId(number)).collect()
}
