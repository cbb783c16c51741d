//! What the firmware says and what was measured, as heat maps on one scale: distance 10, and the least latency, are green;
//! twice that and more is red.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use nearfar_bench::latency::{LatencyMatrix, LatencyPair};
use nearfar_machine::{Distance, Distances, NodeId};

use super::{Checkup, titled};
use crate::amount::nanoseconds;
use crate::document::{HOTTEST, Scale};
use crate::latency;
use crate::topo::blocks::{Blocks, MOST_CELLS, class, step};
use crate::topo::distances::remark;
use crate::topo::ticks;
use crate::wrapping::clean;

/// Up to this many nodes a cell shows its spread; beyond, only a pointer resting on it does.
const MOST_WITH_SPREAD: usize = 8;
/// Most distances that have a line below a map without figures.
const MOST_CLASSES: usize = 40;

/// The section with the heat maps.
pub(super) fn section(checkup: &Checkup) -> Markup {
    let distances = checkup
        .machine
        .distances
        .get()
        .filter(|table| table.nodes().len() > 1);
    let firmware = checkup
        .machine
        .firmware_distances
        .get()
        .filter(|table| table.nodes().len() > 1);
    let firmware = firmware
        .filter(|table| distances.is_none_or(|kernel| !kernel.entries().eq(table.entries())));
    titled(
        "distances",
        "Distances and latencies",
        &html! {
            @if !checkup.is_one_node() {
                p { "Row: node of the CPU. Column: node of the memory." }
                (legend(&Scale::DISTANCES, |distance| format!("{distance:.0}"), "distance"))
            }
            div.maps {
                @if let Some(table) = distances { (distance_map(table, "kernel", "Distances")) }
                @if let Some(table) = firmware { (distance_map(table, "firmware", "Distances the firmware gives")) }
                @match checkup.probe.get() {
                    Some(matrix) => { (latency_map(matrix)) }
                    None => { p.note { "Not measured: " (clean(checkup.probe.unknown_reason().unwrap_or("no reason given"))) } }
                }
            }
            @if let Some(matrix) = checkup.probe.get() { (warnings(matrix)) }
        },
    )
}

/// A table in a box that scrolls by itself, also by keyboard.
fn boxed(id: &str, title: &str, about: &str, nodes: usize, rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby=(id) {
            table class=(size(nodes)) { caption id=(id) { b { (title) } " " span { (clean(about)) } } (rows) }
        }
    }
}

fn distance_map(table: &Distances, id: &str, title: &str) -> Markup {
    if table.nodes().len() > MOST_CELLS {
        return distance_areas(table, title);
    }
    let rows = html! {
        (head(table.nodes()))
        tbody {
            @for &from in table.nodes() {
                tr { th scope="row" { (from) } @for (_, distance) in table.row(from) { (distance_cell(distance)) } }
            }
        }
    };
    boxed(
        id,
        title,
        remark(table).as_str(),
        table.nodes().len(),
        &rows,
    )
}

fn distance_cell(distance: Option<Distance>) -> Markup {
    match distance {
        None => html! { td.hole { "–" } },
        Some(Distance::UNREACHABLE) => html! { td.hole title="cannot be reached" { "255" } },
        Some(distance) => html! { td class=(class(step(Some(distance)))) { (distance) } },
    }
}

/// A map without figures, and the figures below it by distance.
fn distance_areas(table: &Distances, title: &str) -> Markup {
    let mut pairs: BTreeMap<Distance, usize> = BTreeMap::new();
    for distance in table.entries().filter_map(|(.., distance)| distance) {
        *pairs.entry(distance).or_default() += 1;
    }
    let cells = table.entries().map(|(.., distance)| step(distance));
    let about = format!(
        "Pairs of {} nodes by distance; the table below has the figures.",
        table.nodes().len()
    );
    let lines = pairs.iter().take(MOST_CLASSES).map(|(&distance, pairs)| {
        html! { tr { th scope="row" class=(class(step(Some(distance)))) { (distance) } td { (pairs) } } }
    });
    html! {
        figure {
            figcaption { b { (title) } " " (remark(table)) }
            (areas(table, cells, title, &about))
            table.runs {
                caption { (title) ": pairs of nodes" @if pairs.len() > MOST_CLASSES { ", the " (MOST_CLASSES) " least distances of " (pairs.len()) } }
                thead { tr { th scope="col" { "distance" } th scope="col" { "pairs" } } }
                tbody { @for line in lines { (line) } }
            }
        }
    }
}

