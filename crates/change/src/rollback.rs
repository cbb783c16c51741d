//! Undoing a change set or a lease: its writes, newest first, each put back whatever point it had come to. Serves rollback, apply when it
//! takes a change set back, and leases.
//!
//! ```text
//!  the file now            then
//!  the old bytes           nothing to do
//!  what was written        old bytes written, read back
//!  a mix of both           the same (a tree's file, killed between writing and shortening it)
//!  all, where the old bytes are an empty cpuset: before, as the kernel takes both for the same; forced, the old bytes are written
//!  anything else           another program changed it since: kept, unless forced
//!  whatever it is, and a later change set wrote it and is in force: that one's, kept, unless forced
//!  not there               went with its device: nothing to do
//!
//!  Where its number or name is another device's now, nothing is written whatever the file shows.
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use nearfar_machine::PciAddress;
use nearfar_proc::error_text;

use crate::apply::ApplyError;
use crate::change::Owner;
use crate::history::{ChangeSetState, state_of};
use crate::journal::{
    self, ChangeSetId, Contents, Intent, Journal, LineFile, Progress, Record, Written,
};
use crate::kind::{DeviceNode, Setting, TaskMemory, shows_another, with_line_end};
use crate::outcome::{Reverted, RollbackOutcome, UndoResult};
use crate::owner::{self, Mismatch};
use crate::rebind::{self, bound_driver, may_rebind, rebind};
use crate::state::{Lock, StateDir};
use crate::system::{System, Target, text};
use crate::{cpuset_memory, task_memory};

/// Which change set to undo.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Selection {
    /// The last one of which a write still stands.
    #[default]
    Last,
    /// The last one of these with this label.
    Label(String),
    /// This one.
    Number(ChangeSetId),
}

impl Selection {
    fn number(&self) -> Option<ChangeSetId> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Last | Self::Label(_) => None,
        }
    }

    fn has(&self, contents: &Contents) -> bool {
        match self {
            Self::Label(label) => contents
                .header
                .as_ref()
                .is_some_and(|header| header.label.as_ref() == Some(label)),
            Self::Last | Self::Number(_) => true,
        }
    }

    /// The error where there is no such change set; `None` where there need not be one.
    fn missing(&self, place: String, labels: &BTreeSet<String>) -> Option<ApplyError> {
        match self {
            Self::Last => None,
            Self::Label(label) => Some(ApplyError::NoSuchLabel {
                label: label.clone(),
                place,
                known: match labels.is_empty() {
                    true => "none has a label".to_owned(),
                    false => {
                        let labels: Vec<String> = labels.iter().cloned().collect();
                        nearfar_machine::alternatives(label, &labels)
                    }
                },
            }),
            Self::Number(run) => Some(ApplyError::NoSuchChangeSet { run: *run, place }),
        }
    }
}

/// How to undo.
#[derive(Clone, Debug, Default)]
pub struct RollbackOptions {
    pub selection: Selection,
    /// Writes the old value even where another program has changed it since.
    pub force: bool,
    /// How long to wait for another nearfar to end; `None` refuses at once.
    pub wait: Option<Duration>,
}

/// Undoes a change set of apply: every file it wrote gets the bytes it had before. Can be killed and repeated at any point; a
/// second one finds nothing to do. Runs on top of each other are undone one by one, the newest first.
///
/// # Errors
/// When the state directory cannot be used, the lock is held, the change set does not exist, or its journal does not hold.
/// What goes wrong with one write is in the outcome.
pub fn rollback(target: &Target, options: &RollbackOptions) -> Result<RollbackOutcome, ApplyError> {
    rollback_with(target, options, &target.system()?)
}

