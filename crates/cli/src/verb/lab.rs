//! `nearfar lab`: the gallery of machines.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::args::{Format, FormatArgs};
use crate::failure::Outcome;
use crate::output;

/// The gallery of described machines (booting them comes with a later version)
#[derive(Args)]
pub struct Lab {
    #[command(subcommand)]
    verb: LabVerb,
}

#[derive(Subcommand)]
enum LabVerb {
    /// List the machines that --source takes by name
    Machines(FormatArgs),
}

#[derive(Serialize)]
struct Gallery {
    machines: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    description: &'static str,
}

impl Lab {
    /// Lists the gallery.
    pub fn run(self) -> Outcome {
        let LabVerb::Machines(format) = self.verb;
        let entries = nearfar_sources::gallery();
        let machines: Vec<_> =
            entries.iter().map(|entry| Entry { name: entry.name, description: entry.description }).collect();
        output::print(&match format.format {
            Format::Json => output::json("machines/1", None, &Gallery { machines })?,
            Format::Table => {
                let width = machines.iter().map(|machine| machine.name.len()).max().unwrap_or(0);
                machines.iter().map(|Entry { name, description }| format!("{name:width$}  {description}\n")).collect()
            }
        })
    }
}
