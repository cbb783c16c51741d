//! A heat map of so many nodes that a cell has no room for its figure: one path a colour, equal neighbours merged.
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
use nearfar_machine::Distance;

use crate::document::{HOTTEST, Scale};

/// More nodes than this have no cell with a figure each.
pub(crate) const MAX_CELLS: usize = 64;
/// Most rectangles of a map: some 15 bytes each.
const MAX_RECTANGLES: usize = 20_000;
/// The "step" of an unknown pair.
const HOLE: u8 = HOTTEST + 1;

/// The class of a cell: its step, or that it has none.
pub(crate) fn class(step: Option<u8>) -> String {
    step.map_or_else(
        || "hole".to_owned(),
        |step| format!("h{}", step.min(HOTTEST)),
    )
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
        let mut steps: Vec<u8> = cells
            .take(side * side)
            .map(|step| step.unwrap_or(HOLE).min(HOLE))
            .collect();
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
            done.extend(
                open.into_iter()
                    .map(|(key, top)| Rectangle::new(key, top, y)),
            );
            open = runs;
        }
        let bottom = self.side;
        done.extend(
            open.into_iter()
                .map(|(key, top)| Rectangle::new(key, top, bottom)),
        );
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
