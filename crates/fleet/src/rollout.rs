//! The same changes on many hosts: canaries first, and no further than to the first host that gets worse by its own measurement.
//!
//! ```text
//!  each host, in one step:   measure ─► apply ─► measure ─► compare ─┬─ kept
//!                                                                    └─ worse: rollback there
//!  all hosts:                canaries ─► the others ─► (one was worse) ─► rollback on those that were changed
//! ```
//!
//! A step that has begun is never cut off: a host would be left between apply and its second measurement.

mod outcome;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nearfar_runs::now_s;
pub use outcome::{Rollout, RolloutOutcome};
use serde::{Deserialize, Serialize};

use crate::carry_out::{FleetError, carry_out};
use crate::engine::engine_of;
use crate::folder::{Folder, FolderError, HostEvent, Manifest, new_id};
use crate::hosts::HostName;

/// A line of `audit.jsonl`: who changed what where.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Seconds since 1970.
    pub at_s: f64,
    /// `user@host`: who asked for it.
    pub by: String,
    pub host: HostName,
    pub action: AuditAction,
    pub change_set: Option<u64>,
    pub changes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    Applied,
    /// Applied and undone in the same step, because the host got worse or not every change could be made.
    AppliedAndUndone,
    /// Neither known to be changed nor known to be as it was.
    Unknown,
    NothingToChange,
    RolledBack,
    NotRolledBack,
}

/// What became of all hosts.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RolledOut {
    /// Changed and kept.
    pub kept: Vec<HostName>,
    pub nothing_to_change: Vec<HostName>,
    /// Where it stopped, and why.
    pub stopped_at: Vec<(HostName, String)>,
    /// Changed, and undone because another host got worse.
    pub rolled_back: Vec<HostName>,
    /// Changed, and not undone although another host got worse; with the reason.
    pub not_rolled_back: Vec<(HostName, String)>,
    /// Never touched.
    pub untouched: Vec<HostName>,
}

/// Who asks, and how.
pub struct RolloutRequest<'a> {
    pub folder: &'a Folder,
    pub canaries: usize,
    /// Whether hosts that were changed before one got worse stay as they are.
    pub keeps_changed: bool,
    pub by: &'a str,
    pub cancel: &'a AtomicBool,
}

