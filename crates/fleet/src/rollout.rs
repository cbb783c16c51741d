//! The same changes on many hosts: canaries first, and no further than to the first host that gets worse by its own measurement.
//!
//! ```text
//!  each host, in one step:   measure ─► apply ─► measure ─► compare ─┬─ kept
//!                                                                    └─ worse: rollback there
//!  all hosts:                canaries ─► the others ─► (one was worse) ─► rollback on those that were changed
//! ```
//!
//! A step that has begun is never cut off: a host would be left between apply and its second measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_compare::{CompareError, Comparison, OneSided, Options, Side, compare};
use nearfar_runs::export::Whole;
use nearfar_runs::now_s;
use nearfar_statistics::compare::Verdict;
use serde::{Deserialize, Serialize};

use crate::carry_out::{FleetError, HostReason, LastEvents, OnCancel, carry_out, wait_for_started};
use crate::engine::engine_of;
use crate::folder::{
    Folder, FolderError, HostEvent, Manifest, Step, append_line, change_label, new_id, one_line,
    read_lines,
};
use crate::hosts::HostName;

/// How long jobs that are not known are waited for before an undo.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// How long the undo on a host waits for the lock of another nearfar, in seconds.
pub const UNDO_WAIT_S: &str = "60";

/// What became of all hosts.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RolledOut {
    /// Changed and kept.
    pub kept: Vec<HostName>,
    pub nothing_to_change: Vec<HostName>,
    /// Where it stopped, and why.
    pub stopped_at: Vec<HostReason>,
    /// Changed before, and undone.
    pub rolled_back: Vec<HostName>,
    /// Changed or perhaps changed, and not undone; with the reason.
    pub not_rolled_back: Vec<HostReason>,
    /// As they were before the rollout, by its audit log; `fleet rollback` only.
    pub as_before: Vec<HostName>,
    /// No step began there.
    pub untouched: Vec<HostName>,
    /// Whether it was interrupted before every host had its turn.
    pub is_interrupted: bool,
    /// Why it ended before every host had its turn, other than a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Those that may be changed, and did not answer so.
    #[serde(skip)]
    unknown: Vec<HostName>,
}

impl RolledOut {
    fn is_stopped(&self) -> bool {
        !self.stopped_at.is_empty() || self.failure.is_some()
    }

    /// In the order of the list, not in that in which they ended.
    fn sort(&mut self, hosts: &[HostName]) {
        let places: BTreeMap<&HostName, usize> = hosts.iter().zip(0..).collect();
        for named in [
            &mut self.kept,
            &mut self.nothing_to_change,
            &mut self.rolled_back,
        ] {
            named.sort_by_key(|host| places.get(host).copied());
        }
    }
}

/// Who asks, and how.
pub struct RolloutRequest<'a> {
    pub folder: &'a Folder,
    /// The others have their turn when so many hosts were changed and are not worse.
    pub canaries: usize,
    /// Whether hosts that were changed before one got worse stay as they are.
    pub keeps_changed: bool,
    pub by: &'a str,
    pub cancel: &'a AtomicBool,
}