/// [`rollback`] on a system of the caller's.
///
/// # Errors
/// As [`rollback`].
pub fn rollback_with(
    target: &Target,
    options: &RollbackOptions,
    system: &dyn System,
) -> Result<RollbackOutcome, ApplyError> {
    let nothing = RollbackOutcome::nothing();
    let Some(state) = StateDir::find(&target.location())? else {
        return match options.selection.missing(target.place(), &BTreeSet::new()) {
            Some(error) => Err(error),
            None => Ok(nothing),
        };
    };
    let _lock = Lock::take(&state, options.wait, None)?;
    let boot = target.boot(system);
    let Choice {
        chosen,
        later,
        mut notes,
    } = choose(&state, &options.selection, boot.as_deref())?;
    let Some((run, mut contents)) = chosen else {
        return Ok(RollbackOutcome { notes, ..nothing });
    };
    if contents.extent.torn {
        notes.push(
            "the last line of the journal was torn by a crash: what it announced was not done"
                .to_owned(),
        );
    }
    let mut changes = Vec::new();
    match state_of(&contents, boot.as_deref()) {
        ChangeSetState::GoneWithReboot => {
            let gone = contents
                .writes
                .iter()
                .rev()
                .filter(|written| written.is_open());
            changes.extend(gone.map(|written| reverted(written, UndoResult::GoneWithReboot)));
        }
        ChangeSetState::Made | ChangeSetState::Interrupted => {
            let mut journal = Journal::resume(&state, run, &contents)?;
            let mut writer = Writer {
                system,
                journal: &mut journal.lines,
                change_set: Some(OfChangeSet {
                    id: run,
                    state: &state,
                    tree: target.is_tree(),
                    force: options.force,
                    later: &later,
                }),
            };
            for written in contents
                .writes
                .iter_mut()
                .rev()
                .filter(|written| written.is_open())
            {
                let result = writer.undo(written);
                changes.push(reverted(written, result));
            }
            if !contents.finished {
                // Settled or not, it has been looked at: it no longer stands in the way of the next apply.
                let _ = journal.append(system, Record::Finished {});
            }
        }
        _ => return Ok(RollbackOutcome { notes, ..nothing }),
    }
    Ok(RollbackOutcome {
        change_set: Some(run),
        changes,
        notes,
    })
}

/// The change set to undo, and what was found on the way to it.
struct Choice {
    chosen: Option<(ChangeSetId, Contents)>,
    /// Runs after it, newest first.
    later: Vec<(ChangeSetId, Contents)>,
    notes: Vec<String>,
}

fn choose(
    state: &StateDir,
    selection: &Selection,
    boot: Option<&str>,
) -> Result<Choice, ApplyError> {
    let asked = selection.number();
    let mut damaged = None;
    let (mut has_one, mut labels) = (false, BTreeSet::new());
    let mut choice = Choice {
        chosen: None,
        later: Vec::new(),
        notes: Vec::new(),
    };
    for run in state.change_sets()?.into_iter().rev() {
        if asked.is_some_and(|asked| run < asked) {
            break;
        }
        let contents = match journal::read(state, run) {
            // Asked for an older change set, a damaged later one does not matter, except that it may have written since.
            Err(_) if asked.is_some_and(|asked| asked != run) => continue,
            // It may have the label, where it does not say another one. Those that certainly have it are undone first.
            Err(error) if let Selection::Label(label) = selection => {
                let header = journal::header(state, run);
                if header.is_none_or(|header| header.label.as_ref() == Some(label)) {
                    damaged.get_or_insert(error);
                }
                continue;
            }
            read => read?,
        };
        if asked == Some(run) {
            choice.chosen = Some((run, contents));
            return Ok(choice);
        }
        let is_selected = asked.is_none() && selection.has(&contents);
        has_one |= is_selected;
        labels.extend(contents.header.as_ref().and_then(|it| it.label.clone()));
        match state_of(&contents, boot) {
            ChangeSetState::Made | ChangeSetState::Interrupted if is_selected => {
                choice.chosen = Some((run, contents));
                return Ok(choice);
            }
            ChangeSetState::GoneWithReboot if is_selected => choice.notes.push(format!(
                "change set {run} was made before the last reboot, which has reset what it wrote"
            )),
            _ => {}
        }
        choice.later.push((run, contents));
    }
    if let Some(error) = damaged {
        return Err(error);
    }
    match selection.missing(state.place.clone(), &labels) {
        Some(error) if !has_one => Err(error),
        _ => Ok(choice),
    }
}

