//! From virtual hardware to QEMU's arguments, and to the devices that are plugged in after the start.
//!
//! QEMU cannot save some devices with a guest's state. This is how they get into a guest that starts from a saved one:
//!
//! ```text
//!  QEMU starts                 placeholder0 (nvme, function 1 of an empty slot) ── nvme-ns ──► subsystem0
//!  before the state is loaded  device_del placeholder0: the namespaces stay with the subsystem
//!  state loaded                device_add nvme0, nvme1 ... on the ports of the design
//!  vCPUs run                   the kernel finds the new devices in their slots
//! ```
//!
//! QEMU marks `nvme` as not migratable, and cannot plug namespaces in at run time (a controller's bus takes none then). A
//! namespace that is made with a subsystem belongs to the subsystem, though (`nvme_ns_realize` in hw/nvme/ns.c), and a
//! function other than 0 of a slot without a function 0 is unplugged without asking the guest
//! (`pcie_cap_slot_unplug_request_cb` in hw/pci/pcie.c).

use std::collections::BTreeSet;
use std::path::Path;

use nearfar_machine::{Acceleration, CpuSet, PciAddress};
use serde_json::{Value, json};

use crate::arch::Arch;
use crate::design::board::Board;
use crate::design::hardware::{Device, Hardware, Measured, Performance, StandIn, Topology};
use crate::design::nodes;
use crate::guest::Start;

/// The start that arguments are for. A guest that is saved has no [`LateDevice`]. One that starts from a saved guest has
/// what holds the namespaces of NVMe subsystems until their controllers are plugged in. The guest that was saved must not have
/// had that: it leaves "presence detect" set in its slot, and the kernel would look for a device there.
#[derive(Clone, Copy)]
pub(super) struct Started<'a> {
    pub start: Start,
    /// The options that name the file of a node's memory; for a guest that is saved or loaded.
    pub memory_file: &'a dyn Fn(usize) -> String,
}

/// All arguments of a design's hardware; `card` is the multi-queue network card.
pub(super) fn arguments(
    board: &dyn Board,
    hardware: &Hardware,
    firmware: Option<&Path>,
    card: &str,
    acceleration: Acceleration,
    started: Started<'_>,
) -> Vec<String> {
    let mut all = Vec::new();
    push(&mut all, "-machine", machine(board, hardware, acceleration));
    if let Some(firmware) = firmware {
        push(&mut all, "-bios", firmware.display().to_string());
    }
    push(&mut all, "-accel", accelerator(acceleration));
    push(&mut all, "-cpu", board.cpu(acceleration));
    push(&mut all, "-smp", processors(board, hardware.topology));
    nodes(hardware, started, &mut all);
    distances(hardware, &mut all);
    hardware
        .performance
        .iter()
        .for_each(|figure| push(&mut all, "-numa", latency_or_bandwidth(*figure)));
    bridges(board, hardware, card, started, &mut all);
    all
}

fn push(all: &mut Vec<String>, option: &str, value: impl Into<String>) {
    all.extend([option.to_owned(), value.into()]);
}

fn machine(board: &dyn Board, hardware: &Hardware, acceleration: Acceleration) -> String {
    let hmat = match hardware.performance.is_empty() {
        true => "",
        false => ",hmat=on",
    };
    format!("{}{hmat}", board.machine(acceleration))
}

fn accelerator(acceleration: Acceleration) -> &'static str {
    match acceleration {
        Acceleration::Kvm => "kvm",
        Acceleration::Tcg => "tcg,thread=multi",
    }
}

fn processors(board: &dyn Board, topology: Topology) -> String {
    let Topology {
        cpus,
        sockets,
        dies,
        cores,
        threads,
    } = topology;
    let dies = board.socket_parts().map(|parts| format!(",{parts}={dies}"));
    let dies = dies.unwrap_or_default();
    format!("{cpus},sockets={sockets}{dies},cores={cores},threads={threads}")
}

