//! `nearfar rollback --list`: the change sets of apply, and what became of them.

use clap::ValueEnum;
use nearfar_change::{ChangeSet, ChangeSetState};
use serde::Serialize;

use crate::args::{Colour, Format};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::verb::apply::by_who_has_to_act;
use crate::verb::plan::TargetArgs;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// `rollback` has something to undo
    InForce,
}

#[derive(Serialize)]
struct Answer {
    change_sets: Vec<ChangeSet>,
}

/// Reads the journals and prints.
pub fn print(
    target: &TargetArgs,
    fail_on: Option<FailOn>,
    format: Format,
    colour: Colour,
) -> Outcome {
    let change_sets = nearfar_change::history(&target.existing()?).map_err(by_who_has_to_act)?;
    let is_one_in_force = change_sets.iter().any(is_in_force);
    output::print(&match format {
        Format::Table => nearfar_report::outcome::history(&change_sets, &target.words())
            .to_text(&output::style(colour)),
        Format::Json => output::json("history/1", None, &Answer { change_sets })?,
    })?;
    match fail_on {
        Some(FailOn::InForce) if is_one_in_force => Err(Failure::AskedToFail),
        _ => Ok(()),
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