/// The first of these runs whose write to the same file stands and made it say this.
pub(crate) fn writer<'a>(
    now: &str,
    written: &Written,
    mut runs: impl Iterator<Item = (ChangeSetId, &'a Contents)>,
) -> Option<ChangeSetId> {
    let setting = &written.intent.setting;
    let wrote = |contents: &Contents| {
        let mut same = contents
            .writes
            .iter()
            .filter(|it| it.is_open() && it.intent.setting == *setting);
        same.any(|it| setting.same(&it.intent.new, now))
    };
    runs.find(|(_, contents)| wrote(contents))
        .map(|(run, _)| run)
}

fn reverted(written: &Written, result: UndoResult) -> Reverted {
    Reverted {
        setting: written.intent.setting.clone(),
        file: written.intent.setting.path(),
        result,
    }
}

/// Makes the writes of a change set, and puts back those of a change set or a lease.
pub(crate) struct Writer<'a> {
    pub(crate) system: &'a dyn System,
    pub(crate) journal: &'a mut LineFile,
    /// `None` for a lease: it moves no memory, sets no tree, and overwrites what no other program has set.
    pub(crate) change_set: Option<OfChangeSet<'a>>,
}

/// What undoing a write depends on in a change set.
#[derive(Clone, Copy)]
pub(crate) struct OfChangeSet<'a> {
    pub(crate) id: ChangeSetId,
    /// Where the pages of a process were.
    pub(crate) state: &'a StateDir,
    pub(crate) tree: bool,
    pub(crate) force: bool,
    /// The change sets after the one that is undone, newest first.
    pub(crate) later: &'a [(ChangeSetId, Contents)],
}

