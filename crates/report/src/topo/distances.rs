//! Distances between nodes: a matrix where it fits, a list by distance where it does not.

use std::collections::BTreeMap;

use nearfar_machine::{Distance, DistanceOrigin, Distances, Machine, NodeSet};

use crate::document::Scale;
use crate::layout::{Cell, Grid, Side, heading, paragraph};
use crate::style::{Role, Style};

/// The section on distances: the kernel's table, and the firmware's where it says something else.
pub(super) fn section(machine: &Machine, style: &Style) -> String {
    let mut out = String::new();
    if let Some(table) = machine
        .distances
        .get()
        .filter(|table| !table.nodes().is_empty())
    {
        out.push_str(&heading(style, "Distances", &remark(table)));
        out.push_str(&matrix(table, style));
    }
    let firmware = machine
        .firmware_distances
        .get()
        .filter(|table| !table.nodes().is_empty());
    if let Some(table) = firmware.filter(|table| !same_entries(table, machine.distances.get())) {
        out.push_str(&heading(
            style,
            "Distances the firmware gives",
            &remark(table),
        ));
        out.push_str(&matrix(table, style));
    }
    out
}

fn same_entries(table: &Distances, other: Option<&Distances>) -> bool {
    other.is_some_and(|other| table.nodes() == other.nodes() && table.entries().eq(other.entries()))
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
    if table.is_flat() {
        remarks.push("all the same: the firmware tells nothing");
    }
    if !table.is_symmetric() {
        remarks.push("not symmetric: row is where the CPU is");
    }
    if !table.is_complete() {
        remarks.push("some are missing (-)");
    }
    remarks.join(", ")
}

/// A distance matrix with heat by distance.
pub(crate) fn matrix(table: &Distances, style: &Style) -> String {
    let widest = table
        .entries()
        .map(|(.., distance)| text(distance).len())
        .max()
        .unwrap_or(0);
    let label = table
        .nodes()
        .iter()
        .map(|node| node.to_string().len())
        .max()
        .unwrap_or(0);
    let needed = 4 + label.max(4) + table.nodes().len() * (widest.max(label) + 2);
    if needed > style.columns() {
        by_distance(table, style)
    } else {
        square(table, style)
    }
}

fn square(table: &Distances, style: &Style) -> String {
    let headings: Vec<String> = table.nodes().iter().map(ToString::to_string).collect();
    let mut columns = vec![("node", Side::Right)];
    columns.extend(
        headings
            .iter()
            .map(|heading| (heading.as_str(), Side::Right)),
    );
    let mut grid = Grid::new(&columns);
    for &from in table.nodes() {
        let mut row = vec![Cell::new(Role::Heading, from.to_string())];
        row.extend(
            table
                .row(from)
                .map(|(_, distance)| Cell::new(role(distance), text(distance))),
        );
        grid.row(row);
    }
    grid.render(style)
}

/// One line a node: `10: 0   16: 1,3   32: 2,4-7`; nodes with the same line are grouped when there are many.
fn by_distance(table: &Distances, style: &Style) -> String {
    let mut out = String::new();
    for &from in table.nodes() {
        let mut groups: BTreeMap<Option<Distance>, NodeSet> = BTreeMap::new();
        for (to, distance) in table.row(from) {
            groups.entry(distance).or_default().insert(to);
        }
        // Unknown distances last.
        let (holes, known): (Vec<_>, Vec<_>) = groups
            .into_iter()
            .partition(|(distance, _)| distance.is_none());
        let mut first = format!("{from:>4}  ");
        for (distance, nodes) in known.into_iter().chain(holes) {
            let line = format!("{first}{:>4}: ", text(distance));
            out.push_str(&paragraph(
                style,
                2,
                (role(distance), &line),
                Role::Plain,
                &nodes.to_string(),
            ));
            first = " ".repeat(6);
        }
    }
    out
}

fn text(distance: Option<Distance>) -> String {
    distance.map_or_else(|| "-".to_owned(), |distance| distance.to_string())
}

fn role(distance: Option<Distance>) -> Role {
    match distance {
        None => Role::Dim,
        Some(Distance::UNREACHABLE) => Role::Critical,
        Some(distance) => Scale::DISTANCES.role(distance.0.into()),
    }
}
