//! Documents made from what the other crates found: a pure function a kind of answer, three writers for all of them.
//!
//! ```text
//! Machine, Audit, Plan, Outcome, Traced, Look, Survey, Run, Comparison, ...
//!        │ topo, audit, plan, outcome, trace, top, latency, runs, compare, ...
//!        ▼
//!     Document ──► text, HTML, Markdown, SVG          Machine ──► topo::{dot, svg}
//! ```
//!
//! Foreign text is made harmless here and nowhere else: control characters never reach a terminal, markup never
//! reaches a page. Lines keep to [`Style::width`].

pub mod ab;
mod amount;
pub mod audit;
pub mod bisect;
pub mod case;
pub mod checkup;
mod command;
pub mod compare;
mod compared;
pub mod document;
pub mod explain;
pub mod fleet;
mod io;
pub mod lab;
pub mod latency;
pub mod outcome;
pub mod path;
pub mod plan;
pub mod prefer;
pub mod probe;
mod rps;
pub mod runs;
mod scale;
pub mod spread;
mod style;
mod summary;
mod tags;
pub mod tasks;
pub mod top;
pub mod topo;
pub mod trace;

pub use amount::{bytes, count};
pub use document::clean;
pub use style::{Role, Style};

/// Names with a description each, one below the other.
pub fn names(rows: &[(&str, &str)]) -> document::Document {
    let mut table = document::Table::of(["", ""]).indent(0);
    for (name, description) in rows {
        table.row(document::cells![Role::Subject.text(name), *description]);
    }
    table.into()
}