impl Writer<'_> {
    pub(crate) fn is_tree(&self) -> bool {
        self.change_set.is_some_and(|it| it.tree)
    }

    fn is_forced(&self) -> bool {
        self.change_set.is_some_and(|it| it.force)
    }

    /// Puts a write back. Restoring has precedence over recording: with the old bytes back in place, a record that
    /// could not be written costs nothing but a second look.
    pub(crate) fn undo(&mut self, written: &mut Written) -> UndoResult {
        let result = match (&written.intent.setting, self.change_set) {
            (&Setting::TaskMemory(TaskMemory { pid }), Some(change_set)) => {
                self.put_pages_back(written, pid, change_set)
            }
            _ => self.restore(written),
        };
        let path = written.intent.setting.path();
        match &result {
            UndoResult::Restored { from, to, .. } => {
                tracing::info!(path, old = from, new = to, "put back")
            }
            UndoResult::PagesBack { memory } => {
                tracing::info!(path, back = memory.back_bytes, "pages put back");
            }
            UndoResult::Failed { error } => tracing::warn!(path, reason = error, "not put back"),
            UndoResult::ChangedSince { now, .. } => {
                tracing::warn!(
                    path,
                    old = now,
                    reason = "it was changed by another since",
                    "not put back"
                );
            }
            _ => tracing::debug!(path, "nothing to put back"),
        }
        if result.is_settled() {
            let gone = result.is_gone();
            written.progress = Progress::settled(gone);
            let write = written.intent.write;
            let record = Record::Undone { write, gone };
            let Some(OfChangeSet { id, state, .. }) = self.change_set else {
                // The order of paths is that before the first node of the lease only after all its nodes: these are looked at again
                // until all are settled. What is gone may come back.
                if !matches!(written.intent.setting, Setting::DeviceNode(_)) && !gone {
                    // Not forced to disk: after a reboot no record counts.
                    let _ = self.journal.append_cached(self.system, record);
                }
                return result;
            };
            let recorded = self.journal.append(self.system, record);
            // Where the pages were is of no more use once the journal says so.
            if recorded.is_ok() && !written.intent.setting.is_written() {
                let _ = state.remove_file(&task_memory::file_of(id, write));
            }
        }
        result
    }

    /// Memory is not a file: each page goes to the node that the record of the move names.
    fn put_pages_back(
        &mut self,
        written: &mut Written,
        pid: i32,
        change_set: OfChangeSet<'_>,
    ) -> UndoResult {
        let OfChangeSet { id, state, .. } = change_set;
        let intent = &written.intent;
        let owner = intent.owner.as_ref();
        let start = owner
            .and_then(|owner| owner.process.as_ref())
            .map(|process| process.start_ticks);
        if change_set.tree {
            let error = "a directory tree has no processes".to_owned();
            return UndoResult::Failed { error };
        }
        // Pages on the target may be those that it moved there.
        if let Some(by) = self.later_writer(written, "").filter(|_| !change_set.force) {
            return UndoResult::ChangedSince {
                now: "moved again".to_owned(),
                by_change_set: Some(by),
            };
        }
        let write = intent.write;
        let _ = self.journal.append(self.system, Record::Undoing { write });
        written.progress = Progress::Undoing;
        let name = task_memory::file_of(id, write);
        task_memory::undo(state, &name, (pid, start), change_set.force)
    }

    /// Writes the old value back if the file has what was written, and lets drivers follow.
    fn restore(&mut self, written: &mut Written) -> UndoResult {
        let intent = written.intent.clone();
        let (tree, force) = (self.is_tree(), self.is_forced());
        let (now, found) = match look(self.system, written, tree, force) {
            Ok(looked) => looked,
            Err(result) => return result,
        };
        let by_change_set = self.later_writer(written, &now);
        if !force && (found == Found::Foreign || by_change_set.is_some()) {
            return UndoResult::ChangedSince {
                now: now.trim_end().to_owned(),
                by_change_set,
            };
        }
        let device = self.device_to_bind(written, found);
        // What stands instead of an empty set stays, unless forced.
        let is_old = match force {
            true => intent.setting.same(&now, &intent.old),
            false => found == Found::Old,
        };
        if is_old && device.is_none() {
            return UndoResult::AlreadyBefore;
        }
        let is_unfinished = written.is_unfinished();
        let write = intent.write;
        let _ = self.journal.append(self.system, Record::Undoing { write });
        written.progress = Progress::Undoing;
        let (to, stays) = match is_old {
            true => (now.clone(), None),
            false => match self.write_back(&intent, &now) {
                Ok(written) => written,
                Err(result) => return result,
            },
        };
        let bound = match (device, self.change_set) {
            (None, _) => Ok((false, None)),
            (Some(device), Some(_)) => {
                let note = self.bind_again(device, &intent, is_unfinished);
                note.map(|note| (true, note))
            }
            (Some(device), None) => {
                let was_killed = is_old && is_unfinished;
                let bound = rebind::nvme_follows(self.system, device, &intent, true, was_killed);
                bound.map(|is_bound| (is_bound, None))
            }
        };
        match bound {
            Ok((false, _)) if is_old => UndoResult::AlreadyBefore,
            Ok((_, note)) => UndoResult::Restored {
                from: now.trim_end().into(),
                to: to.trim_end().into(),
                note: note.or(stays),
            },
            Err(error) => UndoResult::Failed {
                error: format!(
                    "the node is as before, but driver {} could not be bound again: {}",
                    intent.rebind.as_deref().unwrap_or("nvme"),
                    error_text(&error)
                ),
            },
        }
    }

    /// The later change set in force that wrote the same setting. Two of them can write equal values, and the older of these
    /// bytes are then the newer one's. The one that made it say this is named before others.
    fn later_writer(&self, written: &Written, now: &str) -> Option<ChangeSetId> {
        let later = self.change_set.map_or(&[][..], |it| it.later);
        let later = || later.iter().map(|(run, contents)| (*run, contents));
        writer(now, written, later()).or_else(|| {
            let intent = &written.intent;
            let process = |owner: &Option<Owner>| owner.as_ref()?.process.clone();
            let writes = |contents: &Contents| {
                let mut open = contents.writes.iter().filter(|it| it.is_open());
                open.any(|it| {
                    it.intent.setting == intent.setting
                        && process(&it.intent.owner) == process(&intent.owner)
                })
            };
            let mut writers = later().filter(|(_, contents)| writes(contents));
            writers.next().map(|(run, _)| run)
        })
    }

    /// Writes the old bytes and reads them back. What was written, and what is not as before all the same.
    fn write_back(
        &self,
        intent: &Intent,
        now: &str,
    ) -> Result<(String, Option<String>), UndoResult> {
        let setting = &intent.setting;
        let path = setting.path();
        let failed = |error: io::Error| UndoResult::gone_or_failed(&error);
        let tree = self.is_tree();
        let rebound = (!tree).then(|| cpuset_memory::rebound_by_undo(self.system, intent));
        let to = write_back(self.system, &path, &intent.old, tree).map_err(failed)?;
        let back = text(self.system, &path).map_err(failed)?;
        if back.trim() != to.trim() && !setting.same(&back, &to) {
            let error = shows_another(setting, &to, &back);
            return Err(UndoResult::Failed { error });
        }
        let stays = rebound
            .and_then(|rebound| cpuset_memory::what_stays(self.system, intent, now, &to, rebound));
        Ok((to, stays))
    }

    /// The function whose driver has to be bound again: it saw the new node, or may have, or was left unbound by a kill. A lease
    /// binds those of NVMe only, where they need it.
    fn device_to_bind(&self, written: &Written, found: Found) -> Option<PciAddress> {
        let Setting::DeviceNode(DeviceNode { device }) = written.intent.setting else {
            return None;
        };
        let untouched = found == Found::Old && written.progress != Progress::Undoing;
        let is_needed = match self.change_set {
            None => true,
            Some(OfChangeSet { tree: true, .. }) => false,
            Some(_) => {
                let is_bound = || bound_driver(self.system, device).is_some();
                written.intent.rebind.is_some() && !(untouched && is_bound())
            }
        };
        is_needed.then_some(device)
    }

    /// What there is to say of it. Where the driver could not be bound again, the system's answer.
    fn bind_again(
        &self,
        device: PciAddress,
        intent: &Intent,
        is_unfinished: bool,
    ) -> io::Result<Option<String>> {
        let Some(driver) = intent.rebind.as_deref() else {
            return Ok(None);
        };
        let later_paths = &intent.later_paths;
        // A change or an undo that came to its end leaves none without a driver: then they were unbound on purpose.
        let driver_of_unbound = is_unfinished.then_some(driver);
        let unbound = rebind::bind_unbound(self.system, later_paths, driver_of_unbound);
        let is_any_left = || is_unfinished && rebind::is_any_unbound(self.system, later_paths);
        if bound_driver(self.system, device).is_some()
            && let Err(reason) = may_rebind(self.system, device, driver)
        {
            return match unbound {
                Err(error) if is_any_left() => Err(error),
                _ => Ok(Some(format!(
                    "the driver keeps the node it was bound with: {reason}"
                ))),
            };
        }
        rebind(self.system, device, driver)?;
        if is_any_left() {
            unbound?;
        }
        let is_bound = |it: &PciAddress| !rebind::is_any_unbound(self.system, &[*it]);
        let bound: Vec<PciAddress> = later_paths.iter().copied().filter(is_bound).collect();
        match rebind::paths_follow(self.system, device, &bound) {
            Ok(_) => Ok(None),
            Err(error) if rebind::is_any_unbound(self.system, &bound) => Err(error),
            Err(error) => Ok(Some(format!(
                "the order of the paths to its disks may be another one: {}",
                error_text(&error)
            ))),
        }
    }
}

