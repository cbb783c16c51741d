//! A change set: the plan's changes in their order, what each came to, and taking all of it back.

mod memory;

use std::collections::HashMap;
use std::io;

use nearfar_machine::{CpuId, CpuSet, PciAddress};
use nearfar_proc::error_text;

use super::ApplyOptions;
use super::attempt::{Attempt, attempt};
use super::nearest::Nearest;
use crate::change::{Change, Plan, Planned};
use crate::change_set_id::ChangeSetId;
use crate::cpuset_memory;
use crate::error::ApplyError;
use crate::journal::{Header, Intent, Journal, Record, Written};
use crate::kind::{Setting, wanted, with_line_end};
use crate::outcome::{Applied, Outcome, Tried, UndoResult};
use crate::owner::{self, Mismatch};
use crate::rebind::{may_rebind, nvme};
use crate::state::StateDir;
use crate::system::{System, text};
use crate::task_memory::MoveRequest;
use crate::undo::Undo;

/// A plan being carried out.
pub(super) struct Carrying<'a> {
    plan: &'a Plan,
    options: &'a ApplyOptions,
    system: &'a dyn System,
    tree: bool,
    state: &'a StateDir,
    header: Header,
    /// Begun with the first write: a plan that finds everything in place leaves no change set behind.
    journal: Option<Journal>,
    writes: Vec<Written>,
    nearest: Nearest<'a>,
    /// [`nvme::later_paths`] of each function whose driver is bound again, as before the first of them was: with the last of them
    /// undone the order is that one.
    later_paths: HashMap<PciAddress, Vec<PciAddress>>,
    stopped_reason: Option<String>,
}

