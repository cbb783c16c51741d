//! `nearfar history`: the change sets of apply, and what became of them.

use clap::Args;
use nearfar_apply::ChangeSet;
use serde::Serialize;

use super::apply::by_who_has_to_act;
use super::plan::TargetArgs;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::Outcome;
use crate::output;

/// List what apply made, and what of it was undone
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar history\n  nearfar history --format json")]
pub struct History {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct Answer {
    change_sets: Vec<ChangeSet>,
}

impl History {
    /// Reads the journals and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let change_sets =
            nearfar_apply::history(&self.target.existing()?).map_err(by_who_has_to_act)?;
        output::print(&match self.format.format {
            Format::Table => {
                nearfar_report::history::document(&change_sets).to_text(&output::style(colour))
            }
            Format::Json => output::json("history/1", None, &Answer { change_sets })?,
        })
    }
}
