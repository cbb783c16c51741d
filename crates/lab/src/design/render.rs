//! From virtual hardware to QEMU's arguments.

use nearfar_machine::{CpuSet, Id};

use super::board::Board;
use super::hardware::{Hardware, Topology};
use crate::qemu::{Acceleration, Qemu};

/// All arguments of a design's hardware.
pub(super) fn arguments(
    board: &dyn Board,
    hardware: &Hardware,
    _qemu: &Qemu,
    acceleration: Acceleration,
) -> Vec<String> {
    let mut all = Vec::new();
    push(&mut all, "-machine", machine(board, hardware));
    push(&mut all, "-accel", accelerator(acceleration));
    push(&mut all, "-cpu", board.cpu(acceleration));
    push(&mut all, "-smp", processors(board, hardware.topology));
    nodes(hardware, &mut all);
    distances(hardware, &mut all);
    all
}

fn push(all: &mut Vec<String>, option: &str, value: impl Into<String>) {
    all.extend([option.to_owned(), value.into()]);
}

fn machine(board: &dyn Board, hardware: &Hardware) -> String {
    let hmat = if hardware.performance.is_empty() { "" } else { ",hmat=on" };
    format!("{}{hmat}", board.machine())
}

fn accelerator(acceleration: Acceleration) -> &'static str {
    match acceleration {
        Acceleration::Kvm => "kvm",
        Acceleration::Tcg => "tcg,thread=multi",
    }
}

fn processors(board: &dyn Board, topology: Topology) -> String {
    let Topology { cpus, sockets, dies, cores, threads } = topology;
    let dies = if board.has_dies() { format!(",dies={dies}") } else { String::new() };
    format!("{cpus},sockets={sockets}{dies},cores={cores},threads={threads}")
}

fn nodes(hardware: &Hardware, all: &mut Vec<String>) {
    let total: u64 = hardware.nodes.iter().map(|node| node.bytes).sum();
    push(all, "-m", format!("{}M", total >> 20));
    for (number, node) in hardware.nodes.iter().enumerate() {
        let mut words = format!("node,nodeid={number}{}", cpu_ranges(&node.cpus));
        if node.bytes > 0 {
            // Not reserved: a guest that is larger than its host may boot as long as it does not use it all.
            push(all, "-object", format!("memory-backend-ram,id=m{number},size={}M,reserve=off", node.bytes >> 20));
            words += &format!(",memdev=m{number}");
        }
        push(all, "-numa", words);
    }
}

/// `,cpus=0-3,cpus=8`
fn cpu_ranges(cpus: &CpuSet) -> String {
    let list = cpus.to_string();
    list.split(',').filter(|range| !range.is_empty()).map(|range| format!(",cpus={range}")).collect()
}

fn distances(hardware: &Hardware, all: &mut Vec<String>) {
    for (from, row) in hardware.distances.iter().enumerate() {
        for (to, distance) in row.iter().enumerate().filter(|(to, _)| *to != from) {
            push(all, "-numa", format!("dist,src={from},dst={to},val={distance}"));
        }
    }
}
