//! `nearfar rollback`: undoes a change set of apply.

use anyhow::anyhow;
use clap::Args;
use nearfar_apply::{ChangeSetId, RollbackOptions};

use super::apply::by_who_has_to_act;
use super::plan::TargetArgs;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Undo what apply made: every file gets the value it had before
///
/// Works after a crash or a kill too, and can be repeated. A value that was changed since is left alone
/// unless --force is given.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar rollback\n  nearfar rollback --change 3")]
pub struct Rollback {
    #[command(flatten)]
    target: TargetArgs,
    /// The change set to undo, as `nearfar history` lists them [default: the last one that is not undone]
    #[arg(long, value_name = "N")]
    change: Option<u64>,
    /// Also overwrite values that were changed since, and those of interrupts whose handlers have other names
    /// now. What is another device's is never written
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: FormatArgs,
}

impl Rollback {
    /// Undoes and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let options = RollbackOptions {
            run: self.change.map(ChangeSetId),
            force: self.force,
            wait: self.target.wait(),
        };
        let outcome = nearfar_apply::rollback(&self.target.existing()?, &options)
            .map_err(by_who_has_to_act)?;
        output::print(&match self.format.format {
            Format::Table => {
                nearfar_report::outcome::rollback(&outcome).to_text(&output::style(colour))
            }
            Format::Json => output::json("rollback/1", None, &outcome)?,
        })?;
        match outcome.is_complete() {
            true => Ok(()),
            false => Err(Failure::Refused(anyhow!(
                "not every value was put back\nvalues that changed since the change set are kept; --force puts those back, too"
            ))),
        }
    }
}
