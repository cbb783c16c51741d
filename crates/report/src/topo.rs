//! The machine itself: as a table, as graphviz text, as a picture.

mod cpus;
mod devices;
pub(crate) mod distances;
mod dot;
pub(crate) mod marks;
mod nodes;
mod paths;
mod svg;
pub(crate) mod unknown;

use nearfar_machine::Machine;

use crate::document::{Document, Text};
use crate::layout::{heading, paragraph};
use crate::style::{Role, Style};
use crate::summary::{self, Summary};

pub(crate) use devices::{notable, place as device_place};
pub use dot::dot;
pub use svg::svg;
pub(crate) use svg::{THEME as SVG_THEME, at, blocks, cards, ink, legend, text, ticks};

/// Most warnings shown; a damaged file can have one a line.
const MOST_DIAGNOSTICS: usize = 30;

/// The whole machine in sections: nodes, distances, CPUs and caches, devices by node, network queues, NVMe paths,
/// what is unknown and why, and what was wrong with the input.
pub fn table(machine: &Machine, style: &Style) -> String {
    let mut out = head(machine).to_text(style);
    out.push_str(&nodes::section(machine, style));
    out.push_str(&distances::section(machine, style));
    out.push_str(&cpus::section(machine, style));
    out.push_str(&devices::section(machine, style));
    out.push_str(&paths::section(machine, style));
    out.push_str(&unknown::section(machine, style));
    out.push_str(&warnings(machine, style));
    out
}

/// The lines that every page starts with: whose machine, what it is made of, where the description comes from.
pub(crate) fn head(machine: &Machine) -> Document {
    let mut out = Document::new();
    out.indented(0, "", Text::new(Role::Heading, summary::name(machine)));
    out.indented(0, "", Summary::of(machine).line());
    let circumstances = summary::circumstances(machine).join(", ");
    out.indented(0, "", Text::new(Role::Dim, circumstances));
    if let Some(emulation) = &machine.origin.emulation {
        let emulated = Text::new(Role::Notice, "emulated: ");
        out.indented(0, emulated, Text::new(Role::Notice, emulation.to_string()));
    }
    out
}

/// What was wrong with the input; nothing when nothing was.
pub(crate) fn warnings(machine: &Machine, style: &Style) -> String {
    let all = &machine.warnings;
    if all.is_empty() {
        return String::new();
    }
    let mut out = heading(style, "Warnings about the input", "read as far as it goes");
    for warning in all.iter().take(MOST_DIAGNOSTICS) {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Warning, "! "),
            Role::Plain,
            &warning.to_string(),
        ));
    }
    if all.len() > MOST_DIAGNOSTICS {
        let more = format!(
            "and {} more; --format json has all of them",
            all.len() - MOST_DIAGNOSTICS
        );
        out.push_str(&paragraph(style, 4, (Role::Dim, ""), Role::Dim, &more));
    }
    out
}