fn nodes(hardware: &Hardware, started: Started<'_>, all: &mut Vec<String>) {
    let total: u64 = hardware.nodes.iter().map(|node| node.bytes).sum();
    push(all, "-m", format!("{}M", total >> 20));
    let initiators = match hardware.performance.is_empty() {
        true => Vec::new(),
        false => nodes::initiators(&hardware.nodes, &hardware.distances, &hardware.performance),
    };
    for (number, node) in hardware.nodes.iter().enumerate() {
        let mut words = format!("node,nodeid={number}{}", cpu_ranges(&node.cpus));
        if node.bytes > 0 {
            // Not reserved: a guest that is larger than its host may boot as long as it does not use it all.
            let (backend, file) = match started.start {
                Start::Boot => ("ram", String::new()),
                Start::Save | Start::Load => {
                    ("file", format!(",{}", (started.memory_file)(number)))
                }
            };
            let size = node.bytes >> 20;
            let object =
                format!("memory-backend-{backend},id=m{number},size={size}M,reserve=off{file}");
            push(all, "-object", object);
            words += &format!(",memdev=m{number}");
        }
        if let Some(initiator) = initiators.get(number).copied().flatten() {
            words += &format!(",initiator={initiator}");
        }
        push(all, "-numa", words);
    }
}

/// `,cpus=0-3,cpus=8`
fn cpu_ranges(cpus: &CpuSet) -> String {
    let list = cpus.to_string();
    let ranges = list.split(',').filter(|range| !range.is_empty());
    ranges.map(|range| format!(",cpus={range}")).collect()
}

/// QEMU takes one direction for both; asymmetric distances have to be given in both.
fn distances(hardware: &Hardware, all: &mut Vec<String>) {
    let matrix = &hardware.distances;
    let symmetric =
        (0..matrix.len()).all(|from| (0..from).all(|to| matrix[from][to] == matrix[to][from]));
    for (from, row) in matrix.iter().enumerate() {
        let first = if symmetric { from } else { 0 };
        let others = row.iter().enumerate().skip(first);
        for (to, distance) in others.filter(|(to, _)| *to != from) {
            let words = format!("dist,src={from},dst={to},val={distance}");
            push(all, "-numa", words);
        }
    }
}

fn latency_or_bandwidth(figure: Performance) -> String {
    let Performance {
        initiator,
        target,
        what,
        value,
    } = figure;
    let figure = match what {
        Measured::ReadLatency => format!("read-latency,latency={value}"),
        Measured::WriteLatency => format!("write-latency,latency={value}"),
        Measured::ReadBandwidth => format!("read-bandwidth,bandwidth={value}M"),
        Measured::WriteBandwidth => format!("write-bandwidth,bandwidth={value}M"),
    };
    format!("hmat-lb,initiator={initiator},target={target},hierarchy=memory,data-type={figure}")
}

fn bridges(
    board: &dyn Board,
    hardware: &Hardware,
    card: &str,
    started: Started<'_>,
    all: &mut Vec<String>,
) {
    for number in 0..hardware.subsystems.len() {
        let words = format!("nvme-subsys,id=subsystem{number},nqn=subsystem{number}");
        push(all, "-device", words);
    }
    // Namespaces go to a subsystem through any of its controllers, which must be there before.
    let mut namespaces = vec![true; hardware.subsystems.len()];
    for (index, bridge) in hardware.bridges.iter().enumerate() {
        all.extend(board.bridge(bridge, index));
        for (position, device) in bridge.devices.iter().enumerate() {
            let seat = board.seat(bridge, position);
            let is_late = started.start != Start::Boot && is_late(device);
            match device {
                Device::Nvme { .. } if started.start == Start::Save => {}
                Device::Nvme {
                    id,
                    subsystem,
                    io_queues,
                } => {
                    let is_first = namespaces.get_mut(*subsystem).is_some_and(std::mem::take);
                    let placeholder = placeholder(*subsystem);
                    let id = if is_late { &placeholder } else { id };
                    // Function 1 of a slot without a function 0 is not exposed to the guest.
                    let function = if is_late { ",addr=0.1" } else { "" };
                    if !is_late || is_first {
                        let properties = nvme_properties(*subsystem, *io_queues);
                        let words: String = properties.into_iter().map(property_word).collect();
                        let words = format!("nvme,id={id}{words},{seat}{function}");
                        push(all, "-device", words);
                    }
                    if is_first {
                        self::namespaces(hardware, *subsystem, id, all);
                    }
                }
                _ if is_late => {}
                Device::Nic { id, multi_queue } => {
                    let card = if *multi_queue { card } else { "virtio-net-pci" };
                    // One segment for all cards: two of them can be client and server. The host is not on it.
                    push(all, "-netdev", format!("hubport,id={id},hubid=0"));
                    // Without an option ROM: it is not needed, and QEMU was seen to abort over it.
                    let words = format!("{card},netdev={id},romfile=,{seat}");
                    push(all, "-device", words);
                }
                Device::Block { disk, queues } => {
                    let disk = format!("drive={disk},num-queues={queues},{seat}");
                    push(all, "-device", format!("virtio-blk-pci,{disk}"));
                }
                Device::StandIn(stand_in) => {
                    push(all, "-device", format!("{},{seat}", stand_in.qemu()))
                }
            }
        }
    }
}

