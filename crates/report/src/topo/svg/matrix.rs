//! The heat map of distances below the rooms: a cell a pair with its figure, or for many nodes areas of one colour.

use maud::{Markup, html};
use nearfar_machine::{Distance, Distances, Machine};

use super::blocks::{self, Blocks, MOST_CELLS};
use super::{Drawn, at, text};
use crate::document::{HOTTEST, Scale};
use crate::topo::distances::remark;

/// Space for the names of rows.
const LABEL: i32 = 34;
/// Space for the title and the names of columns.
const TOP: i32 = 44;
/// Steps from which on a figure is written in the ink for hot cells.
const HOT: u8 = 7;

/// The class of a figure that is written into a cell.
pub(crate) fn ink(step: Option<u8>) -> &'static str {
    match step {
        Some(HOT..) => "middle hot",
        Some(_) => "middle cool",
        None => "middle",
    }
}

/// The heat map; nothing for one node or without a table.
pub(super) fn draw(machine: &Machine, width: i32) -> Option<Drawn> {
    let table = machine
        .distances
        .get()
        .filter(|table| table.nodes().len() > 1)?;
    let map = if table.nodes().len() > MOST_CELLS {
        areas(table)
    } else {
        cells(table, width)
    };
    let markup = html! {
        (text("node", 0, 12, width, 13, "Distances"))
        (text("dim", 84, 12, width - 84, 11, &format!("row: node of the CPU, column: node of the memory; {}", remark(table))))
        (map.markup)
        g transform=(at(LABEL, TOP + map.height + 12)) { (legend()) }
    };
    Some(Drawn {
        markup,
        height: TOP + map.height + 42,
    })
}

fn cells(table: &Distances, width: i32) -> Drawn {
    let count = table.nodes().len() as i32;
    let cell_width = ((width - LABEL) / count).clamp(6, 46);
    let cell_height = cell_width.clamp(6, 26);
    let size = (cell_width * 10 / 21).clamp(5, 12);
    let place = |index: usize, cell: i32, start: i32| start + index as i32 * cell;
    let markup = html! {
        @for (column, node) in table.nodes().iter().enumerate() {
            text.dim.middle x=(place(column, cell_width, LABEL) + cell_width / 2) y=(TOP - 6) font-size=(size) { (node) }
        }
        @for (row, &from) in table.nodes().iter().enumerate() {
            @let y = place(row, cell_height, TOP);
            @let baseline = y + (cell_height + size * 7 / 10) / 2;
            text.dim.end x=(LABEL - 8) y=(baseline) font-size=(size) { (from) }
            @for (column, (_, distance)) in table.row(from).enumerate() {
                @let x = place(column, cell_width, LABEL);
                @let step = blocks::step(distance);
                rect class=(blocks::class(step)) x=(x) y=(y) width=(cell_width - 1) height=(cell_height - 1) {}
                text class=(ink(step)) x=(x + cell_width / 2) y=(baseline) font-size=(size) { (figure(distance)) }
            }
        }
    };
    Drawn {
        markup,
        height: count * cell_height,
    }
}

/// A map without figures, as large as one of [`MOST_CELLS`] nodes.
fn areas(table: &Distances) -> Drawn {
    const SIDE: i32 = 640;
    let count = table.nodes().len();
    let merged = Blocks::new(
        count,
        table.entries().map(|(.., distance)| blocks::step(distance)),
    )
    .draw();
    let scale = f64::from(SIDE) / count as f64;
    let markup = html! {
        g transform={ "translate(" (LABEL) " " (TOP) ") scale(" (format!("{scale:.4}")) ")" } { (merged.markup) }
        @for (place, node) in ticks(table, f64::from(SIDE)) {
            text.dim.middle x=(LABEL + place as i32) y=(TOP - 6) font-size="11" { (node) }
            text.dim.end x=(LABEL - 6) y=(TOP + place as i32 + 4) font-size="11" { (node) }
        }
    };
    Drawn {
        markup,
        height: SIDE,
    }
}

/// The names of five nodes along an axis of this length, with their places.
pub(crate) fn ticks(table: &Distances, length: f64) -> Vec<(f64, String)> {
    let nodes = table.nodes();
    let last = nodes.len().saturating_sub(1);
    let mut shown: Vec<usize> = (0..=4).map(|quarter| last * quarter / 4).collect();
    shown.dedup();
    let place = |index: usize| (index as f64 + 0.5) / nodes.len() as f64 * length;
    shown
        .into_iter()
        .filter_map(|index| Some((place(index), nodes.get(index)?.to_string())))
        .collect()
}

/// The steps with the distances they stand for.
fn legend() -> Markup {
    const WIDTH: i32 = 30;
    let scale = Scale::DISTANCES;
    html! {
        @for step in 0..=HOTTEST { rect class={ "h" (step) } x=(i32::from(step) * WIDTH) width=(WIDTH - 1) height="8" {} }
        text.dim y="20" font-size="10" { (scale.figure(0)) " local" }
        text.dim.end x=((i32::from(HOTTEST) + 1) * WIDTH) y="20" font-size="10" { (scale.figure(HOTTEST)) " and more" }
    }
}

fn figure(distance: Option<Distance>) -> String {
    distance.map_or_else(String::new, |distance| distance.to_string())
}
