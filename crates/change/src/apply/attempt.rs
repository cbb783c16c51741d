//! One write: journalled, made, read back; and when it does not hold, as if it had not been.

use nearfar_proc::error_text;
use std::io;

use crate::journal::{Intent, Journal, Progress, Record, Written};
use crate::kind::{Setting, shows_another};
use crate::outcome::UndoResult;
use crate::rebind::rebind;
use crate::state::StateDir;
use crate::system::{System, text};
use crate::undo::Undo;

/// What came of an attempt to write.
pub(super) enum Attempt {
    /// Written, and the file shows it now. `recorded` is false when the journal could not take note; it still holds
    /// the old value.
    Made {
        now: String,
        recorded: io::Result<()>,
    },
    /// The system refused; the file is as before.
    Refused(io::Error),
    /// Written and taken back, because the file did not show it or the driver could not be bound.
    TakenBack { error: String, undo: UndoResult },
    /// The journal could not keep the old value, so nothing was written.
    NotJournalled(io::Error),
}

/// Makes the write and adds it to those of the change set.
pub(super) fn attempt(
    system: &dyn System,
    state: &StateDir,
    journal: &mut Journal,
    writes: &mut Vec<Written>,
    intent: Intent,
    tree: bool,
) -> Attempt {
    let path = intent.setting.path();
    let (old, new) = (intent.old.trim_end(), intent.new.trim_end());
    if let Err(error) = journal.append(system, Record::Intent(Box::new(intent.clone()))) {
        tracing::warn!(
            path,
            old,
            new,
            reason = error_text(&error),
            "not written: the journal cannot be written"
        );
        return Attempt::NotJournalled(error);
    }
    tracing::info!(path, old, new, "write");
    let mut written = Written::intended(intent.clone());
    let result = match system.write(&path, intent.new.as_bytes()) {
        Err(error) => refused(system, state, journal, &mut written, error, tree),
        Ok(()) => match settle(system, &intent, tree) {
            Ok(now) => {
                let recorded = journal.append(
                    system,
                    Record::Done {
                        write: intent.write,
                        now: now.clone(),
                    },
                );
                written.now = Some(now.clone());
                written.progress = Progress::Done;
                Attempt::Made { now, recorded }
            }
            Err(error) => take_back(
                system,
                state,
                journal,
                &mut written,
                error.to_string(),
                tree,
            ),
        },
    };
    writes.push(written);
    result
}

/// Why a write did not have its effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettleError {
    #[error("written, but cannot be read back: {}", error_text(.0))]
    ReadBack(#[source] io::Error),
    /// A sentence of [`shows_another`].
    #[error("{0}")]
    ShowsAnother(String),
    #[error("driver {driver} could not be bound again: {}", error_text(error))]
    Rebind { driver: String, error: io::Error },
}

/// After the write: reads back, and binds the driver again where that was asked for.
fn settle(system: &dyn System, intent: &Intent, tree: bool) -> Result<String, SettleError> {
    let path = intent.setting.path();
    let now = text(system, &path).map_err(SettleError::ReadBack)?;
    if !intent.setting.same(&now, &intent.new) {
        let shown = shows_another(&intent.setting, &intent.new, &now);
        return Err(SettleError::ShowsAnother(shown));
    }
    if let (Some(driver), Setting::DeviceNode(it)) = (&intent.rebind, &intent.setting)
        && !tree
    {
        rebind(system, it.device, driver).map_err(|error| SettleError::Rebind {
            driver: driver.clone(),
            error,
        })?;
    }
    Ok(now)
}

fn refused(
    system: &dyn System,
    state: &StateDir,
    journal: &mut Journal,
    written: &mut Written,
    error: io::Error,
    tree: bool,
) -> Attempt {
    let (path, new) = (written.intent.setting.path(), written.intent.new.trim_end());
    tracing::warn!(path, new, reason = error_text(&error), "write refused");
    match text(system, &written.intent.setting.path()) {
        // A file of a tree on a full disk may hold a part of the new bytes.
        Ok(now) if now != written.intent.old => {
            take_back(system, state, journal, written, error_text(&error), tree)
        }
        _ => {
            let record = Record::Failed {
                write: written.intent.write,
                error: error_text(&error),
            };
            // Without this record the write stays uncertain, and rollback finds the file as before.
            let _ = journal.append(system, record);
            written.progress = Progress::Failed {
                error: error_text(&error),
            };
            Attempt::Refused(error)
        }
    }
}

fn take_back(
    system: &dyn System,
    state: &StateDir,
    journal: &mut Journal,
    written: &mut Written,
    error: String,
    tree: bool,
) -> Attempt {
    tracing::warn!(
        path = written.intent.setting.path(),
        reason = error,
        "write does not hold, taken back"
    );
    // The change set holds the lock and has just written: whatever the file shows instead is the kernel's answer to that.
    let mut undo = Undo {
        system,
        state,
        journal,
        tree,
        force: true,
        later: &[],
    };
    let undo = undo.undo(written);
    Attempt::TakenBack { error, undo }
}
