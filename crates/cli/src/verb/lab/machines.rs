//! `nearfar lab machines`: the gallery.

use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs};
use crate::failure::Outcome;
use crate::output;

#[derive(Serialize)]
struct Gallery {
    machines: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    description: &'static str,
}

/// Lists the gallery.
pub fn list(format: &FormatArgs, colour: Colour) -> Outcome {
    let entries = nearfar_sources::gallery();
    let machines: Vec<_> = entries
        .iter()
        .map(|entry| Entry {
            name: entry.name,
            description: entry.description,
        })
        .collect();
    output::print(&match format.format {
        Format::Json => output::json("machines/1", None, &Gallery { machines })?,
        Format::Table => {
            let rows: Vec<_> = machines
                .iter()
                .map(|machine| (machine.name, machine.description))
                .collect();
            nearfar_report::names(&rows).to_text(&output::style(colour))
        }
    })
}
