//! The change sets that were made here, from their journals.

use serde::Serialize;

use crate::apply::ApplyError;
use crate::journal::{self, ChangeSetId, Contents, Header, Progress, Written};
use crate::kind::Setting;
use crate::outcome::UndoResult;
use crate::rollback::{Found, look, other_owner, writer};
use crate::state::{StateDir, lock_holder};
use crate::system::{System, Target};

/// A change set of apply that wrote something, or was about to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChangeSet {
    pub change_set: ChangeSetId,
    /// What the one who made it called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it began, in seconds since 1970; 0 where the journal cannot be read.
    pub at_s: u64,
    /// Host name, where the target told.
    pub host: Option<String>,
    /// CRC-32 of the plan's JSON: the same for the same plan.
    pub plan: Option<String>,
    /// The process that made it.
    pub pid: Option<u32>,
    /// What has become of it.
    pub state: ChangeSetState,
    /// How many of its writes are in force: not undone, and the file says now what was written.
    pub in_force: usize,
    /// Its writes, in order.
    pub changes: Vec<ChangeSetWrite>,
}

/// What has become of a change set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum ChangeSetState {
    /// It ended, and at least one of its writes was not undone; [`ChangeSet::in_force`] says how many hold.
    Made,
    /// It did not end: killed, or still running where this user cannot see that. `rollback` undoes it.
    Interrupted,
    /// Its process is making it now.
    InProgress,
    /// None of its writes stands.
    Undone,
    /// Rollback put nothing back: everything it wrote to was gone with its device or process.
    Gone,
    /// Nothing it tried was taken by the system.
    NothingMade,
    /// It was made in an earlier boot; the reboot has reset what it wrote.
    GoneWithReboot,
    /// Its journal cannot be read or does not hold.
    Unreadable {
        /// The journal, the line, and what is wrong.
        reason: String,
    },
}

/// A write of a change set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChangeSetWrite {
    /// What was written.
    pub setting: Setting,
    /// Its file.
    pub file: String,
    /// The value before, without its line end.
    pub old: String,
    /// The value written, without its line end.
    pub new: String,
    /// What has become of it.
    pub state: WriteState,
}

/// What has become of a write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum WriteState {
    /// In force: the file says what was written.
    Made,
    /// Not undone, and another program changed the value since.
    ChangedSince {
        /// The value now, without the line end.
        now: String,
        /// The later change set that wrote it, where it was nearfar.
        by_change_set: Option<ChangeSetId>,
    },
    /// Not undone, and the number or name is another device's now.
    OtherOwner {
        /// Whose it was.
        was: String,
        /// Whose it is.
        now: String,
    },
    /// Not undone, or rollback put nothing back: the file is gone, with its device, queue, interrupt or process.
    Gone,
    /// It was made in an earlier boot; the reboot has reset it.
    GoneWithReboot,
    /// Not undone; the file cannot be read.
    NotRead { reason: String },
    /// Killed around the write: the file holds the old or the new value.
    Uncertain,
    /// The system refused it.
    Failed {
        /// Its answer.
        error: String,
    },
    /// Put back.
    Undone,
}

/// All change sets, oldest first, with what the files say of their writes now. Takes no lock. Writes nothing, and needs no right but to read.
///
/// # Errors
/// When the state directory cannot be read. A journal that does not hold is a change set that says so.
pub fn history(target: &Target) -> Result<Vec<ChangeSet>, ApplyError> {
    history_with(target, &target.system()?)
}

/// [`history`] of a system of the caller's.
///
/// # Errors
/// As [`history`].
pub fn history_with(target: &Target, system: &dyn System) -> Result<Vec<ChangeSet>, ApplyError> {
    let Some(state) = StateDir::find(&target.location())? else {
        return Ok(Vec::new());
    };
    let boot = target.boot(system);
    let read: Vec<_> = state
        .change_sets()?
        .into_iter()
        .map(|run| (run, journal::read(&state, run)))
        .collect();
    let view = View {
        system,
        tree: target.is_tree(),
        boot: boot.as_deref(),
        change_sets: &read,
    };
    let described = read
        .iter()
        .filter_map(|(run, contents)| view.describe(*run, contents));
    let mut sets: Vec<ChangeSet> = described.collect();
    if let Some(last) = sets.last_mut()
        && last.state == ChangeSetState::Interrupted
        && last.pid.is_some()
        && last.pid == lock_holder(&state)
    {
        last.state = ChangeSetState::InProgress;
    }
    Ok(sets)
}

