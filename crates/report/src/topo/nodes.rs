//! The nodes: state, CPUs, memory, and what the firmware promises of its speed.

use nearfar_machine::{Known, Machine, Node};

use crate::amount::{bytes, or};
use crate::document::{Document, Table, Text, cells};
use crate::style::Role::{Dim, Far, Heading, Local, Plain, Subject};
use crate::summary::Packages;

/// The section on nodes.
pub(super) fn section(machine: &Machine, out: &mut Document) {
    let remark = match &machine.possible_nodes {
        Known::No { unknown_reason } if machine.nodes.is_empty() => {
            format!("unknown: {unknown_reason}")
        }
        _ if machine.nodes.is_empty() => "unknown: the source names no node".to_owned(),
        Known::Yes(possible) if possible.len() > machine.nodes.len() => {
            format!("possible: {possible}")
        }
        _ => String::new(),
    };
    out.heading("Nodes", remark);
    let mut table = Table::of([
        ">node", "state", ">count", "CPUs", ">package", ">memory", ">free", ">tier", ">read",
        "remark",
    ]);
    let packages = Packages::of(machine);
    for node in &machine.nodes {
        table.row(row(node, packages.on(machine, node)));
    }
    out.table(table);
}

/// Whether a node is online, in its colour.
pub(crate) fn state(is_online: bool) -> Text {
    match is_online {
        true => Local.text("online"),
        false => Far.text("offline"),
    }
}

fn row(node: &Node, package: String) -> [Text; 10] {
    let memory = node.memory.get();
    let total = match memory {
        Some(memory) if memory.total_bytes == 0 => Dim.text("none"),
        Some(memory) => bytes(memory.total_bytes).into(),
        None => Dim.text("?"),
    };
    let (count, cpus) = match node.cpus.get() {
        None => (Dim.text("?"), Dim.text("unknown")),
        Some(cpus) if cpus.is_empty() => (Dim.text("0"), Dim.text("none")),
        Some(cpus) => (Plain.text(cpus.len()), Subject.text(cpus)),
    };
    let free = memory.and_then(|memory| memory.free_bytes);
    cells![
        Heading.text(node.id),
        state(node.online),
        count,
        cpus,
        package,
        total,
        or(free.map(bytes), ""),
        or(node.tier, ""),
        read_latency(node),
        Dim.text(remarks(node).join(", ")),
    ]
}

/// The firmware's read latency from CPUs, or else from any initiator.
fn read_latency(node: &Node) -> String {
    let known = node
        .access
        .iter()
        .filter(|access| access.read_latency_ns.is_some());
    let access = known.max_by_key(|access| access.class);
    let latency = access.and_then(|access| access.read_latency_ns);
    or(latency.map(|ns| format!("{ns} ns")), "")
}

/// What is odd about a node.
fn remarks(node: &Node) -> Vec<String> {
    let mut remarks = Vec::new();
    match (node.has_cpus(), node.has_memory()) {
        (Some(false), Some(true)) => remarks.push("memory only".to_owned()),
        (Some(true) | None, Some(false)) => remarks.push("no memory".to_owned()),
        (Some(false), Some(false)) => remarks.push("neither CPUs nor memory".to_owned()),
        _ => {}
    }
    if node.generic_initiator {
        remarks.push("generic initiator".to_owned());
    }
    remarks.extend(
        node.fake_of
            .map(|real| format!("fake, part of node {real}")),
    );
    let bandwidth = node.access.iter().max_by_key(|access| access.class);
    let rate = bandwidth.and_then(|access| access.read_bandwidth_mib_per_s);
    remarks.extend(rate.map(|rate| format!("reads {rate} MiB/s")));
    let caches = node.memory_side_caches.iter();
    remarks.extend(caches.map(|cache| format!("memory-side cache {}", bytes(cache.size_bytes))));
    let pools = node
        .memory
        .get()
        .into_iter()
        .flat_map(|memory| &memory.huge_pages);
    let pools = pools.filter(|pool| pool.total > 0);
    remarks.extend(pools.map(|pool| {
        let free = or(pool.free.map(|free| format!(", {free} free")), "");
        format!(
            "{} huge pages of {}{free}",
            pool.total,
            bytes(pool.page_bytes)
        )
    }));
    remarks
}
