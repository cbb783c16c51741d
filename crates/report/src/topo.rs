//! The machine itself: as a document, as graphviz text, as a picture.

mod cpus;
pub(crate) mod devices;
pub(crate) mod distances;
mod dot;
pub(crate) mod marks;
pub(crate) mod nodes;
mod paths;
mod svg;
mod timing;
pub(crate) mod unknown;

use nearfar_machine::Machine;

use crate::document::Document;
use crate::style::Role::{Dim, Heading};
use crate::summary::{self, Summary};

pub(crate) use devices::{node_of, notable, place as device_place};
pub use dot::dot;
pub use svg::svg;
pub(crate) use svg::{at, blocks, box_columns, cards, legend, text, theme, ticks};

/// Most warnings shown; a damaged file can have one a line.
const MAX_WARNINGS: usize = 30;

/// The whole machine in sections: nodes, distances, CPUs and caches, devices by node, network queues, NVMe paths,
/// what is unknown and why, and what was wrong with the input.
pub fn document(machine: &Machine) -> Document {
    let mut out = head(machine);
    nodes::section(machine, &mut out);
    distances::section(machine, &mut out);
    timing::section(machine, &mut out);
    cpus::section(machine, &mut out);
    devices::section(machine, &mut out);
    paths::sections(machine, &mut out);
    unknown::section(machine, &mut out);
    warnings(machine, &mut out);
    out
}

/// The lines that every page starts with: whose machine, what it is made of, where the description comes from.
pub(crate) fn head(machine: &Machine) -> Document {
    let mut out = Document::new();
    out.indented(0, "", Heading.text(summary::name(machine)));
    out.indented(0, "", Summary::of(machine).line());
    out.indented(0, "", Dim.text(summary::circumstances(machine).join(", ")));
    out.emulated(machine.origin.emulation.as_ref());
    out
}

/// What was wrong with the input; nothing when nothing was.
fn warnings(machine: &Machine, out: &mut Document) {
    let all = &machine.warnings;
    if all.is_empty() {
        return;
    }
    out.heading("Warnings about the input", "read as far as it goes");
    all.iter()
        .take(MAX_WARNINGS)
        .for_each(|warning| out.warning(warning));
    let hidden = all.len().saturating_sub(MAX_WARNINGS);
    out.more(hidden, "; --format json has all of them");
}
