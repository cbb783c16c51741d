//! The same changes on many hosts: canaries first, and no further than to the first host that gets worse by its own measurement.
//!
//! ```text
//!  each host, in one step:   measure ─► apply ─► measure ─► compare ─┬─ kept
//!                                                                    └─ worse: rollback there
//!  all hosts:                canaries ─► the others ─► (one was worse) ─► rollback on those that were changed
//! ```
//!
//! A step that has begun is never cut off: a host would be left between apply and its second measurement.

mod audit;
mod outcome;
mod regression;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_runs::now_s;
use serde::Serialize;

use audit::Noted;
pub use audit::{AuditAction, AuditEntry};
pub use outcome::{Rollout, RolloutOutcome};
pub use regression::{NotComparable, Regression, worst};

use crate::carry_out::{FleetError, HostReason, LastEvents, OnCancel, carry_out, wait_for_started};
use crate::engine::engine_of;
use crate::folder::{Folder, FolderError, HostEvent, Manifest, new_id};
use crate::hosts::HostName;
use crate::step::{Step, change_label};

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
                    audit::write(self.folder, self.by, host, AuditAction::Starting.into())
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
        audit::write(self.folder, self.by, host, noted)
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
            audit::write(self.folder, self.by, host, noted)?;
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
    let entries = audit::read(folder)?.into_iter();
    let last: BTreeMap<HostName, AuditAction> = entries.map(|it| (it.host, it.action)).collect();
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