/// What the file of a write says now, and whose that is; or that it cannot be read or is another's. `force`: it is not another's only
/// because its handlers have other names.
pub(crate) fn look(
    system: &dyn System,
    written: &Written,
    tree: bool,
    force: bool,
) -> Result<(String, Found), UndoResult> {
    let intent = &written.intent;
    let now = text(system, &intent.setting.path());
    let now = now.map_err(|error| UndoResult::gone_or_failed(&error))?;
    let other = other_owner(system, intent, tree);
    if let Some(other) = other.filter(|it| !(force && it.only_handlers)) {
        return Err(UndoResult::OtherOwner {
            was: other.was,
            now: other.now,
            gone: other.is_given_out_again,
        });
    }
    let found = found(system, written, &now, tree);
    Ok((now, found))
}

/// Whether the setting of a write is another device's now.
pub(crate) fn other_owner(system: &dyn System, intent: &Intent, tree: bool) -> Option<Mismatch> {
    let was = intent.owner.as_ref()?;
    let mut seen = owner::observe(system, &intent.setting, was, tree);
    // An interface that is down has no handlers, and keeps its interrupts.
    if was.device.is_some() && seen.owner.handlers.as_deref() == Some("") {
        seen.owner.handlers = None;
    }
    owner::mismatch(was, &seen)
}

