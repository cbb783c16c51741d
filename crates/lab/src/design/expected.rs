//! What the guest should see of its hardware: the machine that `nearfar topo` inside is compared with.

use nearfar_machine::{
    AnaState, Cpu, CpuId, CpuSet, CpuStates, DistanceOrigin, Distances, FirmwareLocality,
    FirmwareSource, HostBridge, IoPolicy, Known, Machine, Memory, NetworkDevice, Node, NodeId,
    NvmeController, NvmeNamespace, NvmePath, NvmeSubsystem, Origin, PciAddress, PciDevice,
    ReceiveQueue, RootBus, SourceKind, TransmitQueue,
};

use crate::arch::Arch;
use crate::design::board::Board;
use crate::design::devices::queues;
use crate::design::hardware::{Bridge, Device, Hardware, StandIn, Topology};
use crate::design::nodes::Numbers;
use crate::kernels::Series;

const BECAUSE: &str = "the design of a guest does not say";

/// The machine inside, before fake nodes are laid over it.
pub(super) fn machine(
    described: &Machine,
    arch: Arch,
    kernel: Option<Series>,
    board: &dyn Board,
    hardware: &Hardware,
    numbers: &Numbers,
    notes: &mut Vec<String>,
) -> Machine {
    let mut machine = Machine::empty(
        Origin::new(SourceKind::Description, "the design of the guest"),
        BECAUSE,
    );
    machine.origin.architecture = Known::Yes(arch.uname().to_owned());
    machine.nodes = nodes(described, kernel, board, hardware, numbers, notes);
    machine.cpus = cpus(hardware);
    let all = machine.cpus.iter().map(|cpu| cpu.id).collect::<CpuSet>();
    machine.cpu_states = CpuStates {
        possible: Known::Yes(all.clone()),
        ..CpuStates::online_only(all, BECAUSE)
    };
    let everywhere = table(hardware, machine.nodes.iter().map(|node| node.id));
    let online = table(hardware, machine.online_nodes().map(|node| node.id));
    machine.distances = Known::Yes(online);
    if machine.nodes.iter().any(|node| !node.online) && !hardware.distances.is_empty() {
        machine.firmware_distances = Known::Yes(everywhere);
    }
    add_devices(&mut machine, described, board, hardware);
    machine
}

