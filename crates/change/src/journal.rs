//! The journal of a change set: what was there before, on disk before it is overwritten. `change-N.journal` in the state directory, in
//! earlier versions `run-N.journal`.
//!
//! A record is a line ([`crate::lines`]):
//!
//! ```text
//! 0a1b2c3d {"n":0,"at_s":1763690000,"run":{"journal_format":1,"id":7,"boot":"…","plan":"1f2e3d4c",…}}
//! 55667788 {"n":1,"at_s":1763690000,"intent":{"write":0,"change":0,"setting":{…},"old":"0-7\n","new":"4\n"}}
//! 99aabbcc {"n":2,"at_s":1763690000,"done":{"write":0,"now":"4\n"}}
//! ```
//!
//! How far each write got:
//!
//! ```text
//!  intent ──► done ──► undoing ──► undone
//!    │  └──────────────────▲         ▲
//!    └─► failed            └─────────┘  (undone without undoing: the file was found as before)
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, Read};

use nearfar_machine::PciAddress;
use nearfar_proc::error_text;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::apply::ApplyError;
use crate::change::Owner;
use crate::kind::{ChangeError, Setting};
use crate::lines::{self, BadLine, LineFile};
use crate::state::StateDir;
use crate::system::System;

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
    /// What [`later_paths`](crate::rebind::later_paths) said of the device then.
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

/// 4096 interrupts take 2 MiB.
const LONGEST: u64 = 256 << 20;

/// A journal that was read.
#[derive(Debug)]
pub(crate) struct Contents {
    /// `None` where the crash was during the very first record; nothing was written then.
    pub(crate) header: Option<Header>,
    /// When the change set began, in seconds since 1970.
    pub(crate) at_s: u64,
    /// Every write that was begun, in order.
    pub(crate) writes: Vec<Written>,
    /// Whether the change set came to its end.
    pub(crate) finished: bool,
    /// Bytes of whole records.
    pub(crate) length: u64,
    /// How many.
    pub(crate) records: u64,
    /// Whether a torn record follows them.
    pub(crate) torn: bool,
}

/// Reads the journal of a change set.
pub(crate) fn read(state: &StateDir, run: ChangeSetId) -> Result<Contents, ApplyError> {
    let file = state.journal_place(run);
    let mut bytes = Vec::new();
    let read = state
        .open_journal(run, false)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
    let reason = match read {
        Err(error) => error_text(&error),
        Ok(_) if bytes.len() as u64 > LONGEST => "it has more than 256 MiB".to_owned(),
        Ok(_) => {
            let contents = parse(&bytes).map_err(|bad| ApplyError::Corrupt {
                file,
                line: bad.line,
                reason: bad.why.to_string(),
            })?;
            return match &contents.header {
                Some(header) if header.id != run => Err(ApplyError::Corrupt {
                    file: state.journal_place(run),
                    line: 1,
                    reason: format!("it is the journal of change set {}", header.id),
                }),
                _ => Ok(contents),
            };
        }
    };
    Err(ApplyError::Unreadable { file, reason })
}

/// What the first record of a journal says, where the rest does not hold.
pub(crate) fn header(state: &StateDir, run: ChangeSetId) -> Option<Header> {
    const LONGEST_HEADER: u64 = 64 << 10;
    let mut bytes = Vec::new();
    let file = state.open_journal(run, false).ok()?;
    file.take(LONGEST_HEADER).read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let header = parse(&bytes[..=end]).ok()?.header;
    header.filter(|header| header.id == run)
}

/// Reads the text of a change set's journal. Any bytes may come.
pub(crate) fn parse(bytes: &[u8]) -> Result<Contents, BadLine> {
    let mut contents = Contents {
        header: None,
        at_s: 0,
        writes: Vec::new(),
        finished: false,
        length: 0,
        records: 0,
        torn: false,
    };
    let extent = lines::read(bytes, &mut |line| take_line(&mut contents, line))?;
    contents.length = extent.length;
    contents.records = extent.records;
    contents.torn = extent.torn;
    Ok(contents)
}

/// What is wrong with a record where it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadRecord {
    #[error(
        "journal format {0}, this version knows {JOURNAL_FORMAT}: roll back with the version that wrote it"
    )]
    Format(u32),
    #[error("a second change set begins")]
    SecondHeader,
    #[error("the record that begins the change set is missing")]
    NoHeader,
    #[error("write {found} where {expected} was due")]
    OutOfTurn { found: u64, expected: usize },
    #[error("it speaks of write {0}, which was not begun")]
    NotBegun(u64),
    #[error("it does not fit what write {0} had come to")]
    Progress(u64),
    #[error(transparent)]
    Change(#[from] ChangeError),
}

fn take_line(contents: &mut Contents, line: JournalLine) -> Result<(), BadRecord> {
    let first = line.n == 0;
    match line.record {
        Record::Run(header) if first => {
            if header.journal_format != JOURNAL_FORMAT {
                return Err(BadRecord::Format(header.journal_format));
            }
            contents.at_s = line.at_s;
            contents.header = Some(header);
            Ok(())
        }
        Record::Run(_) => Err(BadRecord::SecondHeader),
        _ if first => Err(BadRecord::NoHeader),
        Record::Finished {} => {
            contents.finished = true;
            Ok(())
        }
        record => take(&mut contents.writes, record),
    }
}

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
pub(crate) fn take(writes: &mut Vec<Written>, record: Record) -> Result<(), BadRecord> {
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
                crate::change::driver(driver)?;
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

/// The number of a change set, counted from 1 in its state directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeSetId(pub u64);

impl fmt::Display for ChangeSetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StateDir {
    /// The numbers of all change sets, oldest first.
    pub(crate) fn change_sets(&self) -> Result<Vec<ChangeSetId>, ApplyError> {
        let names = self.names();
        let names = names.map_err(|error| ApplyError::Unreadable {
            file: self.place.clone(),
            reason: error_text(&error),
        })?;
        let mut ids: Vec<ChangeSetId> = names.iter().filter_map(|name| id_of(name)).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// The path of a change set's journal, for messages.
    fn journal_place(&self, id: ChangeSetId) -> String {
        let name = match self.names() {
            Ok(names) if names.contains(&earlier_file_of(id)) => earlier_file_of(id),
            _ => file_of(id),
        };
        format!("{}/{name}", self.place)
    }

    /// Creates the journal of a new change set. Not on disk until [`StateDir::sync`].
    fn create(&self, id: ChangeSetId) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.open_readable_file(&file_of(id), flags)
    }

    /// Takes back a journal that could not be begun.
    fn remove(&self, id: ChangeSetId) -> io::Result<()> {
        self.remove_file(&file_of(id))
    }

    fn open_journal(&self, id: ChangeSetId, to_append: bool) -> io::Result<File> {
        let flags = if to_append {
            OFlags::RDWR | OFlags::APPEND
        } else {
            OFlags::RDONLY
        };
        match self.open_file(&file_of(id), flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.open_file(&earlier_file_of(id), flags)
            }
            opened => opened,
        }
    }
}

fn file_of(id: ChangeSetId) -> String {
    format!("change-{id}.journal")
}

fn earlier_file_of(id: ChangeSetId) -> String {
    format!("run-{id}.journal")
}

fn id_of(name: &str) -> Option<ChangeSetId> {
    let (_, digits) = name.strip_suffix(".journal")?.split_once('-')?;
    let id = ChangeSetId(digits.parse().ok()?);
    [file_of(id), earlier_file_of(id)]
        .iter()
        .any(|known| known == name)
        .then_some(id)
}
