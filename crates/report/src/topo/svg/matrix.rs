//! The heat map of distances: a cell a pair with its figure, or for many nodes, where a cell has no room for its figure, one path a
//! colour, equal neighbours merged.
//!
//! ```text
//!   row 0   ██░░░▓▓▓      runs of one step; a run that the row above has as well makes its rectangle higher
//!   row 1   ██░░░▓▓▓      6 runs, 3 rectangles
//! ```
//!
//! Distances follow the machine's structure, so that a thousand nodes take some kilobytes. Where they do not, 2 x 2, 4 x 4 and so
//! on nodes share a cell, which has the colour of the farthest pair in it: nothing far is hidden.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_machine::{Distance, Distances, Machine};

use super::{Piece, text};
use crate::document::{HOTTEST, HeatMap, Scale, draw_heat_map, draw_legend};
use crate::topo::distances;

/// Width and height of a map without figures: as large as one of [`MAX_CELLS`] nodes.
const SIDE: i32 = 640;
/// Space for the names of rows of a map without figures.
const LABEL: i32 = 34;
/// Space for its title and the names of columns.
const TOP: i32 = 52;

/// The heat map; nothing for one node or without a table.
pub(super) fn draw(machine: &Machine, width: i32) -> Option<Piece> {
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
    Some(Piece {
        markup: drawn.markup,
        height: drawn.height,
    })
}

