//! A spread: which CPU serves queue 0, 1, 2 ...

use std::fmt::Write as _;

use nearfar_machine::{CpuSet, Distance, NodeId};
use nearfar_placement::spread::Slot;

use crate::document::Scale;
use crate::layout::{Cell, Grid, Side, paragraph};
use crate::style::{Role, Style};

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

/// A run of queues on consecutive CPUs of one node.
struct Run {
    first: Slot,
    length: usize,
}

/// Queues by runs: consecutive queues on consecutive CPUs of one node share a line. `node` is the device's, `start` the one
/// from which the order was made ([`nearfar_placement::spread::start`]).
pub fn table(slots: &[Slot], node: Option<NodeId>, start: Option<NodeId>, style: &Style) -> String {
    let columns = [
        ("queues", Side::Left),
        ("CPUs", Side::Left),
        ("count", Side::Right),
        ("node", Side::Right),
        ("distance", Side::Right),
    ];
    let mut grid = Grid::new(&columns).indent(0);
    for run in runs(slots) {
        let (queue, cpu, length) = (run.first.queue, run.first.cpu.0 as usize, run.length);
        let role = run.first.distance.map_or(Role::Plain, |distance| {
            Scale::DISTANCES.role(distance.0.into())
        });
        grid.row(vec![
            Cell::from(range(queue, length)),
            Cell::new(Role::Subject, range(cpu, length)),
            Cell::new(Role::Dim, length.to_string()),
            Cell::new(
                Role::Heading,
                run.first
                    .node
                    .map_or_else(|| "-".to_owned(), |node: NodeId| node.to_string()),
            ),
            Cell::new(
                role,
                run.first
                    .distance
                    .map_or_else(|| "-".to_owned(), |distance: Distance| distance.to_string()),
            ),
        ]);
    }
    let note = match (node, start) {
        (Some(node), Some(start)) if node != start => paragraph(
            style,
            0,
            (Role::Dim, ""),
            Role::Dim,
            &format!(
                "Node {node} has no CPUs online: the kernel orders from node {start}, the nearest that has some."
            ),
        ),
        _ => String::new(),
    };
    grid.render(style) + &note
}

fn runs(slots: &[Slot]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &slot in slots {
        let goes_on = |run: &&mut Run| {
            let (first, length) = (run.first, run.length);
            (slot.node, slot.distance) == (first.node, first.distance)
                && slot.queue == first.queue + length
                && slot.cpu.0 as usize == first.cpu.0 as usize + length
        };
        match runs.last_mut().filter(goes_on) {
            Some(run) => run.length += 1,
            None => runs.push(Run {
                first: slot,
                length: 1,
            }),
        }
    }
    runs
}

fn range(first: usize, length: usize) -> String {
    if length == 1 {
        first.to_string()
    } else {
        format!("{first}-{}", first + length - 1)
    }
}