fn namespaces(hardware: &Hardware, subsystem: usize, controller: &str, all: &mut Vec<String>) {
    for (nsid, disk) in (1..).zip(&hardware.subsystems[subsystem].disks) {
        let words = format!("nvme-ns,drive={disk},bus={controller},nsid={nsid},shared=on");
        push(all, "-device", words);
    }
}

/// A device that is plugged in after the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LateDevice {
    /// The arguments of QEMU's `device_add`.
    pub arguments: Value,
    /// Where the guest finds it.
    pub address: PciAddress,
}

/// The id of the controller that stands for a subsystem's controllers while QEMU starts.
fn placeholder(subsystem: usize) -> String {
    format!("placeholder{subsystem}")
}

/// The placeholders of all subsystems that have a controller.
pub(super) fn placeholders(hardware: &Hardware) -> Vec<String> {
    let subsystem = |device: &Device| match device {
        Device::Nvme { subsystem, .. } => Some(*subsystem),
        _ => None,
    };
    let devices = hardware.bridges.iter().flat_map(|bridge| &bridge.devices);
    let all: BTreeSet<_> = devices.filter_map(subsystem).collect();
    all.into_iter().map(placeholder).collect()
}

/// Whether QEMU cannot save a device: `nvme` says so itself, and `pci-testdev` has no description of its state.
fn is_late(device: &Device) -> bool {
    matches!(
        device,
        Device::Nvme { .. } | Device::StandIn(StandIn::Other)
    )
}

/// The properties of an NVMe controller besides its id and place.
fn nvme_properties(subsystem: usize, io_queues: Option<u32>) -> Vec<(&'static str, Value)> {
    let name = format!("subsystem{subsystem}");
    let mut properties = vec![("serial", json!(name)), ("subsys", json!(name))];
    properties.extend(io_queues.map(|queues| ("max_ioqpairs", json!(queues))));
    properties
}

/// A property as a word of QEMU's command line.
fn property_word((name, value): (&str, Value)) -> String {
    match value {
        Value::String(text) => format!(",{name}={text}"),
        other => format!(",{name}={other}"),
    }
}

/// The devices of a design that are plugged in late.
pub(super) fn late_devices(
    board: &dyn Board,
    arch: Arch,
    hardware: &Hardware,
) -> Option<Vec<LateDevice>> {
    let mut late = Vec::new();
    for bridge in &hardware.bridges {
        let devices = bridge.devices.iter().enumerate();
        for (position, device) in devices.filter(|(_, device)| is_late(device)) {
            let mut arguments = match device {
                Device::Nvme {
                    id,
                    subsystem,
                    io_queues,
                } => {
                    let mut arguments = json!({ "driver": "nvme", "id": id });
                    for (name, value) in nvme_properties(*subsystem, *io_queues) {
                        arguments[name] = value;
                    }
                    arguments
                }
                Device::StandIn(other) => {
                    json!({ "driver": other.qemu(), "id": format!("{}-device{position}", bridge.id) })
                }
                Device::Nic { .. } | Device::Block { .. } => continue,
            };
            let seat = board.seat(bridge, position);
            for (name, value) in seat.split(',').filter_map(|word| word.split_once('=')) {
                arguments[name] = json!(value);
            }
            let address = board.address(bridge, position);
            late.push(LateDevice { arguments, address });
        }
    }
    if arch == Arch::Powerpc64le && !late.is_empty() {
        // The kernel leaves this to drmgr of powerpc-utils, which sets the slot's state through RTAS.
        return None;
    }
    late.sort_by_key(|device| device.address);
    Some(late)
}
