//! Lines between the boxes of machines with two or four nodes, each with its distance.

use maud::{Markup, html};
use nearfar_machine::Machine;

use super::boxes::Grid;
use crate::topo::distances::both_ways;

/// The links; `boxes` are left edge, top and height of each box.
pub(super) fn draw(machine: &Machine, grid: &Grid, boxes: &[(i32, i32, i32)]) -> Markup {
    let drawable = matches!(boxes.len(), 2 | 4) && grid.columns == 2;
    if !drawable {
        return html! {};
    }
    let mut links = Vec::new();
    for from in 0..boxes.len() {
        for to in from + 1..boxes.len() {
            let label = both_ways(machine, machine.nodes[from].id, machine.nodes[to].id);
            links.extend(label.map(|label| link(grid.width, boxes, (from, to), &label)));
        }
    }
    html! { @for link in &links { (link) } }
}

/// From the middle of the side, or the corner, that faces the other box.
fn link(width: i32, boxes: &[(i32, i32, i32)], (from, to): (usize, usize), label: &str) -> Markup {
    let ((ax, ay, ah), (bx, by, bh)) = (boxes[from], boxes[to]);
    let (x1, y1, x2, y2) = match (ax == bx, ay == by) {
        (_, true) => (ax + width, ay + ah / 2, bx, by + bh / 2),
        (true, _) => (ax + width / 2, ay + ah, bx + width / 2, by),
        _ if ax < bx => (ax + width - 4, ay + ah - 4, bx + 4, by + 4),
        _ => (ax + 4, ay + ah - 4, bx + width - 4, by + 4),
    };
    // Crossing lines have their labels on either side of the crossing.
    let share = if ax == bx || ay == by { 0.5 } else { 0.28 };
    let along = |start: i32, end: i32| start + (f64::from(end - start) * share) as i32;
    let (x, y) = (along(x1, x2), along(y1, y2));
    let plate = label.len() as i32 * 8 + 8;
    html! {
        line.link x1=(x1) y1=(y1) x2=(x2) y2=(y2) {}
        rect.plate x=(x - plate / 2) y=(y - 10) width=(plate) height="20" rx="4" {}
        text.far x=(x) y=(y + 5) font-size="13" { (label) }
    }
}
