//! What the firmware says and what was measured, as heat maps: all distances on one scale, all latencies on another.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use nearfar_bench::latency::LatencyMatrix;
use nearfar_machine::{Distance, Distances, NodeId};

use super::Checkup;
use crate::amount::{nanoseconds, or};
use crate::document::{Document, HeatCell, HeatMap, Scale};
use crate::latency;
use crate::topo::blocks::{Blocks, MAX_CELLS, step};
use crate::topo::distances;
use crate::topo::ticks;

/// Up to this many nodes a cell shows its spread; beyond, only a pointer resting on it does.
const MAX_WITH_SPREAD: usize = 8;
/// Most distances that have a line below a map without figures.
const MAX_CLASSES: usize = 40;

/// The section with the heat maps.
pub(super) fn section(checkup: &Checkup, out: &mut Document) {
    out.section("distances", "Distances and latencies");
    if !checkup.is_one_node() {
        out.paragraph("Row: node of the CPU. Column: node of the memory.");
    }
    let scale = distances::scale(&checkup.machine);
    for (title, table) in distances::tables(&checkup.machine) {
        match table.nodes().len() {
            ..2 => {}
            2..=MAX_CELLS => out.heat_map(distances::map(table, title, scale)),
            _ => distance_areas(table, title, scale, out),
        }
    }
    let Some(matrix) = checkup.probe.get() else {
        let reason = checkup.probe.unknown_reason();
        out.boxed(format!(
            "Not measured: {}",
            reason.unwrap_or("no reason given")
        ));
        return;
    };
    out.heat_map(latency_map(matrix));
    matrix
        .warnings
        .iter()
        .for_each(|it| out.warning(it.to_string()));
    for skipped in &matrix.skipped {
        out.warning(format!("not measured: {}", latency::skipped_pair(skipped)));
    }
}

/// A map without figures, and the figures below it by distance.
fn distance_areas(table: &Distances, title: &str, scale: Scale, out: &mut Document) {
    let mut pairs: BTreeMap<Distance, usize> = BTreeMap::new();
    for distance in table.entries().filter_map(|(.., distance)| distance) {
        *pairs.entry(distance).or_default() += 1;
    }
    let about = format!(
        "Pairs of {} nodes by distance; the table below has the figures.",
        table.nodes().len()
    );
    out.picture(html! {
        figure {
            figcaption { b { (title) } " " (distances::remark(table)) }
            (areas(table, title, scale, &about))
        }
    });
    let remark = match pairs.len() {
        all @ MAX_CLASSES.. => format!("the {MAX_CLASSES} least distances of {all}"),
        _ => String::new(),
    };
    let shown = || pairs.iter().take(MAX_CLASSES);
    let cell = |(&distance, pairs): (&Distance, &usize)| {
        let value = pairs.to_string();
        vec![Some(HeatCell {
            value,
            ..distances::cell(distance)
        })]
    };
    out.heat_map(HeatMap {
        title: format!("{title}: pairs of nodes"),
        remark,
        row_heads: vec!["distance".to_owned()],
        rows: HeatMap::names(shown().map(|(distance, _)| distance)),
        columns: vec!["pairs".to_owned()],
        cells: shown().map(cell).collect(),
        ..HeatMap::of(scale, distances::in_distance)
    });
}

/// The picture of a matrix of so many nodes.
fn areas(table: &Distances, title: &str, scale: Scale, about: &str) -> Markup {
    let cells = table.entries().map(|(.., distance)| step(&scale, distance));
    let count = table.nodes().len();
    let merged = Blocks::new(count, cells).draw();
    // Space for the names of nodes, in units of one node; letters are legible from 300 pixels on.
    let (margin, letter) = (count / 10, count as f64 / 32.0);
    // On the other side, half a name goes beyond the last node.
    let whole = count + margin + margin / 2;
    html! {
        svg.areas viewBox={ "0 0 " (whole) " " (whole) } role="img" {
            title { (title) }
            desc { (about) }
            @for (place, node) in ticks(table, count as f64) {
                text.dim.middle x=(format!("{:.1}", place + margin as f64)) y=(margin - count / 60) font-size=(format!("{letter:.1}")) { (node) }
                text.dim.end x=(margin - count / 60) y=(format!("{:.1}", place + margin as f64 + letter / 3.0)) font-size=(format!("{letter:.1}")) { (node) }
            }
            g transform={ "translate(" (margin) " " (margin) ")" } { (merged.markup) }
        }
        @if merged.nodes_a_cell > 1 {
            p.legend { "Each cell is " (merged.nodes_a_cell) " by " (merged.nodes_a_cell) " nodes, in the colour of the farthest pair." }
        }
    }
}

fn latency_map(matrix: &LatencyMatrix) -> HeatMap {
    let nodes: BTreeSet<NodeId> = matrix.pairs.iter().map(|pair| pair.memory_node).collect();
    let mut map = match nodes.len() > MAX_CELLS {
        true => latency_classes(matrix),
        false => latency::map(matrix),
    };
    map.remark = format!("ns per load, {}", latency::label(matrix.emulation.as_ref()));
    if nodes.len() > MAX_WITH_SPREAD {
        let cells = map.cells.iter_mut().flatten().flatten();
        cells.for_each(|cell| (cell.spread, cell.interval) = Default::default());
    }
    map
}

/// The latencies of many nodes by distance: least, mean and most of the pairs' medians.
fn latency_classes(matrix: &LatencyMatrix) -> HeatMap {
    let mut classes: BTreeMap<Option<Distance>, Vec<f64>> = BTreeMap::new();
    for pair in &matrix.pairs {
        let medians = classes.entry(pair.distance).or_default();
        medians.push(pair.median_ns);
    }
    let figure = |ns: f64| Some(HeatCell::of(ns, nanoseconds(ns)));
    let row = |medians: &Vec<f64>| {
        let pairs = HeatCell::of(f64::NAN, medians.len());
        let mean = medians.iter().sum::<f64>() / medians.len() as f64;
        let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
        let most = medians.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        vec![Some(pairs), figure(least), figure(mean), figure(most)]
    };
    let shown = || classes.iter().take(MAX_CLASSES);
    HeatMap {
        title: "Latency".to_owned(),
        row_heads: vec!["distance".to_owned()],
        rows: HeatMap::names(shown().map(|(distance, _)| or(*distance, "–"))),
        columns: ["pairs", "least", "mean", "most"]
            .map(str::to_owned)
            .to_vec(),
        cells: shown().map(|(_, medians)| row(medians)).collect(),
        ..HeatMap::of(latency::scale(matrix), |heat| {
            format!("{} ns", nanoseconds(heat))
        })
    }
}
