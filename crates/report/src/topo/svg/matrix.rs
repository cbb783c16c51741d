//! The heat map of distances below the nodes: a cell a pair with its figure, or for many nodes areas of one colour.

use maud::html;
use nearfar_machine::{Distances, Machine};

use super::blocks::{self, Blocks, MAX_CELLS};
use super::{Drawn, text};
use crate::document::{HeatMap, draw_heat_map, draw_legend};
use crate::topo::distances;

/// Width and height of a map without figures: as large as one of [`MAX_CELLS`] nodes.
const SIDE: i32 = 640;
/// Space for the names of rows of a map without figures.
const LABEL: i32 = 34;
/// Space for its title and the names of columns.
const TOP: i32 = 52;

/// The heat map; nothing for one node or without a table.
pub(super) fn draw(machine: &Machine, width: i32) -> Option<Drawn> {
    let table = machine.distances.get();
    let table = table.filter(|table| table.nodes().len() > 1)?;
    let remark = distances::remark(table);
    let map = HeatMap {
        remark: format!("row: node of the CPU, column: node of the memory; {remark}"),
        ..distances::map(table, "Distances", distances::scale(machine))
    };
    if table.nodes().len() > MAX_CELLS {
        return Some(areas(table, &map, width));
    }
    let drawn = draw_heat_map(&map, width);
    Some(Drawn {
        markup: drawn.markup,
        height: drawn.height,
    })
}

fn areas(table: &Distances, map: &HeatMap, width: i32) -> Drawn {
    let count = table.nodes().len();
    let steps = table
        .entries()
        .map(|(.., distance)| blocks::step(&map.scale, distance));
    let merged = Blocks::new(count, steps).draw();
    let scale = f64::from(SIDE) / count as f64;
    let markup = html! {
        (text("name", 0, 12, width, 14, &map.title))
        (text("dim", 0, 28, width, 11, &map.remark))
        g transform={ "translate(" (LABEL) " " (TOP) ") scale(" (format!("{scale:.4}")) ")" } { (merged.markup) }
        @for (place, node) in ticks(table, f64::from(SIDE)) {
            text.dim.middle x=(LABEL + place as i32) y=(TOP - 6) font-size="11" { (node) }
            text.dim.end x=(LABEL - 6) y=(TOP + place as i32 + 4) font-size="11" { (node) }
        }
        (draw_legend(map, LABEL, TOP + SIDE + 12))
    };
    Drawn {
        markup,
        height: TOP + SIDE + 42,
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