impl RolloutRequest<'_> {
    /// Changes the canaries, then the others; undoes what was changed when a host gets worse.
    ///
    /// When it is cancelled or something fails, no further step begins, and those that have begun are waited for. What failed is in the
    /// answer.
    pub fn carry_out(&self, on_event: &mut dyn FnMut(&HostName, &HostEvent)) -> RolledOut {
        let hosts = &self.folder.manifest.hosts;
        let mut rolled_out = RolledOut::default();
        let mut left = &hosts[..];
        while !rolled_out.is_stopped() && !left.is_empty() && !self.is_cancelled() {
            // A host that has nothing to change proves nothing: the next one is a canary in its place.
            let count = match self.canaries.saturating_sub(rolled_out.kept.len()) {
                0 => left.len(),
                canaries => canaries.min(left.len()),
            };
            let stage;
            (stage, left) = left.split_at(count);
            if let Err(error) = self.stage(stage, &mut rolled_out, on_event) {
                rolled_out.failure = Some(error.to_string());
            }
        }
        let mut to_undo = std::mem::take(&mut rolled_out.unknown);
        if rolled_out.is_stopped() && !self.keeps_changed {
            to_undo.append(&mut rolled_out.kept);
        }
        self.undo(&to_undo, &mut rolled_out);
        let events = self.folder.events().unwrap_or_default();
        let touched: BTreeSet<&HostName> = events.iter().map(|event| &event.host).collect();
        let untouched = hosts.iter().filter(|host| !touched.contains(host));
        rolled_out.untouched = untouched.cloned().collect();
        rolled_out.is_interrupted = self.is_cancelled();
        rolled_out.sort(hosts);
        rolled_out
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::SeqCst)
    }

    fn stage(
        &self,
        hosts: &[HostName],
        rolled_out: &mut RolledOut,
        on_event: &mut dyn FnMut(&HostName, &HostEvent),
    ) -> Result<(), FleetError> {
        let mut engine = engine_of(self.folder);
        let mut failure = None;
        let mut open = BTreeSet::new();
        let mut judge = |host: &HostName, event: &HostEvent| {
            on_event(host, event);
            let noted = match event {
                HostEvent::Starting => {
                    open.insert(host.clone());
                    write_audit(self.folder, self.by, host, AuditAction::Starting.into())
                }
                HostEvent::Started { .. } => Ok(()),
                event => self.judge(host, event, open.remove(host), rolled_out),
            };
            match noted {
                Ok(()) if rolled_out.stopped_at.is_empty() => ControlFlow::Continue(()),
                Ok(()) => ControlFlow::Break(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let carried_out = carry_out(
            self.folder,
            hosts,
            engine.as_mut(),
            self.by,
            (self.cancel, OnCancel::FinishSteps),
            &mut judge,
        );
        // What became of these is not known.
        rolled_out.unknown.extend(open);
        carried_out?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Notes what became of a host.
    fn judge(
        &self,
        host: &HostName,
        event: &HostEvent,
        has_started: bool,
        rolled_out: &mut RolledOut,
    ) -> Result<(), FolderError> {
        let rollout = rollout_of(self.folder, host);
        let problem = match (&rollout, event) {
            (Some(rollout), _) => rollout.outcome.problem(),
            (None, HostEvent::Failed { reason } | HostEvent::Lost { reason, .. }) => {
                Some(reason.clone())
            }
            (None, _) => Some("its answer says nothing of changes".to_owned()),
        };
        let is_not_begun = matches!(
            event,
            HostEvent::Lost {
                is_not_begun: true,
                ..
            }
        );
        let action = match &rollout {
            Some(rollout) => rollout.action(),
            None if has_started && !is_not_begun => AuditAction::Unknown,
            None => AuditAction::NotApplied,
        };
        match action {
            AuditAction::Applied => rolled_out.kept.push(host.clone()),
            AuditAction::NothingToChange => rolled_out.nothing_to_change.push(host.clone()),
            AuditAction::Unknown => rolled_out.unknown.push(host.clone()),
            _ => {}
        }
        if let Some(problem) = &problem {
            rolled_out.stopped_at.push(HostReason {
                host: host.clone(),
                reason: problem.clone(),
            });
        }
        let (change_set, changes) =
            rollout.map_or((None, Vec::new()), |it| (it.change_set, it.changes));
        let noted = Noted {
            action,
            change_set,
            changes,
            reason: problem,
        };
        write_audit(self.folder, self.by, host, noted)
    }

    /// Undoes what these hosts have of this rollout, by the same engine. Hosts that have nothing of it answer so.
    fn undo(&self, hosts: &[HostName], rolled_out: &mut RolledOut) {
        if hosts.is_empty() {
            return;
        }
        let Err(error) = self.try_undo(hosts, rolled_out) else {
            return;
        };
        let named = rolled_out.not_rolled_back.iter().map(|it| &it.host);
        let named: BTreeSet<&HostName> = named.chain(&rolled_out.rolled_back).collect();
        let others = hosts.iter().filter(|host| !named.contains(host));
        let others: Vec<HostReason> = others
            .map(|host| HostReason {
                host: host.clone(),
                reason: error.to_string(),
            })
            .collect();
        rolled_out.not_rolled_back.extend(others);
    }

    /// Waits until the engine has no step of this rollout: one that begins after the undo would change its host again.
    fn until_no_step_is_left(&self) -> Result<(), FleetError> {
        let mut engine = engine_of(self.folder);
        engine.cancel_waiting()?;
        let since = Instant::now();
        while engine.has_active()? {
            if since.elapsed() > MAX_WAIT {
                return Err(FleetError::StepRuns);
            }
            std::thread::sleep(Duration::from_millis(engine.interval_ms()));
        }
        Ok(())
    }

    fn try_undo(&self, hosts: &[HostName], rolled_out: &mut RolledOut) -> Result<(), FleetError> {
        self.until_no_step_is_left()?;
        let rollout = &self.folder.manifest.id;
        let label = change_label(rollout);
        let arguments = [
            "rollback",
            "--label",
            &label,
            "--if-exists",
            "--format",
            "json",
            // Another nearfar may be changing the host.
            "--wait",
            UNDO_WAIT_S,
        ];
        let manifest = Manifest {
            id: new_id(),
            started_at_s: now_s(),
            by: self.by.to_owned(),
            step: Step::Undo {
                rollout: rollout.clone(),
            },
            arguments: arguments.map(str::to_owned).to_vec(),
            hosts: hosts.to_vec(),
            engine: self.folder.manifest.engine.without_measuring(),
            ..self.folder.manifest.clone()
        };
        let folder = Folder::create(&self.undo_path(), manifest)?;
        let mut engine = engine_of(&folder);
        // Even where this one is cancelled: what was changed is not left half undone.
        let never = AtomicBool::new(false);
        let mut go_on = |_: &HostName, _: &HostEvent| ControlFlow::Continue(());
        carry_out(
            &folder,
            hosts,
            engine.as_mut(),
            self.by,
            (&never, OnCancel::FinishSteps),
            &mut go_on,
        )?;
        let events = LastEvents::of(&folder)?;
        for host in hosts {
            let reason = match events.with_answer(host, folder.outcome(host)) {
                Some(HostEvent::Answered) => None,
                Some(HostEvent::Failed { reason } | HostEvent::Lost { reason, .. }) => Some(reason),
                _ => Some("no answer came".to_owned()),
            };
            let action = match &reason {
                None => {
                    rolled_out.rolled_back.push(host.clone());
                    AuditAction::RolledBack
                }
                Some(reason) => {
                    rolled_out.not_rolled_back.push(HostReason {
                        host: host.clone(),
                        reason: reason.clone(),
                    });
                    AuditAction::NotRolledBack
                }
            };
            let noted = Noted {
                reason,
                ..action.into()
            };
            write_audit(self.folder, self.by, host, noted)?;
        }
        Ok(())
    }

    fn undo_path(&self) -> PathBuf {
        let path = self.folder.path().join("undo");
        let numbered = (2..).map(|number: u32| path.with_extension(number.to_string()));
        let mut all = std::iter::once(path.clone()).chain(numbered);
        all.find(|path| !path.exists()).unwrap_or(path)
    }
}

/// The rollback of a whole rollout, later: every host whose step began and that is not known to be as it was. Steps that still run are
/// waited for, and those that have not begun are ended.
///
/// What is known of a host comes from the audit log, from its answer, and from the events: the nearfar that rolled out may have been
/// killed between any two of them.
///
/// # Errors
/// The folder cannot be read or written; the engine is not there.
pub fn roll_back(request: &RolloutRequest<'_>) -> Result<RolledOut, FleetError> {
    let folder = request.folder;
    let mut engine = engine_of(folder);
    wait_for_started(folder, engine.as_mut(), request.by, request.cancel)?;
    let entries = read_audit(folder)?.into_iter();
    let last: BTreeMap<HostName, AuditAction> =
        entries.map(|it| (it.host, it.noted.action)).collect();
    let events = folder.events()?;
    let started = events
        .iter()
        .filter(|event| event.event == HostEvent::Starting);
    let touched: BTreeSet<&HostName> = started
        .map(|event| &event.host)
        .chain(last.keys())
        .collect();
    let (mut rolled_out, mut to_undo) = (RolledOut::default(), Vec::new());
    for host in &folder.manifest.hosts {
        if !touched.contains(host) {
            rolled_out.untouched.push(host.clone());
            continue;
        }
        let action = match last.get(host).copied() {
            // The one that rolled out was gone before it noted what the host answered.
            Some(AuditAction::Starting) | None => {
                rollout_of(folder, host).map_or(AuditAction::Unknown, |rollout| rollout.action())
            }
            Some(action) => action,
        };
        match action.is_as_before() {
            true => rolled_out.as_before.push(host.clone()),
            false => to_undo.push(host.clone()),
        }
    }
    request.undo(&to_undo, &mut rolled_out);
    rolled_out.sort(&folder.manifest.hosts);
    Ok(rolled_out)
}

/// What a host's answer says that its step did.
fn rollout_of(folder: &Folder, host: &HostName) -> Option<Rollout> {
    folder.brief(host).ok().flatten()?.rollout
}

const AUDIT_FILE: &str = "audit.jsonl";
/// Changes of a host that a line has.
const MAX_CHANGES: usize = 1000;

/// Who changed what where: a line of `audit.jsonl` in the folder of a rollout, one for each step, only appended to.
#[derive(Serialize, Deserialize)]
struct AuditEntry {
    /// Seconds since 1970.
    at_s: f64,
    /// `user@host`: who asked for it.
    by: String,
    host: HostName,
    #[serde(flatten)]
    noted: Noted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AuditAction {
    /// A step is about to begin: from here on the host may be changed.
    Starting,
    Applied,
    /// Applied and undone in the same step, because the host got worse or not every change could be made.
    AppliedAndUndone,
    /// Nothing was changed, because of the reason.
    NotApplied,
    /// Neither known to be changed nor known to be as it was.
    Unknown,
    NothingToChange,
    RolledBack,
    NotRolledBack,
}

impl AuditAction {
    /// Whether the host is as it was before the rollout.
    fn is_as_before(self) -> bool {
        matches!(
            self,
            Self::AppliedAndUndone | Self::NotApplied | Self::NothingToChange | Self::RolledBack
        )
    }
}

/// What is said of a step.
#[derive(Serialize, Deserialize)]
struct Noted {
    action: AuditAction,
    /// The change set on the host.
    change_set: Option<u64>,
    /// The files that were written, each with the value before and after.
    changes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<AuditAction> for Noted {
    fn from(action: AuditAction) -> Self {
        Self {
            action,
            change_set: None,
            changes: Vec::new(),
            reason: None,
        }
    }
}

fn write_audit(
    folder: &Folder,
    by: &str,
    host: &HostName,
    noted: Noted,
) -> Result<(), FolderError> {
    let entry = AuditEntry {
        at_s: now_s(),
        by: by.to_owned(),
        host: host.clone(),
        noted: Noted {
            changes: some_changes(noted.changes),
            reason: noted.reason.as_deref().map(one_line),
            ..noted
        },
    };
    append_line(&folder.path().join(AUDIT_FILE), &entry)
}

/// The first of many: the host's answer and its `nearfar rollback --list` have all.
fn some_changes(mut changes: Vec<String>) -> Vec<String> {
    let more = changes.len().saturating_sub(MAX_CHANGES);
    changes.truncate(MAX_CHANGES);
    let mut changes: Vec<String> = changes.iter().map(|change| one_line(change)).collect();
    if more > 0 {
        changes.push(format!("and {more} more"));
    }
    changes
}

/// Every entry, oldest first.
fn read_audit(folder: &Folder) -> Result<Vec<AuditEntry>, FolderError> {
    read_lines(&folder.path().join(AUDIT_FILE))
}

/// What a host's step did to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rollout {
    #[serde(flatten)]
    pub outcome: RolloutOutcome,
    /// The change set on the host, which `nearfar rollback --change` undoes there.
    pub change_set: Option<u64>,
    /// The files that were written, each with the value before and after.
    pub changes: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum RolloutOutcome {
    /// The changes were made and the host did not get worse.
    Kept,
    /// The host had nothing to change.
    NothingToChange,
    /// The host got significantly worse.
    Worse {
        /// The metric; `None` where more samples failed than before.
        metric: Option<String>,
        /// The share in its worst cell; `None` where the value before was 0.
        by: Option<f64>,
        is_undone: bool,
    },
    /// Not every change could be made, or a measurement failed.
    NotMade { reason: String, is_undone: bool },
}

impl Rollout {
    /// What the audit log says of it.
    fn action(&self) -> AuditAction {
        match &self.outcome {
            RolloutOutcome::Kept => AuditAction::Applied,
            RolloutOutcome::NothingToChange => AuditAction::NothingToChange,
            RolloutOutcome::Worse { is_undone, .. } | RolloutOutcome::NotMade { is_undone, .. } => {
                match (is_undone, self.change_set) {
                    (false, _) => AuditAction::Unknown,
                    (true, Some(_)) => AuditAction::AppliedAndUndone,
                    (true, None) => AuditAction::NotApplied,
                }
            }
        }
    }
}

impl RolloutOutcome {
    /// Why the rollout stops at such a host; `None` where it goes on.
    pub fn problem(&self) -> Option<String> {
        let (problem, is_undone) = match self {
            Self::Kept | Self::NothingToChange => return None,
            Self::NotMade { reason, is_undone } => (reason.clone(), is_undone),
            Self::Worse {
                metric,
                by,
                is_undone,
            } => {
                let metric = metric.as_deref().unwrap_or("failed samples");
                let problem = match by {
                    Some(by) => format!("it got worse: {metric} by {:.0} %", 100.0 * by),
                    None => format!("it got worse: {metric}, which was 0"),
                };
                let undone = if *is_undone { "; undone" } else { "" };
                (format!("{problem}{undone}"), is_undone)
            }
        };
        Some(match is_undone {
            true => problem,
            false => format!("{problem}; the changes could not be undone"),
        })
    }
}

/// What got worse on a host.
#[derive(Clone, PartialEq, Debug)]
pub struct Regression {
    /// `None` where more samples failed than before.
    pub metric: Option<String>,
    /// Whether it is the primary metric of its experiment.
    pub is_primary: bool,
    /// As a share; infinite where the value before was 0.
    pub by: f64,
}

/// Why two measurements cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum NotComparable {
    #[error("{after} after the changes and {before} before cannot be compared")]
    Number { before: String, after: String },
    #[error("{cells} have too few samples to tell whether {metric} got worse: measure more")]
    TooFewSamples { cells: String, metric: String },
    #[error("the measurement after the changes has no {metric} of the cell {cell}")]
    CellIsGone { cell: String, metric: String },
    #[error(transparent)]
    Compare(#[from] CompareError),
}

/// What got significantly worse by more than the margin, a share: the worst cell of the primary metric, else that of any other. The runs
/// before and after belong together by their order.
///
/// # Errors
/// There is not the same number of runs, two have nothing in common, or they cannot tell.
pub fn worst(
    before: &[Whole],
    after: &[Whole],
    margin: f64,
) -> Result<Option<Regression>, NotComparable> {
    if before.len() != after.len() {
        return Err(NotComparable::Number {
            before: count(before.len(), "run"),
            after: count(after.len(), "run"),
        });
    }
    let options = Options {
        margin,
        metrics: Vec::new(),
        // The changes are the point of it, and free memory is part of a machine.
        across: nearfar_compare::Kind::all().into_iter().collect(),
        // One measurement before and one after is all there is; a false alarm undoes a change, which harms nothing.
        judges_single_runs: true,
    };
    let mut all = Vec::new();
    for (before, after) in before.iter().zip(after) {
        let sides = [Side::of_run("before", before), Side::of_run("after", after)];
        let comparison = compare(&sides, &options)?;
        check(&comparison)?;
        all.extend(regressions(&comparison));
    }
    let all = all.into_iter().filter(|worse| worse.by > margin);
    Ok(all.max_by(|a, b| {
        let order = a.is_primary.cmp(&b.is_primary);
        order.then(a.by.total_cmp(&b.by))
    }))
}

/// Fails where the primary metric could not have got worse, whatever was measured.
fn check(comparison: &Comparison) -> Result<(), NotComparable> {
    let Some(metric) = comparison.metrics.first().map(|metric| &metric.name) else {
        return Ok(());
    };
    let is_gone = |it: &&OneSided| it.only_in == "before" && it.metrics.contains(metric);
    if let Some(gone) = comparison.one_sided.iter().find(is_gone) {
        return Err(NotComparable::CellIsGone {
            cell: gone.cell.to_string(),
            metric: metric.clone(),
        });
    }
    let rows = comparison.rows.iter().filter(|row| row.metric == *metric);
    let too_few = rows.filter(|row| row.compared.verdict == Verdict::TooFewSamples);
    match too_few.count() {
        0 => Ok(()),
        cells => Err(NotComparable::TooFewSamples {
            cells: count(cells, "cell"),
            metric: metric.clone(),
        }),
    }
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn regressions(comparison: &Comparison) -> Vec<Regression> {
    let rows = comparison.rows.iter().filter_map(|row| {
        let mut metrics = comparison.metrics.iter().enumerate();
        let (index, metric) = metrics.find(|(_, metric)| metric.name == row.metric)?;
        Some(Regression {
            metric: Some(row.metric.clone()),
            // It is the first.
            is_primary: index == 0,
            by: row.regression(metric.better)?,
        })
    });
    let failed = comparison.failed_cells.iter().filter_map(|cell| {
        Some(Regression {
            metric: None,
            is_primary: false,
            by: cell.regression?,
        })
    });
    rows.chain(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worse(by: Option<f64>, is_undone: bool) -> RolloutOutcome {
        RolloutOutcome::Worse {
            metric: Some("elapsed_s".to_owned()),
            by,
            is_undone,
        }
    }

    #[test]
    fn a_host_that_got_worse_says_in_what() {
        for (outcome, problem) in [
            (
                worse(Some(0.251), true),
                "it got worse: elapsed_s by 25 %; undone",
            ),
            (
                worse(None, false),
                "it got worse: elapsed_s, which was 0; the changes could not be undone",
            ),
        ] {
            assert_eq!(outcome.problem().as_deref(), Some(problem));
            let text = serde_json::to_string(&outcome).unwrap();
            let read: RolloutOutcome = serde_json::from_str(&text).unwrap();
            assert_eq!(read, outcome);
        }
        assert_eq!(RolloutOutcome::Kept.problem(), None);
    }
}
