//! What accesses take on a machine, where it was measured or published.

use std::collections::BTreeSet;

use nearfar_machine::{Latency, Machine, NodeId, Timing};

use super::distances::MAX_MAP_NODES;
use crate::document::{Document, HeatCell, HeatMap, Scale};

/// Latencies as a map of nodes, the other figures as `--delay` takes them, and where they come from.
pub(super) fn section(machine: &Machine, out: &mut Document) {
    let Some(timing) = &machine.timing else {
        return;
    };
    let nodes = |of: fn(&Latency) -> NodeId| -> BTreeSet<NodeId> {
        timing.latencies.iter().map(of).collect()
    };
    let (rows, columns) = (nodes(|it| it.cpu_node), nodes(|it| it.memory_node));
    match rows.len().max(columns.len()) {
        1..=MAX_MAP_NODES => out.heat_map(map(timing, &rows, &columns)),
        0 => out.heading("Latency", "unknown"),
        _ => out.heading("Latency", "of more nodes than fit; --format json has it"),
    }
    let figure = |key: &str, value: Option<String>| value.map(|value| format!("{key}={value}"));
    let figures = [
        figure("cache", timing.cache.map(|it| it.to_string())),
        figure(
            "transfer",
            timing.transfer.as_ref().map(ToString::to_string),
        ),
        (!timing.bandwidth.is_unlimited()).then(|| timing.bandwidth.to_string()),
        figure(
            "instruction",
            timing
                .instruction_ps
                .map(|ps| (f64::from(ps) / 1000.0).to_string()),
        ),
    ];
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    if !figures.is_empty() {
        out.indented(2, "", figures.join(","));
    }
    timing
        .sources
        .iter()
        .for_each(|source| out.indented(2, "", source.as_str()));
}

fn map(timing: &Timing, rows: &BTreeSet<NodeId>, columns: &BTreeSet<NodeId>) -> HeatMap {
    let scale = Scale::over(timing.latencies.iter().map(|it| it.ns.into()));
    let cell = |from, to| {
        timing
            .latency_ns(from, to)
            .map(|ns| HeatCell::of(ns.into(), ns))
    };
    let row = |&from: &NodeId| columns.iter().map(|&to| cell(from, to)).collect();
    let names: Vec<NodeId> = rows.iter().copied().collect();
    HeatMap {
        title: "Latency".to_owned(),
        remark: "ns per load; row: node of the CPU, column: node of the memory".to_owned(),
        row_heads: vec!["node".to_owned()],
        rows: HeatMap::names(&names),
        columns: columns.iter().map(ToString::to_string).collect(),
        cells: rows.iter().map(row).collect(),
        ..HeatMap::of(scale, |ns| format!("{ns:.0} ns"))
    }
}
