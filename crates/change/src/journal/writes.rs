//! How far each write of a change set got, from its records.
//!
//! ```text
//!  intent ──► done ──► undoing ──► undone
//!    │  └──────────────────▲         ▲
//!    └─► failed            └─────────┘  (undone without undoing: the file was found as before)
//! ```

use super::read::BadRecord;
use super::{Intent, Record};

/// A write and how far it got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) intent: Intent,
    /// What the file said after the write, where that was recorded.
    pub(crate) now: Option<String>,
    pub(crate) progress: Progress,
}

/// How far a write got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// The old value was kept, the new one may or may not have been written.
    Intended,
    /// Written and read back.
    Done,
    /// Refused, the file is as before.
    Failed { error: String },
    /// The old value may or may not have been written back.
    Undoing,
    /// As before.
    Undone,
    /// A rollback found it gone with its device or process.
    Gone,
}

impl Progress {
    /// After a rollback that has settled the write.
    pub(crate) fn settled(gone: bool) -> Self {
        match gone {
            true => Self::Gone,
            false => Self::Undone,
        }
    }
}

impl Written {
    /// A write that is about to be made.
    pub(crate) fn intended(intent: Intent) -> Self {
        Self {
            intent,
            now: None,
            progress: Progress::Intended,
        }
    }

    /// Whether the write or its undoing has begun and not come to its end: the file may hold either content.
    pub(crate) fn is_unfinished(&self) -> bool {
        matches!(self.progress, Progress::Intended | Progress::Undoing)
    }

    /// Whether rollback has to look at the file.
    pub(crate) fn is_open(&self) -> bool {
        matches!(
            self.progress,
            Progress::Intended | Progress::Done | Progress::Undoing
        )
    }
}

/// Adds what a record says. The journal may come from any user: names are checked and the order of events too.
pub(super) fn take(writes: &mut Vec<Written>, record: Record) -> Result<(), BadRecord> {
    let write = match record {
        Record::Intent(intent) => {
            intent.setting.check()?;
            if intent.write != writes.len() as u64 {
                return Err(BadRecord::OutOfTurn {
                    found: intent.write,
                    expected: writes.len(),
                });
            }
            if let Some(driver) = &intent.rebind {
                crate::check::driver(driver)?;
            }
            writes.push(Written::intended(*intent));
            return Ok(());
        }
        Record::Done { write, .. }
        | Record::Failed { write, .. }
        | Record::Undoing { write }
        | Record::Undone { write, .. } => write,
        Record::Run(_) | Record::Finished {} => return Ok(()),
    };
    let known = usize::try_from(write)
        .ok()
        .and_then(|write| writes.get_mut(write));
    let known = known.ok_or(BadRecord::NotBegun(write))?;
    let progress = match (record, &known.progress) {
        (Record::Done { now, .. }, Progress::Intended) => {
            known.now = Some(now);
            Progress::Done
        }
        (Record::Failed { error, .. }, Progress::Intended) => Progress::Failed { error },
        (Record::Undoing { .. }, Progress::Intended | Progress::Done | Progress::Undoing) => {
            Progress::Undoing
        }
        (Record::Undone { gone, .. }, Progress::Intended | Progress::Done | Progress::Undoing) => {
            Progress::settled(gone)
        }
        _ => return Err(BadRecord::Progress(write)),
    };
    known.progress = progress;
    Ok(())
}
