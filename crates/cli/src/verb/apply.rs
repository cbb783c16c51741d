//! `nearfar apply`: makes the changes of a plan, each journalled before and read back after.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Args;
use nearfar_change::{ApplyError, ApplyOptions};
use nearfar_change::{Change, Plan, Planned};
use nearfar_machine::Origin;

use super::plan::{ChoiceArgs, TargetArgs};
use crate::args::{Colour, Format, FormatArgs, SourceArgs};
use crate::failure::{Failure, Outcome, input, refused};
use crate::output;
use crate::signals;

/// The schema of a plan's JSON form.
pub const PLAN_SCHEMA: &str = "plan/1";

/// A plan larger than this is not one: 8192 interrupts with XPS and RPS need some 10 MiB.
const LARGEST_PLAN: u64 = 256 << 20;

/// Make the changes of a plan
///
/// Without a file the system is audited and what can be fixed is fixed; on a terminal you are asked first. Each old
/// value is on disk before it is overwritten, each new one is read back. A value that changed since the plan was made is
/// left alone, as is what the kernel manages itself. Ctrl-C undoes what was made so far.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar apply --dry-run\n  nearfar apply\n  nearfar apply plan.json --atomic\n  \
                             nearfar rollback"
)]
pub struct Apply {
    /// A plan as `nearfar plan --format json` prints it, or "-" for standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["rules", "devices", "not_devices", "override_device_node", "iopolicy", "to_node_of", "cpuset_mems"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
    /// Undo everything when one change cannot be made
    #[arg(long)]
    atomic: bool,
    /// Overwrite values that changed since the plan was made, go on top of an interrupted change set, and change the nodes of a
    /// control group (--cpuset-mems) although memory policies of its tasks are lost
    #[arg(long)]
    force: bool,
    /// Move memory at this rate at most, in MB/s (10^6 bytes) [default: as fast as the kernel can]. The slower, the less
    /// the process waits
    #[arg(long, value_name = "MB/S", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Call the change set this: `nearfar rollback --label` finds it again
    #[arg(long, value_name = "TEXT", value_parser = label)]
    label: Option<String>,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    format: FormatArgs,
}

impl Apply {
    /// Fails for a rule that does not exist.
    pub fn check_rules(&self) -> Outcome {
        self.choice.check_rules()
    }

    /// What in it is of one host, or changes nothing: it has no place where many hosts are changed.
    pub fn of_one_host(&self) -> Option<&'static str> {
        let of_target = |is_given: bool, option| is_given.then_some(option);
        of_target(self.file.is_some(), "a plan")
            .or_else(|| of_target(self.dry_run, "--dry-run"))
            .or_else(|| of_target(self.target.root.is_some(), "--root"))
            .or_else(|| of_target(self.target.state.is_some(), "--state"))
            .or_else(|| of_target(self.choice.names_process(), "--memory PID"))
            .or_else(|| of_target(self.label.is_some(), "--label"))
    }

    /// Reads or makes the plan, carries it out, prints what came of it.
    pub fn run(self, colour: Colour) -> Outcome {
        let (plan, origin) = match &self.file {
            Some(file) => (read_plan(file)?, None),
            None => self
                .make_plan()
                .map(|(plan, origin)| (plan, Some(origin)))?,
        };
        self.check_rate(&plan)?;
        let style = output::style(colour);
        if self.dry_run {
            nearfar_change::check_plan(&plan, &self.target.target()).map_err(by_who_has_to_act)?;
            return output::print(&match self.format.format {
                Format::Table => nearfar_report::plan::document(&plan).to_text(&style),
                Format::Json => output::json(PLAN_SCHEMA, origin.as_ref(), &plan)?,
            });
        }
        if self.file.is_none() && !self.yes && !plan.changes.is_empty() {
            match self.format.format {
                Format::Table => {
                    output::print(&nearfar_report::plan::document(&plan).to_text(&style))?
                }
                // Standard output is for the answer.
                Format::Json => {
                    let style = nearfar_report::Style {
                        colour: false,
                        ..style
                    };
                    output::say!("{}", nearfar_report::plan::document(&plan).to_text(&style));
                }
            }
            confirm()?;
        }
        let cancel = Some(signals::cancel_flag());
        let options = ApplyOptions {
            atomic: self.atomic,
            force: self.force,
            wait: self.target.wait(),
            cancel,
            label: self.label.clone(),
            rate_bytes_per_s: self.rate.map(|rate| u64::from(rate) * 1_000_000),
            progress: crate::progress::of_memory(),
        };
        let outcome = nearfar_change::apply(&plan, &self.target.target(), &options)
            .map_err(|error| with_next_command(error, &self.target))?;
        // The bar goes before the answer comes.
        drop(options);
        output::print(&match self.format.format {
            Format::Table => {
                // Where nothing was changed they are the answer.
                let left_alone = match plan.changes.is_empty() {
                    true => &plan.left_alone[..],
                    false => &[],
                };
                let words = self.target.words();
                nearfar_report::outcome::document(&outcome, left_alone, &words).to_text(&style)
            }
            Format::Json => output::json("apply/1", None, &outcome)?,
        })?;
        match outcome.is_complete() {
            true => Ok(()),
            false => Err(refused!("not every change of the plan was made")),
        }
    }

    fn check_rate(&self, plan: &Plan) -> Outcome {
        let moves = |planned: &Planned| matches!(planned.change, Change::TaskMemory { .. });
        if self.rate.is_none() || self.choice.is_about_memory() || plan.changes.iter().any(moves) {
            return Ok(());
        }
        Err(input!(
            "--rate limits how fast memory is moved, and this plan moves none: leave it out, or name a process or control group with --memory"
        ))
    }

    fn make_plan(&self) -> Result<(Plan, Origin), Failure> {
        let source = SourceArgs {
            source: Vec::new(),
            root: self.target.root.clone(),
            fake: None,
        };
        let machine = source.read(self.choice.want())?;
        let target = self.target.target();
        Ok((self.choice.plan(&machine, Some(&target))?, machine.origin))
    }
}

