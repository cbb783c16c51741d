//! Distances between nodes: a heat map of few nodes, a list by distance of many.

use std::collections::BTreeMap;

use nearfar_machine::{Distance, DistanceOrigin, Distances, Machine, NodeId, NodeSet};

use crate::amount::or;
use crate::document::{Document, HeatCell, HeatMap, Scale};
use crate::style::Role;

/// Tables of more nodes are lists: in a terminal a map of them would be wider than most.
pub(super) const MAX_MAP_NODES: usize = 20;

/// The section on distances: the kernel's table, and the firmware's where it says something else.
pub(super) fn section(machine: &Machine, out: &mut Document) {
    let scale = scale(machine);
    for (title, table) in tables(machine) {
        match table.nodes().len() <= MAX_MAP_NODES {
            true => out.heat_map(map(table, title, scale)),
            false => list(table, title, scale, out),
        }
    }
}

/// The kernel's table, and the firmware's where it says something else, with their titles.
pub(crate) fn tables(machine: &Machine) -> impl Iterator<Item = (&'static str, &Distances)> {
    let has_nodes = |table: &&Distances| !table.nodes().is_empty();
    let kernel = machine.distances.get().filter(has_nodes);
    let firmware = machine.firmware_distances.get().filter(has_nodes);
    let firmware = firmware.filter(|table| kernel.is_none_or(|kernel| !is_same(table, kernel)));
    let kernel = kernel.map(|table| ("Distances", table));
    kernel
        .into_iter()
        .chain(firmware.map(|table| ("Distances the firmware gives", table)))
}

/// The colours of all distances of a machine: from 10, which ACPI's SLIT defines as local, to its farthest, 20 at least.
pub(crate) fn scale(machine: &Machine) -> Scale {
    over(tables(machine).flat_map(|(_, table)| table.entries().filter_map(|(.., it)| it)))
}

/// The colours of these distances; 255, "cannot be reached", is none.
pub(crate) fn over(distances: impl Iterator<Item = Distance>) -> Scale {
    let reached = distances.filter(|&it| it != Distance::UNREACHABLE);
    Scale::over(std::iter::once(10.0).chain(reached.map(|it| it.0.into())))
}

fn is_same(table: &Distances, other: &Distances) -> bool {
    other.nodes() == table.nodes() && other.entries().eq(table.entries())
}

/// The distance between two nodes, or both where the directions differ: `21`, `21/31`.
pub(crate) fn both_ways(machine: &Machine, from: NodeId, to: NodeId) -> Option<String> {
    match (machine.distance(from, to), machine.distance(to, from)) {
        (None, None) => None,
        (there, back) if there == back => Some(or(there, "?")),
        (there, back) => Some(format!("{}/{}", or(there, "?"), or(back, "?"))),
    }
}

/// Where a table comes from and what is odd about it.
pub(crate) fn remark(table: &Distances) -> String {
    let mut remarks = vec![match table.origin() {
        DistanceOrigin::Kernel => "from the kernel",
        DistanceOrigin::Slit => "from ACPI's SLIT",
        DistanceOrigin::DeviceTree => "from the device tree",
        DistanceOrigin::Described => "as described",
        DistanceOrigin::Fake => "of fake nodes, inherited from the real ones",
    }];
    let nodes: NodeSet = table.nodes().iter().copied().collect();
    match table.flat(&nodes) {
        Some(flat) if flat.with_local => {
            remarks.push("all the same: they do not show which nodes are near");
        }
        Some(_) => remarks.push("the same between all nodes"),
        None => {}
    }
    if !table.is_symmetric() {
        remarks.push("not symmetric: row is where the CPU is");
    }
    if !table.is_complete() {
        remarks.push("some are missing (-)");
    }
    remarks.join(", ")
}

/// A row and a column a node.
pub(crate) fn map(table: &Distances, title: &str, scale: Scale) -> HeatMap {
    let row = |&from| table.row(from).map(|(_, distance)| distance.map(cell));
    HeatMap {
        title: title.to_owned(),
        remark: remark(table),
        row_heads: vec!["node".to_owned()],
        rows: HeatMap::names(table.nodes()),
        columns: table.nodes().iter().map(ToString::to_string).collect(),
        cells: table
            .nodes()
            .iter()
            .map(|from| row(from).collect())
            .collect(),
        ..HeatMap::of(scale, in_distance)
    }
}

pub(crate) fn in_distance(heat: f64) -> String {
    format!("distance {heat:.0}")
}

pub(crate) fn cell(distance: Distance) -> HeatCell {
    let (heat, about) = match distance {
        Distance::UNREACHABLE => (f64::NAN, "cannot be reached"),
        _ => (distance.0.into(), ""),
    };
    HeatCell {
        about: about.to_owned(),
        ..HeatCell::of(heat, distance)
    }
}

/// A line a node and distance: `10: 0`, `16: 1,3`, `32: 2,4-7`; unknown distances last.
fn list(table: &Distances, title: &str, scale: Scale, out: &mut Document) {
    out.heading(title, remark(table));
    for &from in table.nodes() {
        let mut groups: BTreeMap<(bool, Option<Distance>), NodeSet> = BTreeMap::new();
        for (to, distance) in table.row(from) {
            let key = (distance.is_none(), distance);
            groups.entry(key).or_default().insert(to);
        }
        let mut first = format!("{from:>4}  ");
        for ((_, distance), nodes) in groups {
            let role = distance.map_or(Role::Dim, |it| scale.role(it.0.into()));
            let distance = format!("{first}{:>4}: ", or(distance, "-"));
            out.labelled(role.text(distance), nodes);
            first = " ".repeat(6);
        }
    }
}
