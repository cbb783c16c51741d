//! `nearfar runs rm`.

use clap::Args;

use super::Which;
use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store};
use crate::failure::Outcome;
use crate::output;

/// Remove stored runs and their samples, without confirmation; prints what it removed
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar runs rm 12\n  nearfar runs rm 11 12")]
pub struct Rm {
    /// Their numbers, or "last"
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<Which>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl Rm {
    /// Removes all of them, or none where one is not there.
    pub fn run(self, colour: Colour) -> Outcome {
        let mut store = self.store.open_existing()?;
        let runs = self
            .runs
            .iter()
            .map(|which| which.find(&store))
            .collect::<Result<Vec<_>, _>>()?;
        let removed = store.remove(&runs).map_err(of_store)?;
        output::print(&match self.format.format {
            Format::Table => {
                nearfar_report::runs::removed(&removed).to_text(&output::style(colour))
            }
            Format::Json => output::json("runs-rm/1", None, &removed)?,
        })
    }
}
