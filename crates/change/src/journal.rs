//! The journal of a change set: what was there before, on disk before it is overwritten.
//!
//! A record is a line: eight hex digits (CRC-32 of the rest of the line), a space, a JSON object. Records are numbered,
//! so a line that is missing in the middle is noticed too.
//!
//! ```text
//! 0a1b2c3d {"n":0,"at_s":1763690000,"run":{"journal_format":1,"id":7,"boot":"…","plan":"1f2e3d4c",…}}
//! 55667788 {"n":1,"at_s":1763690000,"intent":{"write":0,"change":0,"setting":{…},"old":"0-7\n","new":"4\n"}}
//! 99aabbcc {"n":2,"at_s":1763690000,"done":{"write":0,"now":"4\n"}}
//! ```

mod read;
mod writes;

use std::io;

use nearfar_machine::PciAddress;
use nearfar_proc::error_text;
use serde::{Deserialize, Serialize};

use crate::change::Owner;
use crate::change_set_files::ChangeSetFiles as _;
use crate::change_set_id::ChangeSetId;
use crate::error::ApplyError;
use crate::kind::Setting;
use crate::line_file::LineFile;
use crate::state::StateDir;
use crate::system::System;

pub(crate) use read::{Contents, header, read};
pub(crate) use writes::{Progress, Written};

pub(crate) const JOURNAL_FORMAT: u32 = 1;

/// A line of a journal.
type JournalLine = crate::lines::Line<Record>;

/// What happened, or is about to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// The first line.
    Run(Header),
    /// A write is about to be made.
    Intent(Box<Intent>),
    /// It was made, and this is what the file says now.
    Done { write: u64, now: String },
    /// It was refused and the file is as before.
    Failed { write: u64, error: String },
    /// The old bytes are about to be written back.
    Undoing { write: u64 },
    /// The file is as before the write.
    Undone {
        write: u64,
        /// It is not: it is gone with its device or process.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        gone: bool,
    },
    /// The change set came to its end, or a rollback of it did.
    Finished {},
}

/// Which run this is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) journal_format: u32,
    pub(crate) id: ChangeSetId,
    /// The boot of the live system; none for a tree.
    pub(crate) boot: Option<String>,
    pub(crate) host: Option<String>,
    /// CRC-32 of the plan's JSON: tells plans apart, proves nothing.
    pub(crate) plan: String,
    pub(crate) pid: u32,
    pub(crate) tool_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
}

/// A write to one file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// Counted from 0 within the change set.
    pub(crate) write: u64,
    /// The change of the plan it belongs to, counted from 0; one change may need several attempts.
    pub(crate) change: u64,
    pub(crate) setting: Setting,
    pub(crate) old: String,
    pub(crate) new: String,
    /// Whose the setting was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<Owner>,
    /// The driver that is bound again after the write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rebind: Option<String>,
    /// What [`later_paths`](crate::rebind::nvme::later_paths) said of the device then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) later_paths: Vec<PciAddress>,
}

/// A journal that is being written.
pub(crate) struct Journal {
    lines: LineFile,
    /// For messages.
    pub(crate) place: String,
    pub(crate) run: ChangeSetId,
}

impl Journal {
    /// Begins the journal of a new change set; on disk, with its name, when this returns. Leaves nothing behind on failure.
    pub(crate) fn begin(
        state: &StateDir,
        system: &dyn System,
        header: Header,
    ) -> Result<Self, ApplyError> {
        let run = header.id;
        let place = state.journal_place(run);
        let failed = |error: &io::Error| ApplyError::Journal {
            file: place.clone(),
            reason: error_text(error),
        };
        let file = state.create(run).map_err(|error| failed(&error))?;
        let mut journal = Self {
            lines: LineFile::new(file),
            place: place.clone(),
            run,
        };
        let begun = journal
            .append(system, Record::Run(header))
            .and_then(|()| state.sync());
        begun.map_err(|error| {
            let _ = state.remove(run);
            failed(&error)
        })?;
        Ok(journal)
    }

    /// Goes on with the journal of an earlier change set, behind its last whole record.
    pub(crate) fn resume(
        state: &StateDir,
        run: ChangeSetId,
        contents: &Contents,
    ) -> Result<Self, ApplyError> {
        let place = state.journal_place(run);
        let lines = state
            .open_journal(run, true)
            .and_then(|file| LineFile::resume(file, contents.length, contents.records));
        let lines = lines.map_err(|error| ApplyError::Unreadable {
            file: place.clone(),
            reason: error_text(&error),
        })?;
        Ok(Self { lines, place, run })
    }

    /// Appends a record; on disk when this returns. After a failure the journal ends where it ended before.
    pub(crate) fn append(&mut self, system: &dyn System, record: Record) -> io::Result<()> {
        self.lines.append(system, record)
    }
}
