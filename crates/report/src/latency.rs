//! Measured latencies: what one load takes from each node's CPUs to each node's memory. Below it the whole survey of
//! `nearfar bench latency`, with bandwidth and transfers.

mod panel;
mod panels;
mod survey;
mod svg;

use std::collections::BTreeSet;

use nearfar_bench::latency::{LatencyMatrix, LatencyPair, SkippedPair};
use nearfar_machine::NodeId;

use crate::amount::{bytes, count, nanoseconds};
use crate::heat::Scale;
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

pub use survey::survey;
pub use svg::survey_svg;

/// The matrix in nanoseconds with its spread, labelled with what it is, and the warnings about it.
pub fn table(matrix: &LatencyMatrix, style: &Style) -> String {
    let mut out = heading(style, "Latency", &format!("ns a load, {}", label(matrix)));
    out.push_str(&figures(matrix, style));
    for skipped in &matrix.skipped {
        let first = (Role::Dim, "not measured: ");
        out.push_str(&paragraph(
            style,
            2,
            first,
            Role::Plain,
            &skipped_pair(skipped),
        ));
    }
    for warning in &matrix.warnings {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Warning, "! "),
            Role::Plain,
            &warning.to_string(),
        ));
    }
    out.push_str(&paragraph(
        style,
        2,
        (Role::Dim, ""),
        Role::Dim,
        &method(matrix),
    ));
    whole(out)
}

/// Which pair was not measured, and why.
fn skipped_pair(skipped: &SkippedPair) -> String {
    let node = |what: &str, node: Option<NodeId>| node.map(|node| format!("{what} of node {node}"));
    let which = [
        node("CPUs", skipped.cpu_node),
        node("memory", skipped.memory_node),
    ];
    format!(
        "{}: {}",
        which.into_iter().flatten().collect::<Vec<_>>().join(" to "),
        skipped.because
    )
}

/// That the figures were measured now, or the label of the emulated machine.
pub(crate) fn label(matrix: &LatencyMatrix) -> String {
    match &matrix.emulated {
        Some(label) => label.clone(),
        None => "measured in this run".to_owned(),
    }
}

/// How the figures were made.
pub(crate) fn method(matrix: &LatencyMatrix) -> String {
    let samples = matrix
        .pairs
        .iter()
        .map(|pair| pair.samples_ns.len())
        .min()
        .unwrap_or(0);
    let figures = of_samples("median and quartiles", samples);
    format!(
        "dependent loads over one random cycle of {} lines in {} on each node ({}); {figures} a pair, {} loads each, pairs in \
         random order; {:.1} s",
        bytes(matrix.line_bytes),
        bytes(matrix.buffer_bytes),
        matrix.page_kind,
        matrix.steps,
        matrix.elapsed_s,
    )
}

/// What is printed of so many samples; one sample has neither quartiles nor a median worth the name.
pub(crate) fn of_samples(what: &str, samples: usize) -> String {
    if samples == 1 {
        "one sample".to_owned()
    } else {
        format!("{what} of {}", count(samples, "sample"))
    }
}

/// The figures alone: as a matrix where it fits, as a list of pairs where it does not.
pub(crate) fn figures(matrix: &LatencyMatrix, style: &Style) -> String {
    let columns: BTreeSet<NodeId> = matrix.pairs.iter().map(|pair| pair.memory_node).collect();
    // A cell is "104 ±12" and two spaces.
    match columns.len() * 11 + 8 <= style.columns() {
        true => square(matrix, &columns, style, true),
        false if columns.len() * 6 + 8 <= style.columns() => square(matrix, &columns, style, false),
        false => nearest_and_farthest(matrix, style),
    }
}

fn square(
    matrix: &LatencyMatrix,
    memory: &BTreeSet<NodeId>,
    style: &Style,
    with_spread: bool,
) -> String {
    let headings: Vec<String> = memory.iter().map(ToString::to_string).collect();
    let mut columns = vec![("node", Side::Right)];
    columns.extend(
        headings
            .iter()
            .map(|heading| (heading.as_str(), Side::Right)),
    );
    let mut grid = Grid::new(&columns);
    let scale = scale(matrix);
    for from in matrix
        .pairs
        .iter()
        .map(|pair| pair.cpu_node)
        .collect::<BTreeSet<_>>()
    {
        let mut row = vec![Cell::new(Role::Heading, from.to_string())];
        row.extend(memory.iter().map(|&to| match matrix.pair(from, to) {
            Some(pair) if with_spread => {
                Cell::new(scale.role(pair.median_ns), with_quartiles(pair))
            }
            Some(pair) => Cell::new(scale.role(pair.median_ns), nanoseconds(pair.median_ns)),
            None => Cell::new(Role::Dim, "-"),
        }));
        grid.row(row);
    }
    grid.render(style)
}

/// `104 ±3`: the larger of the two distances from the median to a quartile; one sample has none.
pub(crate) fn with_quartiles(pair: &LatencyPair) -> String {
    if pair.samples_ns.len() < 2 {
        return nanoseconds(pair.median_ns);
    }
    let spread = (pair.high_ns - pair.median_ns).max(pair.median_ns - pair.low_ns);
    format!("{} ±{}", nanoseconds(pair.median_ns), nanoseconds(spread))
}

/// For machines with more nodes than columns: local, nearest and farthest of each node.
fn nearest_and_farthest(matrix: &LatencyMatrix, style: &Style) -> String {
    let mut grid = Grid::new(&[
        ("node", Side::Right),
        ("local", Side::Right),
        ("nearest other", Side::Right),
        ("", Side::Left),
        ("farthest", Side::Right),
        ("", Side::Left),
    ]);
    let scale = scale(matrix);
    for from in matrix
        .pairs
        .iter()
        .map(|pair| pair.cpu_node)
        .collect::<BTreeSet<_>>()
    {
        let own = || matrix.pairs.iter().filter(|pair| pair.cpu_node == from);
        let others = || own().filter(|pair| pair.memory_node != from);
        let nearest = others().min_by(|a, b| a.median_ns.total_cmp(&b.median_ns));
        let farthest = others().max_by(|a, b| a.median_ns.total_cmp(&b.median_ns));
        let figure = |pair: Option<&LatencyPair>| match pair {
            Some(pair) => Cell::new(scale.role(pair.median_ns), with_quartiles(pair)),
            None => Cell::new(Role::Dim, "-"),
        };
        let to = |pair: Option<&LatencyPair>| {
            Cell::new(
                Role::Dim,
                pair.map_or_else(String::new, |pair| format!("node {}", pair.memory_node)),
            )
        };
        let local = own().find(|pair| pair.memory_node == from);
        let row = [
            figure(local),
            figure(nearest),
            to(nearest),
            figure(farthest),
            to(farthest),
        ];
        grid.row(
            std::iter::once(Cell::new(Role::Heading, from.to_string()))
                .chain(row)
                .collect(),
        );
    }
    grid.render(style)
}

/// Heat over the medians: the least has the colour of distance 10, twice that the colour of 20.
pub(crate) fn scale(matrix: &LatencyMatrix) -> Scale {
    Scale::relative(matrix.pairs.iter().map(|pair| pair.median_ns))
}
