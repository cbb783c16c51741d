//! One write: journalled, made, read back; and when it does not hold, as if it had not been.

use std::io;

use nearfar_proc::error_text;

use crate::journal::{Intent, Progress, Record, Written};
use crate::kind::{Setting, shows_another};
use crate::outcome::UndoResult;
use crate::rebind::rebind;
use crate::rollback::Writer;
use crate::system::text;

/// What came of an attempt to write.
pub(crate) enum Attempt {
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

impl Writer<'_> {
    /// Makes the write and adds it to those of the change set.
    pub(crate) fn attempt(&mut self, writes: &mut Vec<Written>, intent: Intent) -> Attempt {
        let path = intent.setting.path();
        let (old, new) = (intent.old.trim_end(), intent.new.trim_end());
        let announced = Record::Intent(Box::new(intent.clone()));
        if let Err(error) = self.journal.append(self.system, announced) {
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
        let result = match self.system.write(&path, intent.new.as_bytes()) {
            Err(error) => self.refused(&mut written, error),
            Ok(()) => match self.settle(&intent) {
                Ok(now) => self.made(&mut written, now),
                Err(error) => self.take_back(&mut written, error),
            },
        };
        writes.push(written);
        result
    }

    fn made(&mut self, written: &mut Written, now: String) -> Attempt {
        let done = Record::Done {
            write: written.intent.write,
            now: now.clone(),
        };
        let recorded = self.journal.append(self.system, done);
        written.done(now.clone());
        Attempt::Made { now, recorded }
    }

    /// After the write: reads back, and binds the driver again where that was asked for. What the file shows, or why the write did not
    /// have its effect.
    fn settle(&self, intent: &Intent) -> Result<String, String> {
        let now = text(self.system, &intent.setting.path())
            .map_err(|error| format!("written, but cannot be read back: {}", error_text(&error)))?;
        if !intent.setting.same(&now, &intent.new) {
            return Err(shows_another(&intent.setting, &intent.new, &now));
        }
        if let (Some(driver), Setting::DeviceNode(it)) = (&intent.rebind, &intent.setting)
            && !self.is_tree()
        {
            rebind(self.system, it.device, driver).map_err(|error| {
                let reason = error_text(&error);
                format!("driver {driver} could not be bound again: {reason}")
            })?;
        }
        Ok(now)
    }

    fn refused(&mut self, written: &mut Written, error: io::Error) -> Attempt {
        let (path, new) = (written.intent.setting.path(), written.intent.new.trim_end());
        let reason = error_text(&error);
        tracing::warn!(path, new, reason, "write refused");
        // A file of a tree on a full disk may hold a part of the new bytes.
        if text(self.system, &path).is_ok_and(|now| now != written.intent.old) {
            return self.take_back(written, reason);
        }
        let record = Record::Failed {
            write: written.intent.write,
            error: reason.clone(),
        };
        // Without this record the write stays uncertain, and rollback finds the file as before.
        let _ = self.journal.append(self.system, record);
        written.progress = Progress::Failed { error: reason };
        Attempt::Refused(error)
    }

    fn take_back(&mut self, written: &mut Written, error: String) -> Attempt {
        tracing::warn!(
            path = written.intent.setting.path(),
            reason = error,
            "write does not hold, taken back"
        );
        let undo = self.undo(written);
        Attempt::TakenBack { error, undo }
    }
}
