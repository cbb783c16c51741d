//! The devices that a guest should see: those of the design, with the nodes that its kernel gives them.

use nearfar_machine::{
    AnaState, FirmwareLocality, FirmwareSource, HostBridge, IoPolicy, Known, Machine,
    NetworkDevice, NodeId, NvmeController, NvmeNamespace, NvmePath, NvmeSubsystem, PciAddress,
    PciDevice, ReceiveQueue, RootBus, TransmitQueue,
};

use super::BECAUSE;
use crate::design::board::Board;
use crate::design::devices::queues;
use crate::design::hardware::{Bridge, Device, Hardware, StandIn};

/// The queues of QEMU's NVMe controller where the number is not given (`max_ioqpairs`).
const NVME_QUEUES: u32 = 64;

/// Adds the devices to a machine that has its nodes.
pub(super) fn add(
    machine: &mut Machine,
    described: &Machine,
    board: &dyn Board,
    hardware: &Hardware,
) {
    if hardware.bridges.is_empty() {
        return;
    }
    let mut seen = Seen {
        cpus: hardware.topology.cpus,
        ..Seen::default()
    };
    seen.subsystems = (0..hardware.subsystems.len())
        .map(|number| subsystem(number, described))
        .collect();
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
        let node = bridge
            .node
            .filter(|&node| machine.node(node).is_some_and(|node| node.online));
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
                    self.subsystems
                        .get_mut(*subsystem)
                        .into_iter()
                        .for_each(|set| set.controllers.push(controller.clone()));
                }
                Device::Nic { multi_queue, .. } => self.network(address, node, *multi_queue),
                Device::Block { .. } | Device::StandIn(_) => {}
            }
        }
    }

    fn network(&mut self, address: PciAddress, node: Option<NodeId>, multi_queue: bool) {
        let queues = 0..queues(multi_queue, self.cpus) as u32;
        self.networks.push(NetworkDevice {
            name: format!("eth{}", self.networks.len()),
            device: Some(address),
            mac: None,
            node: Known::Yes(node),
            transmit: queues
                .clone()
                .map(|queue| TransmitQueue {
                    queue,
                    xps: Known::no(BECAUSE),
                })
                .collect(),
            receive: queues
                .map(|queue| ReceiveQueue {
                    queue,
                    rps: Known::no(BECAUSE),
                })
                .collect(),
        });
    }

    /// Every namespace is reached through every controller of its subsystem.
    fn paths(&mut self, hardware: &Hardware) {
        for (at, (seen, built)) in self
            .subsystems
            .iter_mut()
            .zip(&hardware.subsystems)
            .enumerate()
        {
            let path = |number: usize, controller: &NvmeController| NvmePath {
                name: format!(
                    "nvme{at}c{}n{number}",
                    controller.name.trim_start_matches("nvme")
                ),
                controller: controller.name.clone(),
                ana_state: Known::Yes(AnaState::Optimized),
                numa_nodes: None,
                queue_depth: None,
            };
            seen.namespaces = (1..=built.disks.len())
                .map(|number| NvmeNamespace {
                    name: format!("nvme{at}n{number}"),
                    paths: seen
                        .controllers
                        .iter()
                        .map(|controller| path(number, controller))
                        .collect(),
                    paths_unknown_reason: None,
                })
                .collect();
        }
    }
}

fn subsystem(number: usize, described: &Machine) -> NvmeSubsystem {
    let first = described
        .nvme
        .get()
        .and_then(|subsystems| subsystems.first());
    NvmeSubsystem {
        name: format!("nvme-subsys{number}"),
        nqn: Some(format!("nqn.2019-08.org.qemu:subsystem{number}")),
        model: Some("QEMU NVMe Ctrl".to_owned()),
        iopolicy: Known::Yes(
            first
                .and_then(|first| first.iopolicy.get())
                .cloned()
                .unwrap_or(IoPolicy::Numa),
        ),
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