impl<'a> Carrying<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        options: &'a ApplyOptions,
        system: &'a dyn System,
        tree: bool,
        state: &'a StateDir,
        header: Header,
    ) -> Self {
        let (nearest, writes) = (Nearest::new(plan), Vec::new());
        let changes = plan.changes.iter().filter(|_| !tree);
        let devices = changes.filter_map(|planned| match planned.change {
            Change::DeviceNode { device, .. } => Some(device),
            _ => None,
        });
        let later_paths = devices.map(|device| (device, nvme::later_paths(system, device)));
        Self {
            plan,
            options,
            system,
            tree,
            state,
            header,
            journal: None,
            writes,
            nearest,
            later_paths: later_paths.collect(),
            stopped_reason: None,
        }
    }

    pub(super) fn carry_out(mut self, notes: Vec<String>) -> Result<Outcome, ApplyError> {
        let mut changes: Vec<Tried> = Vec::with_capacity(self.plan.changes.len());
        let mut undone_reason = None;
        for (planned, index) in self.plan.changes.iter().zip(0..) {
            if undone_reason.is_none()
                && self.stopped_reason.is_none()
                && self.options.is_cancelled()
            {
                undone_reason = Some("interrupted".to_owned());
            }
            let result = if undone_reason.is_some() || self.stopped_reason.is_some() {
                Applied::LeftAlone {
                    reason: "not tried: the change set had ended".to_owned(),
                }
            } else {
                self.one(planned, index)?
            };
            let file = Setting::of(&planned.change).path();
            if let Applied::LeftAlone { reason } | Applied::Failed { error: reason } = &result {
                tracing::warn!(path = file, reason, "not changed");
            }
            let made = result.is_as_planned();
            if self.options.atomic
                && undone_reason.is_none()
                && (!made || self.stopped_reason.is_some())
            {
                undone_reason = Some(format!("change {} ({file}) could not be made", index + 1));
            }
            changes.push(Tried {
                change: planned.change.clone(),
                file,
                result,
            });
        }
        // Interrupted during the last change: the promise is the same as before it.
        if undone_reason.is_none() && self.stopped_reason.is_none() && self.options.is_cancelled() {
            undone_reason = Some("interrupted".to_owned());
        }
        if undone_reason.is_some() {
            self.take_all_back(&mut changes);
        }
        let run = self.finish();
        Ok(Outcome {
            change_set: run,
            changes,
            undone_reason,
            stopped_reason: self.stopped_reason,
            notes,
        })
    }

    /// One change. An error only where nothing at all was written yet.
    fn one(&mut self, planned: &Planned, index: u64) -> Result<Applied, ApplyError> {
        if let Some(request) = MoveRequest::of(&planned.change) {
            return self.move_memory(planned, &request, index);
        }
        let setting = Setting::of(&planned.change);
        if let Change::CpusetMemory { group, nodes } = &planned.change
            && let Err(reason) = cpuset_memory::check_to_apply(
                self.system,
                self.tree,
                group,
                nodes,
                self.options.force,
            )
        {
            let reason = reason.to_string();
            return Ok(Applied::LeftAlone { reason });
        }
        let current = match text(self.system, &setting.path()) {
            Ok(current) => current,
            Err(error) => {
                return Ok(Applied::Failed {
                    error: explain_read(&setting, &error),
                });
            }
        };
        // Looked at again, under the lock: binding a driver again, earlier in this change set, numbers its interrupts again.
        let expected = setting.kind().owner_in_plan(planned);
        let seen = owner::observe(self.system, &setting, &expected, self.tree);
        if let Some(Mismatch { was, now, .. }) = owner::mismatch(&expected, &seen) {
            return Ok(Applied::LeftAlone {
                reason: format!("the plan was made for {was}, it is {now} now"),
            });
        }
        let new = wanted(&planned.change, &current);
        tracing::debug!(
            path = setting.path(),
            old = current.trim_end(),
            new = new.trim_end(),
            "compare"
        );
        if setting.same(&current, &new) {
            return Ok(Applied::AlreadySo {
                now: shown(&current),
            });
        }
        if let Some(before) = &planned.before
            && !self.options.force
            && !setting.same(&current, before)
        {
            let (before, now) = (setting.shown(before), setting.shown(&current));
            let reason = format!(
                "it has changed since the plan was made: it was {before:?} and is {now:?} now"
            );
            return Ok(Applied::LeftAlone { reason });
        }
        let (rebind, later_paths) = match &planned.change {
            Change::DeviceNode {
                device,
                rebind: Some(driver),
                ..
            } if !self.tree => {
                if let Err(error) = may_rebind(self.system, *device, driver) {
                    let reason = error.to_string();
                    return Ok(Applied::LeftAlone { reason });
                }
                let later = self.later_paths.get(device).cloned();
                (Some(driver.clone()), later.unwrap_or_default())
            }
            _ => (None, Vec::new()),
        };
        let intent = Intent {
            write: 0,
            change: index,
            setting,
            old: current,
            new,
            owner: Some(seen.owner),
            rebind,
            later_paths,
        };
        self.write(&planned.change, intent)
    }

    /// Writes, and goes to the next nearest CPU as long as there are no vectors left.
    fn write(&mut self, change: &Change, mut intent: Intent) -> Result<Applied, ApplyError> {
        let mut instead: Option<CpuId> = None;
        loop {
            intent.write = self.writes.len() as u64;
            let journal = begin(&mut self.journal, self.state, self.system, &self.header)?;
            let attempt = attempt(
                self.system,
                self.state,
                journal,
                &mut self.writes,
                intent.clone(),
                self.tree,
            );
            let Attempt::Refused(error) = attempt else {
                if let Some(cpu) = instead {
                    self.nearest.take(cpu);
                }
                return Ok(self.result(change, &intent, attempt, instead));
            };
            if let Change::InterruptAffinity { cpus, near, .. } = change
                && error.raw_os_error() == Some(libc::ENOSPC)
            {
                let full = instead.map_or_else(|| cpus.clone(), |cpu| CpuSet::from_iter([cpu]));
                if let Some(next) = self.nearest.after(&full, *near) {
                    instead = Some(next);
                    intent.new = with_line_end(next.to_string(), &intent.old);
                    if intent.setting.same(&intent.old, &intent.new) {
                        let reason = format!(
                            "CPUs {cpus} have no interrupt vector left, and it is on the next \
                             nearest ({next}) already"
                        );
                        return Ok(Applied::LeftAlone { reason });
                    }
                    continue;
                }
            }
            return Ok(match intent.setting.kind().is_kept(&error) {
                Some(reason) => Applied::LeftAlone { reason },
                None => Applied::Failed {
                    error: explain_write(&intent.setting, &error),
                },
            });
        }
    }

    fn result(
        &mut self,
        change: &Change,
        intent: &Intent,
        attempt: Attempt,
        instead: Option<CpuId>,
    ) -> Applied {
        match attempt {
            Attempt::Made { now, recorded } => {
                if let Err(error) = recorded {
                    self.stop(&error);
                }
                let kind = intent.setting.kind();
                let instead = instead.map(|cpu| {
                    let cpus = change.value();
                    format!("CPU {cpus} has no interrupt vector left: CPU {cpu} is the next nearest that has")
                });
                let note = instead.or_else(|| kind.note(change, self.tree));
                let effective = kind.effective(self.system, &now);
                Applied::Made {
                    before: shown(&intent.old),
                    after: shown(&now),
                    effective,
                    note,
                }
            }
            Attempt::NotJournalled(error) => {
                self.stop(&error);
                let reason = error_text(&error);
                Applied::Failed {
                    error: format!("not written, because the journal cannot be: {reason}"),
                }
            }
            Attempt::TakenBack { error, undo } if undo.is_settled() => Applied::Failed {
                error: format!("{error}; the old value is back"),
            },
            Attempt::TakenBack { error, undo } => {
                let reason = match undo {
                    UndoResult::Failed { error } => format!(": {error}"),
                    _ => String::new(),
                };
                Applied::Failed {
                    error: format!(
                        "{error}; the old value could not be put back{reason}: rollback tries again"
                    ),
                }
            }
            Attempt::Refused(error) => Applied::Failed {
                error: explain_write(&intent.setting, &error),
            },
        }
    }

    fn stop(&mut self, error: &io::Error) {
        let place = self
            .journal
            .as_ref()
            .map_or_else(|| self.state.place.clone(), |journal| journal.place.clone());
        self.stopped_reason = Some(format!(
            "cannot write the journal {place}: {}",
            error_text(error)
        ));
    }

    fn take_all_back(&mut self, changes: &mut [Tried]) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let mut undo = Undo {
            system: self.system,
            state: self.state,
            journal,
            tree: self.tree,
            force: false,
            later: &[],
        };
        for written in self
            .writes
            .iter_mut()
            .rev()
            .filter(|written| written.is_open())
        {
            let undone = undo.undo(written);
            let tried = usize::try_from(written.intent.change)
                .ok()
                .and_then(|change| changes.get_mut(change));
            let Some(tried) = tried else { continue };
            if tried.result.is_made() {
                tried.result = match undone {
                    UndoResult::Restored { to, .. } => Applied::Undone { now: to },
                    undone if undone.is_settled() => Applied::Undone {
                        now: shown(&written.intent.old),
                    },
                    undo => Applied::NotUndone { undo },
                };
            }
        }
    }

    fn finish(&mut self) -> Option<ChangeSetId> {
        let journal = self.journal.as_mut()?;
        if let Err(error) = journal.append(self.system, Record::Finished {})
            && self.stopped_reason.is_none()
        {
            self.stop(&error);
        }
        self.journal.as_ref().map(|journal| journal.run)
    }
}

/// The journal of the change set, begun with its first write.
fn begin<'j>(
    journal: &'j mut Option<Journal>,
    state: &StateDir,
    system: &dyn System,
    header: &Header,
) -> Result<&'j mut Journal, ApplyError> {
    Ok(match journal {
        Some(journal) => journal,
        none => none.insert(Journal::begin(state, system, header.clone())?),
    })
}

/// Text as it is shown: without the line end.
fn shown(text: &str) -> String {
    text.trim_end().to_owned()
}

fn explain_read(setting: &Setting, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => setting.kind().gone().to_owned(),
        _ => format!("cannot be read: {}", error_text(error)),
    }
}

fn explain_write(setting: &Setting, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => " (run as root)",
        _ => setting.kind().refused(error),
    };
    format!("{}{why}", error_text(error))
}
