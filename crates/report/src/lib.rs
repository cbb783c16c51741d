//! Tables, drawings and pages: pure functions from what the other crates found to text.
//!
//! ```text
//! Machine ──► topo::{table, dot, svg}        Audit ──► audit::table        LatencyMatrix ──► latency::table
//! Vec<Slot> ► spread::{table, list, mask}    Plan ──► plan::table          Outcome, Run ──► outcome, history
//! runs of A and B ──► ab::table                        matrix::Answer ──► probe::matrix
//! KeeperReport ──► prefer::table
//!                  Machine + Audit + LatencyMatrix ──► checkup::{screen, page}
//! ```
//!
//! Foreign text is made harmless here and nowhere else: control characters never reach a terminal, markup never
//! reaches a page. Lines keep to [`Style::width`].

pub mod ab;
mod amount;
pub mod audit;
pub mod cache;
mod change;
pub mod checkup;
pub mod compare;
pub mod doctor;
pub mod document;
pub mod explain;
mod floating;
mod fold;

pub mod history;
pub mod kernels;
mod kinds;
pub mod latency;
mod layout;
pub mod outcome;
pub mod path;
pub mod plan;
pub mod prefer;
pub mod probe;
pub mod runs;
pub mod spread;

mod style;
mod summary;
pub mod topo;
pub mod trace;
mod wrapping;

pub use amount::count;
pub use style::{Role, Style};
pub use wrapping::clean;

/// Names with a description each, one below the other.
pub fn names(rows: &[(&str, &str)], style: &Style) -> String {
    use layout::{Cell, Grid, Side};
    let mut grid = Grid::new(&[("", Side::Left), ("", Side::Left)]).indent(0);
    for (name, description) in rows {
        grid.row(vec![
            Cell::new(style::Role::Subject, name),
            Cell::from(description),
        ]);
    }
    grid.render(style)
}