impl RolloutRequest<'_> {
    /// Changes the canaries, then the others; undoes what was changed when a host gets worse.
    ///
    /// # Errors
    /// The folder cannot be written, or the engine is not there.
    pub fn carry_out(
        &self,
        told: &mut dyn FnMut(&HostName, &HostEvent),
    ) -> Result<RolledOut, FleetError> {
        let hosts = &self.folder.manifest.hosts;
        let canaries = self.canaries.clamp(1, hosts.len());
        let mut rolled_out = RolledOut::default();
        for stage in [&hosts[..canaries], &hosts[canaries..]] {
            if !rolled_out.stopped_at.is_empty() {
                break;
            }
            self.stage(stage, &mut rolled_out, told)?;
        }
        if !rolled_out.stopped_at.is_empty() && !self.keeps_changed {
            let kept = std::mem::take(&mut rolled_out.kept);
            self.undo(&kept, &mut rolled_out)?;
        }
        let touched = self.folder.events()?;
        let is_touched = |host: &&HostName| touched.iter().any(|event| event.host == **host);
        rolled_out.untouched = hosts
            .iter()
            .filter(|host| !is_touched(host))
            .cloned()
            .collect();
        Ok(rolled_out)
    }

    fn stage(
        &self,
        hosts: &[HostName],
        rolled_out: &mut RolledOut,
        told: &mut dyn FnMut(&HostName, &HostEvent),
    ) -> Result<(), FleetError> {
        let mut engine = engine_of(self.folder);
        let mut failure = None;
        let mut judge = |host: &HostName, event: &HostEvent| {
            told(host, event);
            if matches!(event, HostEvent::Started { .. }) {
                return ControlFlow::Continue(());
            }
            match self.judge(host, event, rolled_out) {
                Ok(()) if rolled_out.stopped_at.is_empty() => ControlFlow::Continue(()),
                Ok(()) => ControlFlow::Break(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        carry_out(
            self.folder,
            hosts,
            engine.as_mut(),
            self.by,
            self.cancel,
            &mut judge,
        )?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Notes what became of a host.
    fn judge(
        &self,
        host: &HostName,
        event: &HostEvent,
        rolled_out: &mut RolledOut,
    ) -> Result<(), FolderError> {
        let rollout = self
            .folder
            .result(host)
            .ok()
            .flatten()
            .and_then(|result| result.rollout);
        let mut stop = |reason: String| {
            rolled_out.stopped_at.push((host.clone(), reason.clone()));
            Some(reason)
        };
        let (action, reason) = match (&rollout, event) {
            (Some(Rollout { outcome, .. }), _) => match outcome {
                RolloutOutcome::Kept => {
                    rolled_out.kept.push(host.clone());
                    (AuditAction::Applied, None)
                }
                RolloutOutcome::NothingToChange => {
                    rolled_out.nothing_to_change.push(host.clone());
                    (AuditAction::NothingToChange, None)
                }
                RolloutOutcome::Worse { is_undone, .. }
                | RolloutOutcome::NotMade { is_undone, .. } => {
                    (undone(*is_undone), outcome.problem().and_then(stop))
                }
            },
            (None, HostEvent::Failed { reason } | HostEvent::Lost { reason }) => {
                (AuditAction::Unknown, stop(reason.clone()))
            }
            (None, _) => (
                AuditAction::Unknown,
                stop("its answer says nothing of changes".to_owned()),
            ),
        };
        let (change_set, changes) =
            rollout.map_or((None, Vec::new()), |it| (it.change_set, it.changes));
        self.log(host, action, change_set, changes, reason)
    }

    /// Undoes what these hosts have, by the same engine.
    fn undo(&self, hosts: &[HostName], rolled_out: &mut RolledOut) -> Result<(), FleetError> {
        let mut by_change: BTreeMap<u64, Vec<HostName>> = BTreeMap::new();
        for host in hosts {
            let result = self.folder.result(host)?;
            let change_set = result.and_then(|result| result.rollout?.change_set);
            match change_set {
                Some(change_set) => by_change.entry(change_set).or_default().push(host.clone()),
                None => {
                    let reason = "its answer has no change set".to_owned();
                    rolled_out.not_rolled_back.push((host.clone(), reason));
                }
            }
        }
        for (change_set, hosts) in by_change {
            self.undo_change(change_set, hosts, rolled_out)?;
        }
        Ok(())
    }

    fn undo_change(
        &self,
        change_set: u64,
        hosts: Vec<HostName>,
        rolled_out: &mut RolledOut,
    ) -> Result<(), FleetError> {
        let arguments = [
            "rollback",
            "--change",
            &change_set.to_string(),
            "--format",
            "json",
        ];
        let manifest = Manifest {
            id: new_id(),
            started_at_s: now_s(),
            by: self.by.to_owned(),
            step: ["fleet", "on-host"].map(str::to_owned).to_vec(),
            arguments: arguments.map(str::to_owned).to_vec(),
            hosts: hosts.clone(),
            ..self.folder.manifest.clone()
        };
        let folder = Folder::create(&self.undo_path(change_set), manifest)?;
        let mut engine = engine_of(&folder);
        // Even where this one is cancelled: what was changed is not left half undone.
        let never = AtomicBool::new(false);
        let mut go_on = |_: &HostName, _: &HostEvent| ControlFlow::Continue(());
        carry_out(
            &folder,
            &hosts,
            engine.as_mut(),
            self.by,
            &never,
            &mut go_on,
        )?;
        for host in hosts {
            let reason = match folder.outcome(&host) {
                Some(HostEvent::Answered) => None,
                Some(HostEvent::Failed { reason } | HostEvent::Lost { reason }) => Some(reason),
                _ => Some("no answer came".to_owned()),
            };
            let action = match &reason {
                None => {
                    rolled_out.rolled_back.push(host.clone());
                    AuditAction::RolledBack
                }
                Some(reason) => {
                    rolled_out
                        .not_rolled_back
                        .push((host.clone(), reason.clone()));
                    AuditAction::NotRolledBack
                }
            };
            self.log(&host, action, Some(change_set), Vec::new(), reason)?;
        }
        Ok(())
    }

    fn undo_path(&self, change_set: u64) -> PathBuf {
        let path = self.folder.path().join(format!("undo-{change_set}"));
        let numbered = (2..).map(|number: u32| path.with_extension(number.to_string()));
        let mut all = std::iter::once(path.clone()).chain(numbered);
        all.find(|path| !path.exists()).unwrap_or(path)
    }

    /// Appends to `audit.jsonl`.
    fn log(
        &self,
        host: &HostName,
        action: AuditAction,
        change_set: Option<u64>,
        changes: Vec<String>,
        reason: Option<String>,
    ) -> Result<(), FolderError> {
        let path = self.folder.path().join("audit.jsonl");
        let entry = AuditEntry {
            at_s: now_s(),
            by: self.by.to_owned(),
            host: host.clone(),
            action,
            change_set,
            changes,
            reason,
        };
        let write = || -> std::io::Result<()> {
            let mut line = serde_json::to_vec(&entry)?;
            line.push(b'\n');
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_data()
        };
        write().map_err(|reason| FolderError::File {
            action: "write",
            path: path.display().to_string(),
            reason,
        })
    }
}

fn undone(is_undone: bool) -> AuditAction {
    match is_undone {
        true => AuditAction::AppliedAndUndone,
        false => AuditAction::Unknown,
    }
}

/// The rollback of a whole rollout, later: hosts that were changed and not undone, by what the audit log says last of each.
///
/// # Errors
/// The log or an answer cannot be read; the engine is not there.
pub fn roll_back(request: &RolloutRequest<'_>) -> Result<RolledOut, FleetError> {
    let path = request.folder.path().join("audit.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|reason| FolderError::File {
        action: "read",
        path: path.display().to_string(),
        reason,
    })?;
    let mut last: BTreeMap<HostName, AuditAction> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let entry: AuditEntry = serde_json::from_str(line).map_err(|reason| FolderError::Json {
            path: format!("{} line {}", path.display(), index + 1),
            reason,
        })?;
        last.insert(entry.host, entry.action);
    }
    let is_changed =
        |action: &AuditAction| matches!(action, AuditAction::Applied | AuditAction::NotRolledBack);
    let (changed, others): (Vec<_>, Vec<_>) =
        last.into_iter().partition(|(_, action)| is_changed(action));
    let changed: Vec<HostName> = changed.into_iter().map(|(host, _)| host).collect();
    let mut rolled_out = RolledOut {
        untouched: others.into_iter().map(|(host, _)| host).collect(),
        ..RolledOut::default()
    };
    request.undo(&changed, &mut rolled_out)?;
    Ok(rolled_out)
}
