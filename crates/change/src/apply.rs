//! Carrying a plan out, change by change.

mod attempt;
mod nearest;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use run::Carrying;

use crate::change::Plan;
use crate::change_set_files::ChangeSetFiles as _;
use crate::change_set_id::ChangeSetId;
use crate::check::{PlanError, check};
use crate::cpuset_memory;
use crate::error::ApplyError;
use crate::history::{ChangeSetState, state_of};
use crate::journal::{self, Header, JOURNAL_FORMAT};
use crate::lock::Lock;
use crate::outcome::Outcome;
use crate::owner;
use crate::state::{StateDir, StateError};
use crate::system::System;
use crate::target::Target;
use crate::task_memory::{ProgressSink, check_moves, check_plan_room};

/// How to carry a plan out.
#[derive(Clone, Debug, Default)]
pub struct ApplyOptions {
    /// All or nothing: a change that cannot be made undoes those made before it.
    pub atomic: bool,
    /// Overwrites values that have changed since the plan was made, goes on top of an interrupted change set, and changes nodes of a
    /// control group although memory policies are lost.
    pub force: bool,
    /// How long to wait for another nearfar to end; `None` refuses at once.
    pub wait: Option<Duration>,
    /// Looked at between changes, and between batches of pages: when true, what was made is undone and the change set ends. For signal handlers.
    pub cancel: Option<Arc<AtomicBool>>,
    /// What the change set is called in the journal: [`Selection::Label`](crate::Selection::Label) finds it again.
    pub label: Option<String>,
    /// Moves memory at this rate at most.
    pub rate_bytes_per_s: Option<u64>,
    /// Called while memory is moved.
    pub progress: Option<ProgressSink>,
}

impl ApplyOptions {
    fn is_cancelled(&self) -> bool {
        self.cancel
            .as_ref()
            .is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// Carries a plan out. Every old value is in the journal, on disk, before it is overwritten; every write is read back.
/// What the plan takes for granted and is no longer so is left alone and said, as is what the kernel manages itself.
///
/// # Errors
/// When the plan is at fault or for another host, the state directory cannot be used, the lock is held, or an earlier
/// run was interrupted and not rolled back (unless forced). Nothing was changed then. What goes wrong with one change
/// is in the outcome.
pub fn apply(plan: &Plan, target: &Target, options: &ApplyOptions) -> Result<Outcome, ApplyError> {
    check(plan)?;
    apply_with(plan, target, options, &target.system()?)
}

/// [`apply`] on a system of the caller's.
///
/// # Errors
/// As [`apply`].
pub fn apply_with(
    plan: &Plan,
    target: &Target,
    options: &ApplyOptions,
    system: &dyn System,
) -> Result<Outcome, ApplyError> {
    check(plan)?;
    let Here { host, boot } = fits(plan, target, system)?;
    if plan.changes.is_empty() {
        // Nothing to write, so no permission is needed.
        return Ok(Outcome::default());
    }
    if !target.is_tree() {
        check_plan_room(plan)?;
    }
    let state = StateDir::make(&target.location())?;
    let _lock = Lock::take(&state, options.wait, options.cancel.as_deref())?;
    let (run, notes) = next_run(&state, boot.as_deref(), options.force)?;
    let header = Header {
        journal_format: JOURNAL_FORMAT,
        id: run,
        boot,
        host,
        plan: digest(plan),
        pid: std::process::id(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        label: options.label.clone(),
    };
    Carrying::new(plan, options, system, target.is_tree(), &state, header).carry_out(notes)
}

/// Whether a plan fits a target: what [`apply`] checks before it writes anything.
///
/// # Errors
/// When the plan has a fault, is of another host, or names what is another device's now; when memory
/// cannot be moved now, or a control group cannot get its nodes.
pub fn check_plan(plan: &Plan, target: &Target) -> Result<(), ApplyError> {
    check(plan)?;
    let system = target.system()?;
    fits(plan, target, &system)?;
    cpuset_memory::check_all(plan, &system, target.is_tree())?;
    match target.is_tree() {
        true => Ok(()),
        false => Ok(check_moves(plan)?),
    }
}

/// How a target describes itself.
struct Here {
    host: Option<String>,
    boot: Option<String>,
}

/// Whether a plan that holds is of this target.
fn fits(plan: &Plan, target: &Target, system: &dyn System) -> Result<Here, ApplyError> {
    let here = Here {
        host: target.host(system),
        boot: target.boot(system),
    };
    if let (Some(made_for), Some(host)) = (&plan.host, &here.host)
        && made_for != host
    {
        return Err(PlanError::OtherHost {
            plan: made_for.clone(),
            here: host.clone(),
        }
        .into());
    }
    if !plan.changes.is_empty() {
        owner::check(plan, system, target.is_tree(), here.boot.as_deref())?;
    }
    Ok(here)
}

/// The number of the next change set. An interrupted one before it may leave values behind that no program chose, so going on is
/// the operator's decision; either way its journal, and with it its old values, stays.
fn next_run(
    state: &StateDir,
    boot: Option<&str>,
    force: bool,
) -> Result<(ChangeSetId, Vec<String>), ApplyError> {
    let runs = state.change_sets()?;
    let mut notes = Vec::new();
    for &run in &runs {
        match journal::read(state, run) {
            Err(_) if force => notes.push(format!(
                "the journal of change set {run} does not hold; it cannot be rolled back"
            )),
            Err(error) => return Err(error),
            Ok(contents) if state_of(&contents, boot) == ChangeSetState::Interrupted => {
                if !force {
                    return Err(ApplyError::Unfinished { run });
                }
                notes.push(format!(
                    "change set {run} was interrupted and not rolled back; this change set goes on top of it"
                ));
            }
            Ok(_) => {}
        }
    }
    let last = runs.last().map_or(0, |run| run.0);
    let next = last.checked_add(1).ok_or_else(|| StateError::Directory {
        place: state.place.clone(),
        reason: format!("run {last} is the highest number there is: move its journal away"),
    })?;
    Ok((ChangeSetId(next), notes))
}

fn digest(plan: &Plan) -> String {
    // A plan is plain data with string keys: it always has a JSON form.
    let json = serde_json::to_vec(plan).unwrap_or_default();
    format!("{:08x}", crc32fast::hash(&json))
}
