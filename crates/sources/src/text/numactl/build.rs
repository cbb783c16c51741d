//! From what the lines say to a machine: the contradictions between header, node lines and distance table are named.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{
    CpuId, CpuSet, DistanceOrigin, Distances, Known, Memory, Node, NodeId, NodeSet,
};

use super::record::{NodeLines, Record};
use crate::text::Reading;
use crate::warnings::Warnings;

pub(super) fn fill(mut record: Record, reading: &mut Reading) {
    let Reading {
        machine, warnings, ..
    } = reading;
    check_header(&record, warnings);
    check_free(&mut record, warnings);
    machine.nodes = nodes(&record);
    note_shared_cpus(&machine.nodes, warnings);
    machine.distances = distances(&record, &machine.nodes, warnings);
}

/// The header counts and lists nodes; both may differ from the nodes that have lines.
fn check_header(record: &Record, warnings: &mut Warnings) {
    let Some(header) = &record.header else {
        warnings.note("the line \"available: N nodes\" is missing: the text may be incomplete");
        return;
    };
    let described: NodeSet = record
        .nodes
        .keys()
        .chain(&record.columns)
        .copied()
        .collect();
    let count_fits = header.count == described.len() as u64;
    let list_fits = header
        .listed
        .as_ref()
        .is_none_or(|listed| *listed == described);
    if !count_fits || !list_fits {
        let message = format!(
            "the header says \"{}\", but there are lines for {} node(s) ({described}); the lines were taken",
            header.text,
            described.len()
        );
        warnings.note_line(header.line, message);
    }
}

fn nodes(record: &Record) -> Vec<Node> {
    let in_table = record.columns.iter().chain(record.rows.keys());
    let ids: BTreeSet<NodeId> = record.nodes.keys().chain(in_table).copied().collect();
    let no_lines = NodeLines::default();
    let node = |id: NodeId| {
        let lines = record.nodes.get(&id).unwrap_or(&no_lines);
        let cpus = Known::from_option(lines.cpus.clone(), || {
            format!("the text has no line with the CPUs of node {id}")
        });
        let mut node = Node::new(id, cpus);
        node.memory = match lines.size {
            Some(total) => Known::Yes(Memory {
                free_bytes: lines.free,
                ..Memory::of(total)
            }),
            None => Known::no(format!("the text has no size for node {id}")),
        };
        node
    };
    ids.into_iter().map(node).collect()
}

/// Less can be free than there is.
fn check_free(record: &mut Record, warnings: &mut Warnings) {
    for (id, lines) in &mut record.nodes {
        if let (Some(total), Some(free)) = (lines.size, lines.free)
            && free > total
        {
            warnings.note(format!(
                "node {id} has {free} bytes free of {total}; what is free was left out"
            ));
            lines.free = None;
        }
    }
}

fn note_shared_cpus(nodes: &[Node], warnings: &mut Warnings) {
    let mut homes: BTreeMap<CpuId, NodeId> = BTreeMap::new();
    for node in nodes {
        let shared: CpuSet = node
            .known_cpus()
            .iter()
            .filter(|cpu| homes.contains_key(cpu))
            .collect();
        if let Some(other) = shared.first().and_then(|cpu| homes.get(&cpu)) {
            let message = format!(
                "CPUs {shared} are listed in node {other} and in node {}, as fake nodes do it",
                node.id
            );
            warnings.note(message);
        }
        for cpu in node.known_cpus().iter() {
            homes.entry(cpu).or_insert(node.id);
        }
    }
}

fn distances(record: &Record, nodes: &[Node], warnings: &mut Warnings) -> Known<Distances> {
    if record.columns.is_empty() || record.rows.values().all(Vec::is_empty) {
        return Known::no("the text has no table of distances");
    }
    let mut distances =
        Distances::empty(DistanceOrigin::Described, nodes.iter().map(|node| node.id));
    for (&from, row) in &record.rows {
        for (&to, &distance) in record.columns.iter().zip(row) {
            distances.set(from, to, distance);
        }
    }
    if !distances.is_complete() {
        let missing: NodeSet = distances
            .entries()
            .filter(|entry| entry.2.is_none())
            .map(|entry| entry.0)
            .collect();
        warnings.note(format!(
            "the table of distances has holes in the rows of nodes {missing}"
        ));
    }
    Known::Yes(distances)
}
