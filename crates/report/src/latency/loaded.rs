//! Latency under load: a table, and a curve a node.

use nearfar_bench::loaded::{LoadedCurve, LoadedLatency, LoadedPoint};
use nearfar_statistics::Figures;

use super::maps::{digits, measured};
use crate::amount::{nanoseconds, or};
use crate::document::{Align, Axis, Chart, Document, Line, Plot, Table, Text};
use crate::style::Role::{Heading, Plain};

const TITLE: &str = "Loaded latency";

/// The measured loads of each node, from none to the most, and the same as a picture.
pub(super) fn curves(all: &LoadedLatency, out: &mut Document) {
    let remark = "ns per load of one CPU, while the others of its node read so much of its memory";
    out.heading(TITLE, super::label(all.method.emulation.as_ref()));
    out.remark(remark);
    let mut table = Table::new(&[
        ("node", Align::Right),
        ("steps after a line", Align::Right),
        ("read GB/s", Align::Right),
        ("ns", Align::Right),
    ]);
    for curve in &all.curves {
        for point in &curve.points {
            table.row([
                Text::new(Heading, curve.node),
                Text::new(Plain, or(point.pause, "idle")),
                Text::new(Plain, read(&point.read_bytes_per_s)),
                Text::new(Plain, latency(&point.latency_ns)),
            ]);
        }
    }
    out.table(table);
    let points = || all.curves.iter().flat_map(|curve| &curve.points);
    out.chart(Chart {
        title: TITLE.to_owned(),
        about: "Medians: what a load takes over what the other CPUs of the node read meanwhile; a line a node.".to_owned(),
        plot: Plot::Lines {
            x: Axis::from_zero("GB/s (10^9 bytes)", points().map(|it| place(it).0)),
            y: Axis::from_zero("ns per load", points().map(|it| place(it).1)),
            dots: Vec::new(),
            lines: all.curves.iter().map(line).collect(),
        },
    });
}

/// GB/s with their spread.
pub(super) fn read(bytes_per_s: &Figures) -> String {
    let gb = bytes_per_s.median / 1e9;
    let text = |bytes_per_s: f64| format!("{:.1$}", bytes_per_s / 1e9, digits(gb));
    let read = measured("read", "GB/s", gb, bytes_per_s, text);
    read.value + &read.spread
}

/// Nanoseconds with their spread.
pub(super) fn latency(ns: &Figures) -> String {
    let latency = measured("latency", "ns", ns.median, ns, nanoseconds);
    latency.value + &latency.spread
}

fn line(curve: &LoadedCurve) -> Line {
    let mut points: Vec<(f64, f64)> = curve.points.iter().map(place).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    Line {
        name: format!("node {}, {} readers", curve.node, curve.readers.len()),
        points,
    }
}

fn place(point: &LoadedPoint) -> (f64, f64) {
    (point.read_bytes_per_s.median / 1e9, point.latency_ns.median)
}
