//! Undoing a change set: its writes, newest first, each put back by [`crate::undo`].

use std::collections::BTreeSet;
use std::time::Duration;

use crate::apply::ApplyError;
use crate::history::{ChangeSetState, state_of};
use crate::journal::{self, ChangeSetId, Contents, Journal, Record, Written};
use crate::lock::Lock;
use crate::outcome::{Reverted, RollbackOutcome, UndoResult};
use crate::state::StateDir;
use crate::system::{System, Target};
use crate::undo::Writer;

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
            let (tree, force) = (target.is_tree(), options.force);
            let mut writer = Writer {
                system,
                state: &state,
                journal: &mut journal,
                tree,
                force,
                later: &later,
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