/// A fault of the plan is the caller's to fix; everything else is the system's refusal.
pub fn by_who_has_to_act(error: ApplyError) -> Failure {
    match error {
        ApplyError::Plan(_)
        | ApplyError::NoSuchChangeSet { .. }
        | ApplyError::NoSuchLabel { .. }
        | ApplyError::Root { .. } => Failure::input(error),
        ApplyError::UnitBinding(_) => Failure::input(error),
        ApplyError::CpusetMemory(ref reason) if reason.is_input() => Failure::input(error),
        ApplyError::Memory(ref reason) if reason.is_input() => Failure::input(error),
        _ => Failure::refused(error),
    }
}

/// The same, with the command that comes next on this target.
pub fn with_next_command(error: ApplyError, target: &TargetArgs) -> Failure {
    let options = target.words();
    let next = match &error {
        ApplyError::Unfinished { run } => format!(
            "`nearfar rollback{options} --change {run}` undoes it; --force goes on top of it (its old values are kept, \
             and a later rollback undoes both change sets in turn)"
        ),
        ApplyError::NoSuchChangeSet { .. } => {
            format!("`nearfar rollback --list{options}` shows those there are")
        }
        _ => return by_who_has_to_act(error),
    };
    let text = anyhow!("{error}\n{next}");
    match by_who_has_to_act(error) {
        Failure::Input(_) => Failure::Input(text),
        _ => Failure::Refused(text),
    }
}

/// The label of a change set.
///
/// # Errors
/// It is empty, longer than 100 characters, or would spoil a line that shows it.
pub fn label(text: &str) -> Result<String, String> {
    let is_good = !text.trim().is_empty()
        && text.chars().count() <= 100
        && !text.chars().any(char::is_control);
    match is_good {
        true => Ok(text.to_owned()),
        false => Err("1 to 100 characters, none of them a control character".to_owned()),
    }
}

fn confirm() -> Outcome {
    if !std::io::stdin().is_terminal() {
        return Err(input!(
            "cannot ask for confirmation: standard input is not a terminal; pass --yes to make these changes"
        ));
    }
    output::say_part!("\nMake these changes? [y/N] ");
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(Failure::input)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Answered(1)),
    }
}

fn read_plan(file: &Path) -> Result<Plan, Failure> {
    let mut text = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .take(LARGEST_PLAN + 1)
            .read_to_end(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|file| file.take(LARGEST_PLAN + 1).read_to_end(&mut text))
    };
    read.with_context(|| format!("cannot read the plan {}", file.display()))
        .map_err(Failure::Input)?;
    if text.len() as u64 > LARGEST_PLAN {
        return Err(input!(
            "cannot read the plan {}: it is larger than 256 MiB",
            file.display()
        ));
    }
    parse_plan(&text)
        .with_context(|| format!("{} is not a plan", file.display()))
        .map_err(Failure::Input)
}

/// A plan with or without the envelope that `--format json` puts around it.
fn parse_plan(text: &[u8]) -> anyhow::Result<Plan> {
    // First as what stands there, for an error with its line and column.
    let mut value: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(text)?;
    if let Some(schema) = value.remove("schema")
        && schema != PLAN_SCHEMA
    {
        anyhow::bail!(
            "its schema is {schema}, expected {PLAN_SCHEMA:?}: was it printed by another verb or version?"
        );
    }
    for of_the_envelope in ["nearfar", "source"] {
        value.remove(of_the_envelope);
    }
    Ok(serde_json::from_value(value.into())?)
}

#[cfg(test)]
mod tests {
    use nearfar_change::ChangeSetId;

    use super::*;

    #[test]
    fn an_interrupted_change_set_is_answered_with_the_command_that_undoes_it() {
        let target = TargetArgs {
            root: Some(PathBuf::from("a tree")),
            state: None,
            wait: None,
        };
        let run = ChangeSetId(7);
        let refused = with_next_command(ApplyError::Unfinished { run }, &target);
        let message = refused.message();
        let command =
            "`nearfar rollback --root 'a tree' --change 7` undoes it; --force goes on top";
        assert!(message.contains(command), "{message}");
    }
}
