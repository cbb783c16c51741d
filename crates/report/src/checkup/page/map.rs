//! The machine as pictures: one for each node, in rows of equal length where they fit.

use std::collections::BTreeSet;

use maud::html;
use nearfar_machine::{Machine, Node, NodeId, NodeSet};

use super::super::one_node;
use super::Checkup;
use crate::amount::{count, or};
use crate::document::{Document, Table, cells};
use crate::kinds::kinds;
use crate::topo::marks::Marks;
use crate::topo::{box_columns, cards, legend, node_of, notable};

/// More kinds of other nodes than this are folded.
const MAX_OPEN_KINDS: usize = 12;
/// Most nodes with a picture each. Beyond, those that are like others are lines of a table.
const MAX_PICTURES: usize = 64;
/// How a picture marks a device with findings.
const FLAGGED: &str = "class=\"flagged ";

/// The section with the map, its legend and how to read it.
pub(super) fn section(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let marks = Marks::of(machine, Some(&checkup.audit));
    let drawn = drawn(machine, &marks);
    out.section("machine", "The machine");
    if checkup.is_one_node() {
        let caches = one_node::caches(machine);
        out.boxed(format!("One node. {}", one_node::about(machine, &caches)));
    }
    let cards = cards(machine, &marks, drawn.iter().copied());
    // Not every device has room in the picture of its node.
    if cards.iter().any(|card| card.0.contains(FLAGGED)) {
        out.remark("! before a device: the number of findings about it.");
    }
    out.picture(html! { ul class={ "nodes in" (box_columns(drawn.len())) } { @for card in cards { li { (card) } } } });
    out.picture(legend::list(machine, &marks));
    if drawn.len() < machine.nodes.len() {
        alike(machine, &drawn, out);
    }
}

/// The nodes with a picture: all where they are few, otherwise those that have devices or serve those of other nodes.
fn drawn<'a>(machine: &'a Machine, marks: &Marks) -> Vec<&'a Node> {
    if machine.nodes.len() <= MAX_PICTURES {
        return machine.nodes.iter().collect();
    }
    let devices = machine.pci.get().into_iter().flatten();
    let devices = devices.filter(|device| notable(device));
    let with_devices: BTreeSet<NodeId> = devices.filter_map(node_of).collect();
    let has = |node: &&Node| with_devices.contains(&node.id) || !marks.lots(node.id).is_empty();
    machine
        .nodes
        .iter()
        .filter(has)
        .take(MAX_PICTURES)
        .collect()
}

/// The other nodes, by kind.
fn alike(machine: &Machine, drawn: &[&Node], out: &mut Document) {
    let drawn: NodeSet = drawn.iter().map(|node| node.id).collect();
    let others = machine.nodes.iter().filter(|node| !drawn.contains(node.id));
    let kinds = kinds(others, false);
    let columns = ["nodes", ">number", "state", ">CPUs each", ">memory each"];
    let mut table = Table::of(columns).caption("Nodes that are alike");
    for (kind, nodes) in &kinds {
        let state = if kind.online { "online" } else { "not online" };
        table.row(cells![
            nodes,
            nodes.len(),
            state,
            or(kind.cpus, "?"),
            &kind.memory
        ]);
    }
    let others = machine.nodes.len() - drawn.len();
    let summary = format!("{}, by kind", count(others, "other node"));
    out.details(summary, kinds.len() <= MAX_OPEN_KINDS, table.into());
}
