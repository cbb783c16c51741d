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
use crate::change::{Owner, driver};
use crate::kind::Setting;
use crate::lines::{self, BadLine, Extent, FileRecord, Line, LineFile};
use crate::state::{NEW_FILE, StateDir};
use crate::system::System;

pub(crate) const JOURNAL_FORMAT: u32 = 1;

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

impl FileRecord for Record {
    const FORMAT: u32 = JOURNAL_FORMAT;
    const FILE: &str = "journal";
    const OF: &str = "change set";

    fn format(&self) -> Option<u32> {
        match self {
            Self::Run(header) => Some(header.journal_format),
            _ => None,
        }
    }
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
        let (run, name) = (header.id, file_of(header.id));
        let place = state.journal_place(run);
        let lines = state
            .open_readable_file(&name, NEW_FILE)
            .and_then(|file| LineFile::begin(state, system, &name, file, Record::Run(header)));
        match lines {
            Ok(lines) => Ok(Self { lines, place, run }),
            Err(error) => Err(ApplyError::Journal {
                file: place,
                reason: error_text(&error),
            }),
        }
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
            .and_then(|file| LineFile::resume(file, &contents.extent));
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
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// `None` where the crash was during the very first record; nothing was written then.
    pub(crate) header: Option<Header>,
    /// When the change set began, in seconds since 1970.
    pub(crate) at_s: u64,
    /// Every write that was begun, in order.
    pub(crate) writes: Vec<Written>,
    /// Whether the change set came to its end.
    pub(crate) finished: bool,
    pub(crate) extent: Extent,
}

/// Reads the journal of a change set.
pub(crate) fn read(state: &StateDir, run: ChangeSetId) -> Result<Contents, ApplyError> {
    let file = state.journal_place(run);
    let bytes = state
        .open_journal(run, false)
        .and_then(|file| lines::load(file, LONGEST));
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => {
            let reason = error_text(&error);
            return Err(ApplyError::Unreadable { file, reason });
        }
    };
    let (line, reason) = match parse(&bytes) {
        Ok(contents) => match &contents.header {
            Some(Header { id, .. }) if *id != run => {
                (1, format!("it is the journal of change set {id}"))
            }
            _ => return Ok(contents),
        },
        Err(BadLine { line, why }) => (line, why),
    };
    Err(ApplyError::Corrupt { file, line, reason })
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
fn parse(bytes: &[u8]) -> Result<Contents, BadLine> {
    let mut contents = Contents::default();
    contents.extent = lines::read(bytes, &mut |line| contents.take(line))?;
    Ok(contents)
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

impl Contents {
    /// Adds what a record says. The journal may come from any user: names are checked and the order of events too.
    fn take(&mut self, line: Line<Record>) -> Result<(), String> {
        let write = match line.record {
            Record::Run(header) => {
                (self.at_s, self.header) = (line.at_s, Some(header));
                return Ok(());
            }
            Record::Finished {} => {
                self.finished = true;
                return Ok(());
            }
            Record::Intent(intent) => return self.begin(*intent),
            Record::Done { write, .. }
            | Record::Failed { write, .. }
            | Record::Undoing { write }
            | Record::Undone { write, .. } => write,
        };
        let known = usize::try_from(write).ok();
        let known = known
            .and_then(|write| self.writes.get_mut(write))
            .ok_or_else(|| format!("it speaks of write {write}, which was not begun"))?;
        known.progress = match line.record {
            Record::Done { now, .. } if known.progress == Progress::Intended => {
                known.now = Some(now);
                Progress::Done
            }
            Record::Failed { error, .. } if known.progress == Progress::Intended => {
                Progress::Failed { error }
            }
            Record::Undoing { .. } if known.is_open() => Progress::Undoing,
            Record::Undone { gone, .. } if known.is_open() => Progress::settled(gone),
            _ => return Err(format!("it does not fit what write {write} had come to")),
        };
        Ok(())
    }

    fn begin(&mut self, intent: Intent) -> Result<(), String> {
        intent.setting.check().map_err(|error| error.to_string())?;
        if intent.write != self.writes.len() as u64 {
            let (found, expected) = (intent.write, self.writes.len());
            return Err(format!("write {found} where {expected} was due"));
        }
        if let Some(name) = &intent.rebind {
            driver(name).map_err(|error| error.to_string())?;
        }
        self.writes.push(Written::intended(intent));
        Ok(())
    }
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
