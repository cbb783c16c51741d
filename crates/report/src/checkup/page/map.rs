//! The machine as pictures: one a node, as many side by side as fit.

use std::collections::BTreeSet;

use maud::{Markup, html};
use nearfar_machine::{Machine, Node, NodeId, NodeSet};

use super::{Checkup, titled};
use crate::amount::count;
use crate::kinds::kinds;
use crate::topo::marks::Marks;
use crate::topo::{cards, legend, notable};

/// Most nodes with a picture each. Beyond, those that are like others are lines of a table.
const MOST_PICTURES: usize = 64;

/// The section with the map, its legend and how to read it.
pub(super) fn section(checkup: &Checkup) -> Markup {
    let machine = &checkup.machine;
    let marks = Marks::of(machine, Some(&checkup.audit));
    let drawn = drawn(machine, &marks);
    let size = if drawn.len() > 16 {
        "rooms small"
    } else {
        "rooms"
    };
    titled(
        "machine",
        "The machine",
        &html! {
            @if checkup.is_one_node() {
                p.note {
                    "This machine has one node: every CPU has the same distance to all of the memory, so nothing can be far. "
                    code { "nearfar lab" } " boots machines with far memory as guests."
                }
            }
            @let flagged = machine.pci.get().into_iter().flatten().any(|device| marks.findings(device.address).is_some());
            @if flagged { p.hint { "!3 before a device: there are 3 " a href="#findings" { "findings" } " about it." } }
            ul class=(size) { @for card in cards(machine, &marks, drawn.iter().copied()) { li { (card) } } }
            (legend::list(machine, &marks))
            @if drawn.len() < machine.nodes.len() { (alike(machine, &drawn)) }
        },
    )
}

/// The nodes with a picture: all where they are few, otherwise those that have devices or serve those of other nodes.
fn drawn<'a>(machine: &'a Machine, marks: &Marks) -> Vec<&'a Node> {
    if machine.nodes.len() <= MOST_PICTURES {
        return machine.nodes.iter().collect();
    }
    let devices = machine
        .pci
        .get()
        .into_iter()
        .flatten()
        .filter(|device| notable(device));
    let with_devices: BTreeSet<NodeId> = devices
        .filter_map(|device| device.node.get().copied().flatten())
        .collect();
    let has = |node: &&Node| with_devices.contains(&node.id) || !marks.lots(node.id).is_empty();
    machine
        .nodes
        .iter()
        .filter(has)
        .take(MOST_PICTURES)
        .collect()
}

/// The other nodes, by kind.
fn alike(machine: &Machine, drawn: &[&Node]) -> Markup {
    let drawn: NodeSet = drawn.iter().map(|node| node.id).collect();
    let kinds = kinds(
        machine.nodes.iter().filter(|node| !drawn.contains(node.id)),
        false,
    );
    let others = machine.nodes.len() - drawn.len();
    html! {
        details.alike open[kinds.len() <= 12] {
            summary { (count(others, "other node")) ", by kind" }
            div.scroll tabindex="0" role="region" aria-label="Other nodes" {
                table.runs {
                    caption { "Nodes that are alike" }
                    thead { tr { @for title in ["nodes", "number", "state", "CPUs each", "memory each"] { th scope="col" { (title) } } } }
                    tbody {
                        @for (kind, nodes) in &kinds {
                            tr {
                                th.list scope="row" { (nodes) }
                                td { (nodes.len()) }
                                td { (if kind.online { "online" } else { "not online" }) }
                                td { (kind.cpus) }
                                td { (kind.memory) }
                            }
                        }
                    }
                }
            }
        }
    }
}
