//! From what the lines say to a machine: the contradictions between header, node lines and distance table are named.

use std::collections::BTreeMap;

use nearfar_machine::{
    Cpu, CpuId, CpuSet, CpuStates, DistanceOrigin, Distances, Known, Machine, Memory, Node, NodeId,
    NodeSet, Origin, SourceKind,
};

use super::record::Record;
use crate::warnings::Warnings;

const NO_CPUS_LINE: &str = "the text has no line with them";
const BECAUSE: &str = "numactl -H text has only nodes, their CPUs, memory and distances";

pub(super) fn machine(record: Record, place: &str, mut warnings: Warnings) -> Machine {
    check_header(&record, &mut warnings);
    let mut machine = Machine::empty(Origin::new(SourceKind::NumactlText, place), BECAUSE);
    machine.nodes = nodes(&record, &mut warnings);
    machine.cpus = cpus(&machine.nodes, &mut warnings);
    let online: CpuSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    machine.cpu_states = CpuStates::online_only(online, BECAUSE);
    machine.distances = distances(&record, &machine.nodes, &mut warnings);
    machine.warnings = warnings.finish();
    machine
}

/// The header counts and lists nodes; both may differ from the nodes that have lines.
fn check_header(record: &Record, warnings: &mut Warnings) {
    let Some(header) = &record.header else {
        warnings.note("the line \"available: N nodes\" is missing: the text may be incomplete");
        return;
    };
    let described: NodeSet = record.nodes.keys().copied().collect();
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

fn nodes(record: &Record, warnings: &mut Warnings) -> Vec<Node> {
    let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
    for (&id, lines) in &record.nodes {
        let cpus = Known::from_option(lines.cpus.clone(), || NO_CPUS_LINE);
        let mut node = Node::new(id, cpus);
        node.memory = match lines.size {
            Some(total) => Known::Yes(Memory {
                free_bytes: free(id, total, lines.free, warnings),
                ..Memory::of(total)
            }),
            None => Known::no(format!("the text has no size for node {id}")),
        };
        nodes.insert(id, node);
    }
    for &id in &record.columns {
        nodes.entry(id).or_insert_with(|| {
            let mut node = Node::new(id, Known::no(NO_CPUS_LINE));
            node.memory = Known::no(format!("the text has no size for node {id}"));
            node
        });
    }
    nodes.into_values().collect()
}

fn free(id: NodeId, total: u64, free: Option<u64>, warnings: &mut Warnings) -> Option<u64> {
    if let Some(free) = free.filter(|&free| free > total) {
        warnings.note(format!(
            "node {id} has {free} bytes free of {total}; what is free was left out"
        ));
        return None;
    }
    free
}

fn cpus(nodes: &[Node], warnings: &mut Warnings) -> Vec<Cpu> {
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
    homes
        .into_iter()
        .map(|(cpu, node)| Cpu::new(cpu, Some(node)))
        .collect()
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
