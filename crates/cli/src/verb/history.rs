//! `nearfar history`: the change sets of apply, and what became of them.

use clap::{Args, ValueEnum};
use nearfar_apply::{ChangeSet, ChangeSetState};
use serde::Serialize;

use super::apply::by_who_has_to_act;
use super::plan::TargetArgs;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// List what apply changed, and what of it was undone
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar history\n  nearfar history --format json\n  \
                             nearfar history --fail-on in-force || nearfar rollback --all"
)]
pub struct History {
    #[command(flatten)]
    target: TargetArgs,
    /// Exit with 1 if a change set is in force or was interrupted: what `nearfar rollback` would undo
    #[arg(long, value_enum, value_name = "STATE")]
    fail_on: Option<FailOn>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// `rollback` has something to undo
    InForce,
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
        let is_one_in_force = change_sets.iter().any(is_in_force);
        output::print(&match self.format.format {
            Format::Table => {
                nearfar_report::history::document(&change_sets).to_text(&output::style(colour))
            }
            Format::Json => output::json("history/1", None, &Answer { change_sets })?,
        })?;
        match self.fail_on {
            Some(FailOn::InForce) if is_one_in_force => Err(Failure::AskedToFail),
            _ => Ok(()),
        }
    }
}

/// Whether something of it is in force, or may be.
fn is_in_force(change_set: &ChangeSet) -> bool {
    matches!(
        change_set.state,
        ChangeSetState::Made
            | ChangeSetState::Interrupted
            | ChangeSetState::InProgress
            | ChangeSetState::Unreadable { .. }
    )
}
