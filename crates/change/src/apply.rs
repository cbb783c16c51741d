//! Carrying a plan out: its changes in their order, what each came to, and taking all of it back.

mod attempt;
mod memory;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_machine::{CpuId, CpuSet, NodeId, PciAddress};
use nearfar_proc::error_text;

use crate::change::{Change, Plan, PlanError, Planned, check};
use crate::cpuset_memory::{self, CpusetMemoryError};
use crate::export::UnitBindingError;
use crate::history::{ChangeSetState, state_of};
use crate::journal::{self, ChangeSetId, Header, Intent, JOURNAL_FORMAT, Journal, Record, Written};
use crate::kind::{Setting, wanted, with_line_end};
use crate::outcome::{Applied, Outcome, Tried, UndoResult};
use crate::owner::{self, Mismatch};
use crate::rebind::{self, may_rebind};
use crate::rollback::{OfChangeSet, Writer};
use crate::state::{Lock, StateDir, StateError};
use crate::system::{System, Target, text};
use crate::task_memory::{
    MoveRequest, MoveRequestError, ProgressSink, check_moves, check_plan_room,
};
use attempt::Attempt;

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

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The plan itself is at fault.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The tree cannot be opened.
    #[error("cannot open {}: {}", root.display(), error_text(error))]
    Root {
        root: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    CpusetMemory(#[from] CpusetMemoryError),
    #[error(transparent)]
    UnitBinding(#[from] UnitBindingError),
    #[error(transparent)]
    Memory(#[from] MoveRequestError),
    #[error(transparent)]
    State(#[from] StateError),
    /// The journal could not be written; nothing was changed.
    #[error("cannot write the journal {file}: {reason}; nothing was changed")]
    Journal { file: String, reason: String },
    /// The journal cannot be read.
    #[error("cannot read the journal {file}: {reason}")]
    Unreadable { file: String, reason: String },
    /// A journal holds a line that nearfar did not write, or that was changed since.
    #[error("journal {file}, line {line}: {reason}; rollback cannot trust this change set")]
    Corrupt {
        file: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with the line.
        reason: String,
    },
    /// An earlier change set was killed and has not been rolled back.
    #[error("change set {run} was interrupted before it ended")]
    Unfinished { run: ChangeSetId },
    /// There is no such run.
    #[error("there is no change set {run} in {place}")]
    NoSuchChangeSet { run: ChangeSetId, place: String },
    /// There is none with this label.
    #[error("no change set in {place} has the label {label:?}; {known}")]
    NoSuchLabel {
        label: String,
        place: String,
        /// What labels there are.
        known: String,
    },
    /// Another process changes or undoes something under this label.
    #[error("another step of {label} still runs here")]
    LabelInUse { label: String },
}

/// A plan being carried out.
struct Carrying<'a> {
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
    /// [`rebind::later_paths`] of each function whose driver is bound again, as before the first of them was: with the last of them
    /// undone the order is that one.
    later_paths: HashMap<PciAddress, Vec<PciAddress>>,
    stopped_reason: Option<String>,
}

impl<'a> Carrying<'a> {
    pub(crate) fn new(
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
        let later_paths = devices.map(|device| (device, rebind::later_paths(system, device)));
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

    fn carry_out(mut self, notes: Vec<String>) -> Result<Outcome, ApplyError> {
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
                if let Err(reason) = may_rebind(self.system, *device, driver) {
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
            // The change set holds the lock and has just written: whatever a file shows instead is the kernel's answer to that.
            let (tree, state) = (self.tree, self.state);
            let mut writer = writer(self.system, journal, state, tree, true);
            let attempt = writer.attempt(&mut self.writes, intent.clone());
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
        let mut writer = writer(self.system, journal, self.state, self.tree, false);
        for written in self
            .writes
            .iter_mut()
            .rev()
            .filter(|written| written.is_open())
        {
            let undone = writer.undo(written);
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

fn writer<'a>(
    system: &'a dyn System,
    journal: &'a mut Journal,
    state: &'a StateDir,
    tree: bool,
    force: bool,
) -> Writer<'a> {
    Writer {
        system,
        change_set: Some(OfChangeSet {
            id: journal.run,
            state,
            tree,
            force,
            later: &[],
        }),
        journal: &mut journal.lines,
    }
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

/// The CPUs to fall back on.
struct Nearest<'a> {
    lists: HashMap<NodeId, &'a [CpuId]>,
    /// CPUs an interrupt of the plan is sent to, or was sent to instead.
    used: CpuSet,
    /// CPUs without a free vector.
    full: CpuSet,
}

impl<'a> Nearest<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        let mut used = CpuSet::new();
        for planned in &plan.changes {
            if let Change::InterruptAffinity { cpus, .. } = &planned.change {
                used.extend(cpus.iter());
            }
        }
        let lists = plan
            .nearest
            .iter()
            .map(|nearest| (nearest.node, nearest.cpus.as_slice()))
            .collect();
        Self {
            lists,
            used,
            full: CpuSet::new(),
        }
    }

    /// Takes note that none of these CPUs has a free vector, and gives the next one to try.
    pub(crate) fn after(&mut self, full: &CpuSet, near: Option<NodeId>) -> Option<CpuId> {
        self.full.extend(full.iter());
        let list = self.lists.get(&near?)?;
        let mut free = list.iter().copied().filter(|&cpu| !self.full.contains(cpu));
        let unused = free.clone().find(|&cpu| !self.used.contains(cpu));
        unused.or_else(|| free.next())
    }

    /// Takes note that a CPU was taken.
    pub(crate) fn take(&mut self, cpu: CpuId) {
        self.used.insert(cpu);
    }
}