fn areas(table: &Distances, map: &HeatMap, width: i32) -> Piece {
    let count = table.nodes().len();
    let steps = table.entries();
    let steps = steps.map(|(.., distance)| step(&map.scale, distance));
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
    Piece {
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
    let tick = |index: usize| Some((place(index), nodes.get(index)?.to_string()));
    shown.into_iter().filter_map(tick).collect()
}

/// More nodes than this have no cell with a figure each.
pub(crate) const MAX_CELLS: usize = 64;
/// Most rectangles of a map: some 15 bytes each.
const MAX_RECTANGLES: usize = 20_000;
/// The "step" of an unknown pair.
const HOLE: u8 = HOTTEST + 1;

/// The class of a cell: its step, or that it has none.
pub(crate) fn class(step: Option<u8>) -> String {
    match step {
        Some(step) => format!("h{}", step.min(HOTTEST)),
        None => "hole".to_owned(),
    }
}

/// The step of a distance; none where it is unknown or the node cannot be reached.
pub(crate) fn step(scale: &Scale, distance: Option<Distance>) -> Option<u8> {
    let distance = distance.filter(|&distance| distance != Distance::UNREACHABLE)?;
    Some(scale.step(distance.0.into()))
}

/// A square matrix of steps.
pub(crate) struct Blocks {
    side: usize,
    steps: Vec<u8>,
}

/// What was drawn.
pub(crate) struct Merged {
    /// The paths, in units of one node.
    pub(crate) markup: Markup,
    /// How many nodes share a row and a column.
    pub(crate) nodes_a_cell: usize,
}

impl Blocks {
    /// A matrix of `side` rows of steps; missing cells are unknown, surplus ones are ignored.
    pub(crate) fn new(side: usize, cells: impl Iterator<Item = Option<u8>>) -> Self {
        let cells = cells.take(side * side);
        let mut steps: Vec<u8> = cells.map(|it| it.unwrap_or(HOLE).min(HOLE)).collect();
        steps.resize(side * side, HOLE);
        Self { side, steps }
    }

    /// The map, with as many nodes to a cell as it takes to stay small.
    pub(crate) fn draw(&self) -> Merged {
        let mut nodes_a_cell = 1;
        loop {
            let coarse = self.coarse(nodes_a_cell);
            let rectangles = coarse.rectangles();
            if rectangles.len() <= MAX_RECTANGLES {
                return Merged {
                    markup: paths(&rectangles, nodes_a_cell, self.side),
                    nodes_a_cell,
                };
            }
            nodes_a_cell *= 2;
        }
    }

    /// The farthest of each block of nodes.
    fn coarse(&self, block: usize) -> Self {
        let side = self.side.div_ceil(block);
        let mut steps = vec![None; side * side];
        for (index, &step) in self.steps.iter().enumerate() {
            let (row, column) = (index / self.side / block, index % self.side / block);
            let farthest: &mut Option<u8> = &mut steps[row * side + column];
            *farthest = (*farthest).max(Some(step).filter(|&step| step != HOLE));
        }
        Self {
            side,
            steps: steps.into_iter().map(|step| step.unwrap_or(HOLE)).collect(),
        }
    }

    /// Equal neighbours merged along the row, then equal runs down the rows.
    fn rectangles(&self) -> Vec<Rectangle> {
        let mut done = Vec::new();
        let mut open: BTreeMap<(usize, usize, u8), usize> = BTreeMap::new();
        for (y, row) in self.steps.chunks(self.side.max(1)).enumerate() {
            let mut runs = BTreeMap::new();
            let mut x = 0;
            for run in row.chunk_by(|a, b| a == b) {
                let key = (x, run.len(), run[0]);
                runs.insert(key, open.remove(&key).unwrap_or(y));
                x += run.len();
            }
            let ended = std::mem::replace(&mut open, runs).into_iter();
            done.extend(ended.map(|(key, top)| Rectangle::new(key, top, y)));
        }
        let open = open.into_iter();
        done.extend(open.map(|(key, top)| Rectangle::new(key, top, self.side)));
        done
    }
}

/// Cells of one step.
struct Rectangle {
    step: u8,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl Rectangle {
    fn new((x, width, step): (usize, usize, u8), y: usize, bottom: usize) -> Self {
        Self {
            step,
            x,
            y,
            width,
            height: bottom - y,
        }
    }
}

/// A path a step; the cells at the right and lower edge end where the nodes do.
fn paths(rectangles: &[Rectangle], cell: usize, side: usize) -> Markup {
    let mut paths: BTreeMap<u8, String> = BTreeMap::new();
    for Rectangle {
        step,
        x,
        y,
        width,
        height,
    } in rectangles
    {
        let (left, top) = (x * cell, y * cell);
        let (width, height) = (
            (width * cell).min(side - left),
            (height * cell).min(side - top),
        );
        // Writing to a String cannot fail.
        let _ = write!(
            paths.entry(*step).or_default(),
            "M{left} {top}h{width}v{height}h-{width}z"
        );
    }
    html! {
        g shape-rendering="crispEdges" {
            @for (step, path) in &paths { path class=(class((*step != HOLE).then_some(*step))) d=(path) {} }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(side: usize, step: impl Fn(usize, usize) -> Option<u8>) -> Blocks {
        Blocks::new(
            side,
            (0..side * side).map(|index| step(index / side, index % side)),
        )
    }

    #[test]
    fn a_thousand_nodes_of_a_shape_are_small_and_exact() {
        let drawn = blocks(1024, |a, b| {
            Some(if a == b {
                0
            } else {
                2 + u8::from(a / 64 != b / 64)
            })
        })
        .draw();
        assert_eq!(drawn.nodes_a_cell, 1);
        assert!(drawn.markup.0.len() < 100_000, "{}", drawn.markup.0.len());
    }

    #[test]
    fn a_thousand_nodes_without_a_shape_share_cells_and_hide_nothing_far() {
        let mixed = |a: usize, b: usize| Some(((a * 2_654_435_761 + b * 40_503) >> 7) as u8 % 9);
        let drawn = blocks(1024, mixed).draw();
        assert!(
            drawn.nodes_a_cell > 1 && drawn.markup.0.len() < 500_000,
            "{}",
            drawn.markup.0.len()
        );
        let one_far = blocks(1024, |a, b| {
            if (a, b) == (700, 3) {
                Some(HOTTEST)
            } else {
                mixed(a, b)
            }
        });
        assert!(one_far.draw().markup.0.contains("class=\"h9\""));
    }

    #[test]
    fn no_nodes_are_no_reason_to_panic() {
        assert!(!blocks(0, |_, _| None).draw().markup.0.contains("path"));
    }

    proptest! {
        #[test]
        fn rectangles_cover_each_cell_once_with_its_step(side in 1usize..12, steps in prop::collection::vec(0u8..3, 144)) {
            let blocks = Blocks::new(side, steps.iter().map(|&step| Some(step)));
            let mut painted = vec![None; side * side];
            for Rectangle { step, x, y, width, height } in blocks.rectangles() {
                for (row, column) in (y..y + height).flat_map(|row| (x..x + width).map(move |column| (row, column))) {
                    prop_assert_eq!(painted[row * side + column].replace(step), None);
                }
            }
            prop_assert_eq!(painted.into_iter().collect::<Option<Vec<u8>>>(), Some(blocks.steps));
        }
    }
}