/// Without CPUs and memory a node comes online only on some boards, there for the sake of a bridge, and under some kernels
/// only. Where the kernel is not known, the description says.
fn nodes(
    described: &Machine,
    kernel: Option<Series>,
    board: &dyn Board,
    hardware: &Hardware,
    numbers: &Numbers,
    notes: &mut Vec<String>,
) -> Vec<Node> {
    let build = |(described_id, id): (NodeId, NodeId)| {
        let built = hardware.nodes.get(id.0 as usize)?;
        let mut node = Node::new(id, built.cpus.clone());
        node.memory = Known::Yes(Memory::of(built.bytes));
        let said = described.node(described_id).is_some_and(|node| node.online);
        let mut bridges = hardware.bridges.iter();
        let bridge = bridges.any(|bridge| bridge.node == Some(id));
        let full = built.bytes > 0 || !built.cpus.is_empty();
        let since = board.empty_nodes_online_since().filter(|_| bridge);
        node.online =
            full || since.is_some_and(|since| kernel.map_or(said, |kernel| kernel >= since));
        if node.online != said {
            notes.push(empty(described_id, node.online, since));
        }
        Some(node)
    };
    let mut nodes: Vec<Node> = numbers.pairs().filter_map(build).collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

/// That a node without CPUs and memory is online or not, against its description.
fn empty(node: NodeId, online: bool, since: Option<Series>) -> String {
    let since =
        since.map(|since| format!("; for its host bridge Linux brings it online since {since}"));
    let state = if online { "online" } else { "not online" };
    format!(
        "node {node} is {state} in the guest: it has neither CPUs nor memory{}",
        since.unwrap_or_default()
    )
}

fn cpus(hardware: &Hardware) -> Vec<Cpu> {
    let Topology {
        cpus,
        dies,
        cores,
        threads,
        ..
    } = hardware.topology;
    let package = (dies * cores * threads).max(1) as u32;
    let core = threads.max(1) as u32;
    let node_of = |cpu| {
        let mut nodes = (0..).map(NodeId).zip(&hardware.nodes);
        Some(nodes.find(|(_, node)| node.cpus.contains(cpu))?.0)
    };
    let build = |number: u32| {
        let id = CpuId(number);
        let mut cpu = Cpu::new(id, node_of(id));
        cpu.core = Some(CpuId(number - number % core));
        cpu.package = Some((number / package).into());
        cpu
    };
    (0..cpus as u32).map(build).collect()
}

/// The firmware's distances, or what the kernel assumes where it gives none.
fn table(hardware: &Hardware, nodes: impl Iterator<Item = NodeId>) -> Distances {
    let mut table = Distances::empty(DistanceOrigin::Described, nodes);
    for (from, to, _) in table.clone().entries() {
        table.set(from, to, Some(hardware.distance(from, to)));
    }
    table
}

/// The queues of QEMU's NVMe controller where the number is not given (`max_ioqpairs`).
const NVME_QUEUES: u32 = 64;

/// Adds the devices to a machine that has its nodes.
fn add_devices(machine: &mut Machine, described: &Machine, board: &dyn Board, hardware: &Hardware) {
    if hardware.bridges.is_empty() {
        return;
    }
    let mut seen = Seen {
        cpus: hardware.topology.cpus,
        ..Seen::default()
    };
    let subsystems = 0..hardware.subsystems.len();
    let subsystems = subsystems.map(|number| subsystem(number, described));
    seen.subsystems = subsystems.collect();
    for bridge in &hardware.bridges {
        seen.bridge(bridge, machine, board);
    }
    seen.paths(hardware);
    seen.pci.sort_by_key(|function| function.address);
    seen.networks.sort_by(|a, b| a.name.cmp(&b.name));
    seen.bridges.sort_by_key(|bridge| bridge.root);
    machine.pci = Known::Yes(seen.pci);
    machine.host_bridges = Known::Yes(seen.bridges);
    machine.networks = Known::Yes(seen.networks);
    machine.nvme = Known::Yes(seen.subsystems);
}

#[derive(Default)]
struct Seen {
    cpus: usize,
    bridges: Vec<HostBridge>,
    pci: Vec<PciDevice>,
    networks: Vec<NetworkDevice>,
    subsystems: Vec<NvmeSubsystem>,
}

impl Seen {
    fn bridge(&mut self, bridge: &Bridge, machine: &Machine, board: &dyn Board) {
        let locality = bridge.node.map(|node| FirmwareLocality {
            domain: node.0,
            node,
            told_by: FirmwareSource::Described,
            evidence: "the design of the guest".to_owned(),
        });
        self.bridges.push(HostBridge {
            root: bridge.root,
            firmware: Known::Yes(locality),
        });
        // A node that is not online is none to the kernel.
        let is_online = |node: &NodeId| machine.node(*node).is_some_and(|node| node.online);
        let node = bridge.node.filter(is_online);
        for (position, device) in bridge.devices.iter().enumerate() {
            let address = board.address(bridge, position);
            self.pci.push(function(device, address, bridge.root, node));
            match device {
                Device::Nvme {
                    id,
                    subsystem,
                    io_queues,
                } => {
                    let queues = io_queues.unwrap_or(NVME_QUEUES).min(self.cpus as u32) + 1;
                    let controller = controller(id, address, node, queues);
                    if let Some(subsystem) = self.subsystems.get_mut(*subsystem) {
                        subsystem.controllers.push(controller);
                    }
                }
                Device::Nic { multi_queue, .. } => self.network(address, node, *multi_queue),
                Device::Block { .. } | Device::StandIn(_) => {}
            }
        }
    }

    fn network(&mut self, address: PciAddress, node: Option<NodeId>, multi_queue: bool) {
        let queues = 0..queues(multi_queue, self.cpus) as u32;
        let transmit = |queue| TransmitQueue {
            queue,
            xps: Known::no(BECAUSE),
        };
        let receive = |queue| ReceiveQueue {
            queue,
            rps: Known::no(BECAUSE),
        };
        self.networks.push(NetworkDevice {
            name: format!("eth{}", self.networks.len()),
            device: Some(address),
            mac: None,
            node: Known::Yes(node),
            transmit: queues.clone().map(transmit).collect(),
            receive: queues.map(receive).collect(),
        });
    }

    /// Every namespace is reached through every controller of its subsystem.
    fn paths(&mut self, hardware: &Hardware) {
        let subsystems = self.subsystems.iter_mut().zip(&hardware.subsystems);
        for (at, (seen, built)) in subsystems.enumerate() {
            let path = |number: usize, controller: &NvmeController| {
                let id = controller.name.trim_start_matches("nvme");
                NvmePath {
                    name: format!("nvme{at}c{id}n{number}"),
                    controller: controller.name.clone(),
                    ana_state: Known::Yes(AnaState::Optimized),
                    numa_nodes: None,
                    queue_depth: None,
                }
            };
            let controllers = &seen.controllers;
            let namespace = |number: usize| NvmeNamespace {
                name: format!("nvme{at}n{number}"),
                paths: controllers.iter().map(|it| path(number, it)).collect(),
                paths_unknown_reason: None,
            };
            seen.namespaces = (1..=built.disks.len()).map(namespace).collect();
        }
    }
}

fn subsystem(number: usize, described: &Machine) -> NvmeSubsystem {
    let subsystems = described.nvme.get();
    let first = subsystems.and_then(|subsystems| subsystems.first());
    let iopolicy = first.and_then(|first| first.iopolicy.get()).cloned();
    NvmeSubsystem {
        name: format!("nvme-subsys{number}"),
        nqn: Some(format!("nqn.2019-08.org.qemu:subsystem{number}")),
        model: Some("QEMU NVMe Ctrl".to_owned()),
        iopolicy: Known::Yes(iopolicy.unwrap_or(IoPolicy::Numa)),
        controllers: Vec::new(),
        namespaces: Vec::new(),
    }
}

fn controller(id: &str, address: PciAddress, node: Option<NodeId>, queues: u32) -> NvmeController {
    NvmeController {
        name: id.to_owned(),
        state: Known::Yes("live".to_owned()),
        transport: Known::Yes("pcie".to_owned()),
        device: Some(address),
        node: Known::Yes(node),
        queues: Known::Yes(queues),
    }
}

fn function(
    device: &Device,
    address: PciAddress,
    root: RootBus,
    node: Option<NodeId>,
) -> PciDevice {
    let (vendor, number, class, driver) = match device {
        Device::Nvme { .. } => (0x1b36, 0x0010, 0x01_08_02, Some("nvme")),
        Device::Nic {
            multi_queue: true, ..
        } => (0x8086, 0x10c9, 0x02_00_00, Some("igb")),
        Device::Nic {
            multi_queue: false, ..
        } => (0x1af4, 0x1041, 0x02_00_00, Some("virtio-pci")),
        Device::Block { .. } => (0x1af4, 0x1042, 0x01_00_00, Some("virtio-pci")),
        Device::StandIn(StandIn::Display) => (0x1234, 0x1111, 0x03_80_00, None),
        Device::StandIn(StandIn::Other) => (0x1b36, 0x0005, 0x00_ff_00, None),
    };
    PciDevice {
        address,
        vendor,
        device: number,
        class,
        class_name: None,
        name: None,
        driver: driver.map(str::to_owned),
        parent: None,
        root,
        node: Known::Yes(node),
    }
}