/// Whose the content of a file is.
fn found(system: &dyn System, written: &Written, now: &str, tree: bool) -> Found {
    let Intent {
        setting, old, new, ..
    } = &written.intent;
    let wrote = written.now.as_deref();
    let is_any = || written.values().any(|it| shows(system, setting, it, now));
    match now == old {
        true => Found::Old,
        false
            if tree
                && written.is_unfinished()
                && (is_mix(now, new, old) || is_mix(now, old, wrote.unwrap_or(new))) =>
        {
            Found::Ours
        }
        false if shows(system, setting, old, now) => Found::Old,
        false if is_any() => Found::Ours,
        false => Found::Foreign,
    }
}

/// Whether a file holds the beginning of `over` and behind it what stays of `under`: what a write that was cut short
/// leaves.
fn is_mix(now: &str, over: &str, under: &str) -> bool {
    let (now, over, under) = (now.as_bytes(), over.as_bytes(), under.as_bytes());
    let common = now
        .iter()
        .zip(over)
        .take_while(|(one, other)| one == other)
        .count();
    now.get(common..).unwrap_or_default() == under.get(common..).unwrap_or_default()
}

/// What a file holds, seen from a change to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// What was there before.
    Old,
    /// What was written.
    Ours,
    /// Neither.
    Foreign,
}

/// Whether the file of a setting can say this after that was written: the same, or all instead of an empty set, which is the same to
/// the tasks of a control group.
pub(crate) fn shows(system: &dyn System, setting: &Setting, written: &str, now: &str) -> bool {
    let is_same = |one: &str| one.trim() == now.trim() || setting.same(one, now);
    let instead = || instead_of_empty(system, &setting.path(), written);
    is_same(written) || instead().is_some_and(|it| is_same(&it))
}

/// What to write where an empty old set of CPUs or memory nodes cannot be written back, and is the same to the group's tasks: the CPUs of
/// the group above, all possible nodes. The kernel takes no empty one of a group with tasks (ENOSPC of `validate_change()` in
/// kernel/cgroup/cpuset.c). `None` where the old set is not empty, or the file is no such set.
fn instead_of_empty(system: &dyn System, path: &str, old: &str) -> Option<String> {
    let (group, file) = path.rsplit_once('/')?;
    let source = match file {
        _ if !old.trim().is_empty() => return None,
        "cpuset.cpus" => Path::new(group).parent()?.join("cpuset.cpus.effective"),
        "cpuset.mems" => "/sys/devices/system/node/possible".into(),
        _ => return None,
    };
    let set = text(system, source.to_str()?).ok()?;
    Some(with_line_end(set.trim().to_owned(), old))
}

/// Writes an old content back. What was written.
///
/// # Errors
/// The system's answer.
pub(crate) fn write_back(
    system: &dyn System,
    path: &str,
    old: &str,
    tree: bool,
) -> io::Result<String> {
    // A write of nothing does not reach the kernel's handler; an empty set is an empty line.
    let old = if old.is_empty() && !tree { "\n" } else { old };
    match system.write(path, old.as_bytes()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
            let instead = instead_of_empty(system, path, old).ok_or(error)?;
            system.write(path, instead.as_bytes())?;
            Ok(instead)
        }
        written => written.map(|()| old.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_mix;

    #[test]
    fn a_write_that_was_cut_short_is_recognised() {
        for now in ["4\n3\n", "4-3\n", "0-3\n", "4\n\n"] {
            assert_eq!(is_mix(now, "4\n", "0-3\n"), now != "4\n\n", "{now:?}");
        }
        assert!(is_mix("4\n", "4\n", "0\n"));
        assert!(!is_mix("", "4\n", "0\n"));
        assert!(!is_mix("5\n", "4\n", "0\n"));
    }
}
