//! What the firmware says and what was measured, side by side, as heat maps.

use std::collections::BTreeSet;

use maud::{Markup, html};
use nearfar_bench::latency::{LatencyMatrix, LatencyPair};
use nearfar_machine::{Distance, Distances, NodeId};

use super::Checkup;
use crate::amount::nanoseconds;
use crate::heat::{HOTTEST, Scale};
use crate::latency;
use crate::topo::distances::remark;
use crate::wrapping::clean;

/// Up to this many nodes a cell shows its spread; beyond, only a pointer resting on it does.
const MOST_WITH_SPREAD: usize = 8;

/// The section with both heat maps.
pub(super) fn section(checkup: &Checkup) -> Markup {
    let distances = checkup.machine.distances.get().filter(|table| table.nodes().len() > 1);
    let firmware = checkup.machine.firmware_distances.get().filter(|table| table.nodes().len() > 1);
    let firmware = firmware.filter(|table| distances.is_none_or(|kernel| !kernel.entries().eq(table.entries())));
    html! {
        section {
            h2 { "Distances and latencies" }
            @if !checkup.is_one_node() { p.legend { "Row: node of the CPU. Column: node of the memory. 10 is local." } }
            div.maps {
                @if let Some(table) = distances { (distance_map(table, "Distances")) }
                @if let Some(table) = firmware { (distance_map(table, "Distances the firmware gives")) }
                @match checkup.probe.get() {
                    Some(matrix) => { (latency_map(matrix)) }
                    None => { p.note { "Not measured: " (clean(checkup.probe.why_not().unwrap_or("no reason given"))) } }
                }
            }
            @if let Some(matrix) = checkup.probe.get() { (doubts(matrix)) }
        }
    }
}

fn distance_map(table: &Distances, title: &str) -> Markup {
    let scale = Scale::over_distances(table);
    html! {
        figure {
            figcaption { b { (title) } " " (remark(table)) }
            div.scroll {
                table class=(size(table.nodes().len())) {
                    (head(table.nodes()))
                    @for &from in table.nodes() {
                        tr {
                            th { (from) }
                            @for (_, distance) in table.row(from) { (distance_cell(&scale, distance)) }
                        }
                    }
                }
            }
            (legend(&scale, |distance| format!("{distance:.0}")))
        }
    }
}

fn distance_cell(scale: &Scale, distance: Option<Distance>) -> Markup {
    match distance {
        None => html! { td.hole { "–" } },
        Some(Distance::UNREACHABLE) => html! { td.hole title="cannot be reached" { "255" } },
        Some(distance) => html! { td class=(class(scale.step(distance.0.into()))) { (distance) } },
    }
}

fn latency_map(matrix: &LatencyMatrix) -> Markup {
    let memory: Vec<NodeId> =
        matrix.pairs.iter().map(|pair| pair.memory_node).collect::<BTreeSet<_>>().into_iter().collect();
    let scale = latency::scale(matrix);
    let mut pairs = matrix.pairs.iter().peekable();
    let with_spread = memory.len() <= MOST_WITH_SPREAD;
    html! {
        figure {
            figcaption { b { "Latency" } " " "ns a load, " (clean(&latency::label(matrix))) }
            div.scroll {
                table class=(size(memory.len())) {
                    (head(&memory))
                    @while let Some(from) = pairs.peek().map(|pair| pair.cpu_node) {
                        tr {
                            th { (from) }
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
            }
            @if memory.len() > 1 { (legend(&scale, |latency| format!("{} ns", nanoseconds(latency)))) }
        }
    }
}

fn latency_cell(scale: &Scale, pair: &LatencyPair, with_spread: bool) -> Markup {
    let (low, high) = (nanoseconds(pair.low_ns), nanoseconds(pair.high_ns));
    let class = class(scale.step(pair.median_ns));
    let title = format!("{low} to {high} ns, CPU {}", pair.cpu);
    html! {
        td class=(class) title=(title) {
            (nanoseconds(pair.median_ns))
            @if with_spread { small { (low) "–" (high) } }
        }
    }
}

fn head(nodes: &[NodeId]) -> Markup {
    html! { tr { th {} @for node in nodes { th { (node) } } } }
}

fn doubts(matrix: &LatencyMatrix) -> Markup {
    html! {
        @if !matrix.warnings.is_empty() || !matrix.skipped.is_empty() {
            ul.doubts {
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
fn legend(scale: &Scale, figure: fn(f64) -> String) -> Markup {
    let Some(spacing) = scale.spacing() else { return html! {} };
    html! {
        p.legend {
            span.scale {
                (figure(scale.figure(0)))
                @for step in 0..=HOTTEST { i class=(class(step)) title=(figure(scale.figure(step))) {} }
                (figure(scale.figure(HOTTEST)))
            }
            span { (spacing.to_string()) " scale" }
        }
    }
}

fn class(step: u8) -> String {
    format!("h{}", step.min(HOTTEST))
}

fn size(nodes: usize) -> &'static str {
    match nodes {
        0..=8 => "heat",
        9..=24 => "heat dense",
        _ => "heat dense tiny",
    }
}
