//! A spread: which CPU serves queue 0, 1, 2 ...

use std::fmt::Write as _;

use nearfar_machine::{CpuSet, Machine, NodeId};
use nearfar_placement::spread::Slot;

use crate::amount::or;
use crate::document::{Document, Table, cells};
use crate::style::Role::{Dim, Heading, Plain, Subject};
use crate::topo::distances;

/// One line a queue: its number and its CPU. Stable, made to be read by programs.
pub fn list(slots: &[Slot]) -> String {
    lines(slots, |slot| slot.cpu.to_string())
}

/// One line a queue: its number and its CPU as the mask that `smp_affinity` and `xps_cpus` take on a kernel with
/// `width` possible CPUs ([`nearfar_machine::Machine::mask_width`]). Stable, made to be read by programs.
pub fn mask(slots: &[Slot], width: u32) -> String {
    lines(slots, |slot| CpuSet::single(slot.cpu).to_mask(width))
}

fn lines(slots: &[Slot], value: impl Fn(&Slot) -> String) -> String {
    let mut out = String::new();
    for slot in slots {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{} {}", slot.queue, value(slot));
    }
    out
}

/// Queues by runs: consecutive queues on consecutive CPUs of one node share a line, which says how many last-level caches they are
/// in where a node has several. `node` is the device's, `start` the one from which the order was made
/// ([`nearfar_placement::spread::start`]).
pub fn document(
    machine: &Machine,
    slots: &[Slot],
    node: Option<NodeId>,
    start: Option<NodeId>,
) -> Document {
    let headings = ["queues", "CPUs", ">count", ">node", ">distance", ">caches"];
    let mut table = Table::of(headings).indent(0);
    let caches: Vec<&CpuSet> = machine.last_level_caches().map(|it| &it.cpus).collect();
    let among = |cpus: &CpuSet| caches.iter().filter(|it| it.intersects(cpus)).count();
    let of_nodes = |id: Option<NodeId>| machine.node(id?).map(|node| among(node.known_cpus()));
    let are_several = (machine.nodes.iter()).any(|node| of_nodes(Some(node.id)) > Some(1));
    let scale = distances::over(slots.iter().filter_map(|slot| slot.distance));
    for run in slots.chunk_by(is_next) {
        let (first, length) = (run[0], run.len());
        let cpus: CpuSet = run.iter().map(|slot| slot.cpu).collect();
        let of_node = of_nodes(first.node).filter(|_| are_several);
        let in_caches = of_node.map_or(String::new(), |all| format!("{} of {all}", among(&cpus)));
        let role = first.distance.map_or(Plain, |it| scale.role(it.0.into()));
        table.row(cells![
            range(first.queue, length),
            Subject.text(range(first.cpu.0 as usize, length)),
            Dim.text(length),
            Heading.text(or(first.node, "-")),
            role.text(or(first.distance, "-")),
            Plain.text(in_caches),
        ]);
    }
    let mut out = Document::from(table);
    if let (Some(node), Some(start)) = (node, start)
        && node != start
    {
        let text = format!(
            "Node {node} has no CPUs online: the kernel orders from node {start}, the nearest that has some."
        );
        out.indented(0, "", Dim.text(text));
    }
    out
}

fn is_next(a: &Slot, b: &Slot) -> bool {
    (a.node, a.distance) == (b.node, b.distance) && b.queue == a.queue + 1 && b.cpu.0 == a.cpu.0 + 1
}

fn range(first: usize, length: usize) -> String {
    match length {
        1 => first.to_string(),
        _ => format!("{first}-{}", first + length - 1),
    }
}