/// What change sets are compared with.
struct View<'a> {
    system: &'a dyn System,
    tree: bool,
    boot: Option<&'a str>,
    /// Oldest first.
    change_sets: &'a [(ChangeSetId, Result<Contents, ApplyError>)],
}

impl View<'_> {
    fn describe(&self, run: ChangeSetId, read: &Result<Contents, ApplyError>) -> Option<ChangeSet> {
        let contents = match read {
            Ok(contents) => contents,
            Err(error) => {
                let (state, changes) = (
                    ChangeSetState::Unreadable {
                        reason: error.to_string(),
                    },
                    Vec::new(),
                );
                return Some(ChangeSet {
                    change_set: run,
                    label: None,
                    at_s: 0,
                    host: None,
                    plan: None,
                    pid: None,
                    state,
                    in_force: 0,
                    changes,
                });
            }
        };
        let state = state_of(contents, self.boot);
        // A crash during the first record: the change set never was.
        let header = contents.header.clone()?;
        let describe = |written: &Written| {
            let Written { intent, now, .. } = written;
            ChangeSetWrite {
                file: intent.setting.path(),
                setting: intent.setting.clone(),
                old: intent.old.trim_end().to_owned(),
                new: now.as_ref().unwrap_or(&intent.new).trim_end().to_owned(),
                state: self.state(run, written, state == ChangeSetState::GoneWithReboot),
            }
        };
        let changes: Vec<ChangeSetWrite> = contents.writes.iter().map(describe).collect();
        let in_force = changes
            .iter()
            .filter(|change| change.state == WriteState::Made)
            .count();
        let Header {
            host,
            plan,
            pid,
            label,
            ..
        } = header;
        Some(ChangeSet {
            change_set: run,
            label,
            at_s: contents.at_s,
            host,
            plan: Some(plan),
            pid: Some(pid),
            state,
            in_force,
            changes,
        })
    }

    fn state(&self, run: ChangeSetId, written: &Written, before_reboot: bool) -> WriteState {
        match &written.progress {
            Progress::Failed { error } => WriteState::Failed {
                error: error.clone(),
            },
            Progress::Undone => WriteState::Undone,
            Progress::Gone => WriteState::Gone,
            _ if before_reboot => WriteState::GoneWithReboot,
            Progress::Intended | Progress::Undoing => WriteState::Uncertain,
            Progress::Done => self.state_now(run, written),
        }
    }

    /// What the file says of a write that was made and not undone.
    fn state_now(&self, run: ChangeSetId, written: &Written) -> WriteState {
        if !written.intent.setting.is_written() {
            return self.memory_now(written);
        }
        let now = match look(self.system, written, self.tree, false) {
            Ok((_, Found::Ours)) => return WriteState::Made,
            Ok((now, _)) => now,
            Err(UndoResult::OtherOwner { was, now, .. }) => {
                return WriteState::OtherOwner { was, now };
            }
            Err(UndoResult::Failed { error }) => return WriteState::NotRead { reason: error },
            Err(_) => return WriteState::Gone,
        };
        let later = self
            .change_sets
            .iter()
            .rev()
            .take_while(|(later, _)| *later > run);
        let by_change_set = writer(
            &now,
            written,
            later.filter_map(|(run, read)| Some((*run, read.as_ref().ok()?))),
        );
        WriteState::ChangedSince {
            now: now.trim_end().to_owned(),
            by_change_set,
        }
    }
}

impl View<'_> {
    /// Moved memory is where it was moved to, as far as the process has not ended: its pages are not looked at.
    fn memory_now(&self, written: &Written) -> WriteState {
        match other_owner(self.system, &written.intent, self.tree) {
            Some(_) => WriteState::Gone,
            None => WriteState::Made,
        }
    }
}

/// What has become of a change set, seen from a boot.
pub(crate) fn state_of(contents: &Contents, boot: Option<&str>) -> ChangeSetState {
    let any = |test: fn(&Written) -> bool| contents.writes.iter().any(test);
    let made_in = contents
        .header
        .as_ref()
        .and_then(|header| header.boot.as_deref());
    if any(Written::is_open) {
        match (made_in, boot) {
            (Some(then), Some(now)) if then != now => ChangeSetState::GoneWithReboot,
            _ if contents.finished => ChangeSetState::Made,
            _ => ChangeSetState::Interrupted,
        }
    } else if any(|written| written.progress == Progress::Undone) {
        ChangeSetState::Undone
    } else if any(|written| written.progress == Progress::Gone) {
        ChangeSetState::Gone
    } else {
        ChangeSetState::NothingMade
    }
}
