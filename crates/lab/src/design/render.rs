//! From virtual hardware to QEMU's arguments.

use std::path::Path;

use nearfar_machine::{Acceleration, CpuSet};

use super::board::Board;
use super::hardware::{Device, Hardware, Measured, Performance, Topology};
use super::{late, performance};
use crate::start::Start;

/// The start that arguments are for. A guest that is saved has no device of [`late`]. One that starts from a saved guest has
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
    let hmat = if hardware.performance.is_empty() {
        ""
    } else {
        ",hmat=on"
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
    let dies = board
        .socket_parts()
        .map_or_else(String::new, |parts| format!(",{parts}={dies}"));
    format!("{cpus},sockets={sockets}{dies},cores={cores},threads={threads}")
}

fn nodes(hardware: &Hardware, started: Started<'_>, all: &mut Vec<String>) {
    let total: u64 = hardware.nodes.iter().map(|node| node.bytes).sum();
    push(all, "-m", format!("{}M", total >> 20));
    let initiators = match hardware.performance.is_empty() {
        true => Vec::new(),
        false => {
            performance::initiators(&hardware.nodes, &hardware.distances, &hardware.performance)
        }
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
            push(
                all,
                "-object",
                format!("memory-backend-{backend},id=m{number},size={size}M,reserve=off{file}"),
            );
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
    list.split(',')
        .filter(|range| !range.is_empty())
        .map(|range| format!(",cpus={range}"))
        .collect()
}

/// QEMU takes one direction for both; asymmetric distances have to be given in both.
fn distances(hardware: &Hardware, all: &mut Vec<String>) {
    let matrix = &hardware.distances;
    let symmetric =
        (0..matrix.len()).all(|from| (0..from).all(|to| matrix[from][to] == matrix[to][from]));
    for (from, row) in matrix.iter().enumerate() {
        let first = if symmetric { from } else { 0 };
        for (to, distance) in row
            .iter()
            .enumerate()
            .skip(first)
            .filter(|(to, _)| *to != from)
        {
            push(
                all,
                "-numa",
                format!("dist,src={from},dst={to},val={distance}"),
            );
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
        push(
            all,
            "-device",
            format!("nvme-subsys,id=subsystem{number},nqn=subsystem{number}"),
        );
    }
    // Namespaces go to a subsystem through any of its controllers, which must be there before.
    let mut namespaces = vec![true; hardware.subsystems.len()];
    for (index, bridge) in hardware.bridges.iter().enumerate() {
        all.extend(board.bridge(bridge, index));
        for (position, device) in bridge.devices.iter().enumerate() {
            let seat = board.seat(bridge, position);
            let is_late = started.start != Start::Boot && late::is_late(device);
            match device {
                Device::Nvme { .. } if started.start == Start::Save => {}
                Device::Nvme {
                    id,
                    subsystem,
                    io_queues,
                } => {
                    let is_first = namespaces.get_mut(*subsystem).is_some_and(std::mem::take);
                    let placeholder = late::placeholder(*subsystem);
                    let id = if is_late { &placeholder } else { id };
                    // Function 1 of a slot without a function 0 is not exposed to the guest.
                    let function = if is_late { ",addr=0.1" } else { "" };
                    if !is_late || is_first {
                        let words: String = late::nvme(*subsystem, *io_queues)
                            .into_iter()
                            .map(late::word)
                            .collect();
                        push(
                            all,
                            "-device",
                            format!("nvme,id={id}{words},{seat}{function}"),
                        );
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
                    push(
                        all,
                        "-device",
                        format!("{card},netdev={id},romfile=,{seat}"),
                    );
                }
                Device::Block { disk, queues } => {
                    push(
                        all,
                        "-device",
                        format!("virtio-blk-pci,drive={disk},num-queues={queues},{seat}"),
                    );
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
        push(
            all,
            "-device",
            format!("nvme-ns,drive={disk},bus={controller},nsid={nsid},shared=on"),
        );
    }
}