/// The picture of a matrix of so many nodes.
fn areas(
    table: &Distances,
    cells: impl Iterator<Item = Option<u8>>,
    title: &str,
    about: &str,
) -> Markup {
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

fn latency_map(matrix: &LatencyMatrix) -> Markup {
    let memory: Vec<NodeId> = matrix
        .pairs
        .iter()
        .map(|pair| pair.memory_node)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let scale = latency::scale(matrix);
    if memory.len() > MOST_CELLS {
        return latency_classes(matrix, &scale);
    }
    let mut pairs = matrix.pairs.iter().peekable();
    let with_spread = memory.len() <= MOST_WITH_SPREAD;
    let rows = html! {
        (head(&memory))
        tbody {
            @while let Some(from) = pairs.peek().map(|pair| pair.cpu_node) {
                tr {
                    th scope="row" { (from) }
                    @for &to in &memory {
                        @match pairs.next_if(|pair| (pair.cpu_node, pair.memory_node) == (from, to)) {
                            Some(pair) => (latency_cell(&scale, pair, with_spread)),
                            None => td.hole { "–" },
                        }
                    }
                    // Pairs out of order belong to no cell; a stored result may be anything.
                    @while pairs.next_if(|pair| pair.cpu_node == from).is_some() {}
                }
            }
        }
    };
    html! {
        div {
            (boxed("latency", "Latency", &format!("ns a load, {}", latency::label(matrix)), memory.len(), &rows))
            @if memory.len() > 1 { (legend(&scale, |latency| format!("{} ns", nanoseconds(latency)), "latency")) }
        }
    }
}

fn latency_cell(scale: &Scale, pair: &LatencyPair, with_spread: bool) -> Markup {
    let (low, high) = (nanoseconds(pair.low_ns), nanoseconds(pair.high_ns));
    let title = format!("{low} to {high} ns, CPU {}", pair.cpu);
    html! {
        td class=(class(Some(scale.step(pair.median_ns)))) title=(title) {
            (nanoseconds(pair.median_ns))
            @if with_spread { small { (low) "–" (high) } }
        }
    }
}

/// The latencies of many nodes by distance: least, mean and most of the pairs' medians.
fn latency_classes(matrix: &LatencyMatrix, scale: &Scale) -> Markup {
    let mut classes: BTreeMap<Option<Distance>, Vec<f64>> = BTreeMap::new();
    for pair in &matrix.pairs {
        classes
            .entry(pair.distance)
            .or_default()
            .push(pair.median_ns);
    }
    let figure = |ns: f64| html! { td class=(class(Some(scale.step(ns)))) { (nanoseconds(ns)) } };
    let lines = classes.iter().take(MOST_CLASSES).map(|(distance, medians)| {
        let mean = medians.iter().sum::<f64>() / medians.len() as f64;
        html! {
            tr {
                th scope="row" { (distance.map_or_else(|| "–".to_owned(), |distance| distance.to_string())) }
                td { (medians.len()) }
                (figure(medians.iter().copied().fold(f64::INFINITY, f64::min)))
                (figure(mean))
                (figure(medians.iter().copied().fold(f64::NEG_INFINITY, f64::max)))
            }
        }
    });
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="latency" {
            table.runs {
                caption id="latency" { b { "Latency" } " by distance, ns a load, " (clean(&latency::label(matrix))) }
                thead { tr { @for title in ["distance", "pairs", "least", "mean", "most"] { th scope="col" { (title) } } } }
                tbody { @for line in lines { (line) } }
            }
        }
    }
}

fn head(nodes: &[NodeId]) -> Markup {
    html! { thead { tr { td.corner { "node" } @for node in nodes { th scope="col" { (node) } } } } }
}

fn warnings(matrix: &LatencyMatrix) -> Markup {
    html! {
        @if !matrix.warnings.is_empty() || !matrix.skipped.is_empty() {
            ul.warnings {
                @for warning in &matrix.warnings { li { (clean(&warning.to_string())) } }
                @for skipped in &matrix.skipped {
                    li {
                        "not measured: "
                        @if let Some(node) = skipped.cpu_node { "CPUs of node " (node) " " }
                        @if let Some(node) = skipped.memory_node { "memory of node " (node) " " }
                        "(" (clean(&skipped.because)) ")"
                    }
                }
            }
        }
    }
}

/// The steps between the figures of the first and the last; nothing where all figures are the same.
fn legend(scale: &Scale, figure: fn(f64) -> String, what: &str) -> Markup {
    let Some(spacing) = scale.spacing() else {
        return html! {};
    };
    html! {
        p.legend {
            span.scale {
                (what) " " (figure(scale.figure(0)))
                @for step in 0..=HOTTEST { i class=(class(Some(step))) title=(figure(scale.figure(step))) {} }
                (figure(scale.figure(HOTTEST))) " and more"
            }
            span { (spacing.to_string()) " scale" }
        }
    }
}

fn size(nodes: usize) -> &'static str {
    match nodes {
        0..=8 => "heat",
        9..=24 => "heat dense",
        _ => "heat dense tiny",
    }
}
