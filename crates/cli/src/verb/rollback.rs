//! `nearfar rollback`: undoes a change set of apply, or lists them.

use clap::Args;
use nearfar_change::{
    ApplyError, ChangeSet, ChangeSetId, ChangeSetState, RollbackOptions, RollbackOutcome,
    Selection, Target,
};

use super::apply::{by_who_has_to_act, label, with_next_command};
use super::plan::TargetArgs;
use crate::args::{Colour, Format, FormatArgs, one_of};
use crate::failure::{Failure, Outcome, refused};
use crate::output::{self, under};

/// Undo what apply changed, or list it
///
/// Works after a crash or a kill too, and can be repeated. A value that was changed since is left alone
/// unless --force is given.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar rollback\n  nearfar rollback --change 3\n  nearfar rollback --list\n  \
                             nearfar rollback --list --fail-on in-force || nearfar rollback --all"
)]
pub struct Rollback {
    #[command(flatten)]
    target: TargetArgs,
    /// List the change sets, and what of each is in force or was undone. Changes nothing, and needs no root
    #[arg(long, conflicts_with_all = ["change", "all", "label", "force", "wait"])]
    list: bool,
    /// With --list: exit with 1 if a change set is in force or was interrupted, which `nearfar rollback` would undo
    #[arg(long, value_parser = one_of(IN_FORCE), value_name = "STATE", requires = "list")]
    fail_on: Option<()>,
    /// The change set to undo, as --list numbers them [default: the last one that is not undone]
    #[arg(long, value_name = "N")]
    change: Option<u64>,
    /// Undo every change set that is in force, the newest first; ends at the first that cannot be undone completely
    #[arg(long, conflicts_with = "change")]
    all: bool,
    /// Undo every change set with this label that is in force, the newest first
    #[arg(long, value_name = "TEXT", value_parser = label, conflicts_with_all = ["change", "all"])]
    label: Option<String>,
    /// With --label: it is no error if no change set has the label
    #[arg(long, requires = "label")]
    if_exists: bool,
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
        if self.list {
            return list(&self.target, self.fail_on, &self.format, colour);
        }
        let target = self.target.existing()?;
        let mut rollbacks = Vec::new();
        // What was undone before an error is printed all the same.
        let end = match self.has_several() {
            true => self.undo_all(&target, &mut rollbacks),
            false => self.undo(&target).map(|outcome| rollbacks.push(outcome)),
        };
        if rollbacks.is_empty() {
            return end;
        }
        let is_complete = rollbacks.iter().all(RollbackOutcome::is_complete);
        output::print(&match self.format.format {
            Format::Table => self.tables(&rollbacks, colour),
            Format::Json => self.json(rollbacks)?,
        })?;
        end?;
        match is_complete {
            true => Ok(()),
            false => Err(refused!(
                "not every value was put back\nvalues that changed since the change set are kept; --force puts those back, too"
            )),
        }
    }

    fn undo(&self, target: &Target) -> Result<RollbackOutcome, Failure> {
        let options = RollbackOptions {
            selection: match (self.change, &self.label) {
                (Some(number), _) => Selection::Number(ChangeSetId(number)),
                (None, Some(label)) => Selection::Label(label.clone()),
                (None, None) => Selection::Last,
            },
            force: self.force,
            wait: self.target.wait(),
        };
        match nearfar_change::rollback(target, &options) {
            Err(ApplyError::NoSuchLabel { .. }) if self.if_exists => Ok(RollbackOutcome::nothing()),
            outcome => outcome.map_err(|error| with_next_command(error, &self.target)),
        }
    }

    fn has_several(&self) -> bool {
        self.all || self.label.is_some()
    }

    /// The last answer is that nothing is left, or that of the change set that could not be undone.
    fn undo_all(&self, target: &Target, rollbacks: &mut Vec<RollbackOutcome>) -> Outcome {
        loop {
            let outcome = self.undo(target)?;
            let is_again = outcome.change_set.is_some()
                && rollbacks.last().map(|it| it.change_set) == Some(outcome.change_set);
            if is_again {
                return Err(refused!(
                    "what was changed is as before, and its journal cannot say so: is the disk full?"
                ));
            }
            let is_last = outcome.change_set.is_none() || !outcome.is_complete();
            // That nothing is left is said only where nothing was there.
            if outcome.change_set.is_some() || rollbacks.is_empty() {
                rollbacks.push(outcome);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn tables(&self, rollbacks: &[RollbackOutcome], colour: Colour) -> String {
        let table =
            |outcome| nearfar_report::outcome::rollback(outcome).to_text(&output::style(colour));
        rollbacks.iter().map(table).collect::<Vec<_>>().join("\n")
    }

    fn json(&self, mut rollbacks: Vec<RollbackOutcome>) -> Result<String, Failure> {
        match (self.has_several(), rollbacks.pop()) {
            (false, Some(outcome)) => output::json("rollback/1", None, &outcome),
            (_, last) => {
                rollbacks.extend(last);
                output::json("rollback-all/1", None, &under("rollbacks", rollbacks))
            }
        }
    }
}

/// What --fail-on takes.
const IN_FORCE: &[(&str, &str, ())] = &[("in-force", "`rollback` has something to undo", ())];

/// Reads the journals and prints.
fn list(target: &TargetArgs, fail_on: Option<()>, format: &FormatArgs, colour: Colour) -> Outcome {
    let change_sets = nearfar_change::history(&target.existing()?).map_err(by_who_has_to_act)?;
    let document = || nearfar_report::outcome::history(&change_sets, &target.words());
    format.print(
        colour,
        "history/1",
        None,
        &under("change_sets", &change_sets),
        document,
    )?;
    Failure::on(fail_on.is_some() && change_sets.iter().any(is_in_force))
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
