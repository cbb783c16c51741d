//! The heat map of distances below the rooms.

use maud::html;
use nearfar_machine::{Distance, Machine};

use super::{Drawn, text};
use crate::heat::Scale;
use crate::topo::distances::remark;

/// The heat map; nothing for one node or without a table.
pub(super) fn draw(machine: &Machine, width: i32) -> Option<Drawn> {
    let table = machine.distances.get().filter(|table| table.nodes().len() > 1)?;
    let count = table.nodes().len() as i32;
    let (label, top) = (34, 44);
    let cell_width = ((width - label) / count).clamp(6, 46);
    let cell_height = cell_width.clamp(6, 26);
    let size = (cell_width * 10 / 21).clamp(5, 12);
    let scale = Scale::over_distances(table);
    let place = |index: usize, cell: i32, start: i32| start + index as i32 * cell;
    let markup = html! {
        (text("node", 0, 12, width, 13, "Distances"))
        (text("dim", 84, 12, width - 84, 11, &format!("row: node of the CPU, column: node of the memory; {}", remark(table))))
        @for (column, node) in table.nodes().iter().enumerate() {
            text.dim.middle x=(place(column, cell_width, label) + cell_width / 2) y=(top - 6) font-size=(size) { (node) }
        }
        @for (row, &from) in table.nodes().iter().enumerate() {
            @let y = place(row, cell_height, top);
            @let baseline = y + (cell_height + size * 7 / 10) / 2;
            text.dim.end x=(label - 8) y=(baseline) font-size=(size) { (from) }
            @for (column, (_, distance)) in table.row(from).enumerate() {
                @let x = place(column, cell_width, label);
                @let step = distance.map(|distance| scale.step(distance.0.into()));
                rect class=(step.map_or("hole".to_owned(), |step| format!("h{step}"))) x=(x) y=(y) width=(cell_width - 1) height=(cell_height - 1) {}
                text class=(if step.is_some_and(|step| step > 6) { "middle hot" } else { "middle" })
                    x=(x + cell_width / 2) y=(baseline) font-size=(size) { (figure(distance)) }
            }
        }
    };
    Some(Drawn { markup, height: top + count * cell_height })
}

fn figure(distance: Option<Distance>) -> String {
    distance.map_or_else(String::new, |distance| distance.to_string())
}
