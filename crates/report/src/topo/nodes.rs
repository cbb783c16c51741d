//! The nodes: state, CPUs, memory, and what the firmware promises of its speed.

use nearfar_machine::{Known, Machine, Node};

use crate::amount::bytes;
use crate::layout::{Cell, Grid, Side, heading};
use crate::style::{Role, Style};
use crate::summary::Packages;

/// The section on nodes.
pub(super) fn section(machine: &Machine, style: &Style) -> String {
    let columns = [
        ("node", Side::Right),
        ("state", Side::Left),
        ("count", Side::Right),
        ("CPUs", Side::Left),
        ("package", Side::Right),
        ("memory", Side::Right),
        ("free", Side::Right),
        ("tier", Side::Right),
        ("read", Side::Right),
        ("remark", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    let packages = Packages::of(machine);
    for node in &machine.nodes {
        grid.row(row(node, packages.on(machine, node)));
    }
    let remark = match &machine.possible_nodes {
        Known::Yes(possible) if possible.len() > machine.nodes.len() => {
            format!("possible: {possible}")
        }
        _ => String::new(),
    };
    if machine.nodes.is_empty() {
        return heading(style, "Nodes", "none: the source names no node");
    }
    heading(style, "Nodes", &remark) + &grid.render(style)
}

fn row(node: &Node, package: String) -> Vec<Cell> {
    let state = if node.online {
        Cell::new(Role::Local, "online")
    } else {
        Cell::new(Role::Far, "offline")
    };
    let memory = node.memory.get();
    let total = match memory {
        Some(memory) if memory.total_bytes == 0 => Cell::new(Role::Dim, "none"),
        Some(memory) => Cell::from(bytes(memory.total_bytes)),
        None => Cell::new(Role::Dim, "?"),
    };
    let (count, cpus) = match node.cpus.len() {
        0 => (Cell::new(Role::Dim, "0"), Cell::new(Role::Dim, "none")),
        count => (
            Cell::from(count.to_string()),
            Cell::new(Role::Subject, node.cpus.to_string()),
        ),
    };
    vec![
        Cell::new(Role::Heading, node.id.to_string()),
        state,
        count,
        cpus,
        Cell::from(package),
        total,
        Cell::from(
            memory
                .and_then(|memory| memory.free_bytes)
                .map_or_else(String::new, bytes),
        ),
        Cell::from(node.tier.map_or_else(String::new, |tier| tier.to_string())),
        Cell::from(read_latency(node)),
        Cell::new(Role::Dim, remarks(node).join(", ")),
    ]
}

/// The firmware's read latency from CPUs, or else from any initiator.
fn read_latency(node: &Node) -> String {
    let classes = || {
        node.access
            .iter()
            .filter(|access| access.read_latency_ns.is_some())
    };
    let access = classes().max_by_key(|access| access.class);
    access
        .and_then(|access| access.read_latency_ns)
        .map_or_else(String::new, |ns| format!("{ns} ns"))
}

/// What is odd about a node.
fn remarks(node: &Node) -> Vec<String> {
    let mut remarks = Vec::new();
    match (node.cpus.is_empty(), node.has_memory()) {
        (true, Some(true)) => remarks.push("memory only".to_owned()),
        (false, Some(false)) => remarks.push("no memory".to_owned()),
        (true, Some(false)) => remarks.push("neither CPUs nor memory".to_owned()),
        _ => {}
    }
    if node.generic_initiator {
        remarks.push("generic initiator".to_owned());
    }
    if let Some(real) = node.fake_of {
        remarks.push(format!("fake, part of node {real}"));
    }
    let bandwidth = node.access.iter().max_by_key(|access| access.class);
    if let Some(rate) = bandwidth.and_then(|access| access.read_bandwidth_mib_per_s) {
        remarks.push(format!("reads {rate} MiB/s"));
    }
    for cache in &node.memory_side_caches {
        remarks.push(format!("memory-side cache {}", bytes(cache.size_bytes)));
    }
    let pools = node
        .memory
        .get()
        .into_iter()
        .flat_map(|memory| &memory.huge_pages)
        .filter(|pool| pool.total > 0);
    remarks.extend(
        pools.map(|pool| format!("{} huge pages of {}", pool.total, bytes(pool.page_bytes))),
    );
    remarks
}
