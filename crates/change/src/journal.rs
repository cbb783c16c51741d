//! The journal of a change set or a lease: what was there before, on disk before it is overwritten. `change-N.journal` in the state
//! directory, in earlier versions `run-N.journal`; `lease-PID-N.journal` in the directory of the leases.
//!
//! A record is a line: eight hex digits (CRC-32 of the rest of the line), a space, a JSON object. Records are numbered, so a
//! line that is missing in the middle is noticed too. The last line may be torn by a crash; any other line that is damaged
//! is an error that names it, because what it held may have been the only copy of an old value. The records of where pages were are
//! files of such lines, too.
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
//!
//! A lease can set a file again: an intent of the same write with another new value, and the value before the first one.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::iter::once;
use std::time::SystemTime;

use nearfar_machine::PciAddress;
use nearfar_proc::error_text;
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::apply::ApplyError;
use crate::change::{Owner, driver};
use crate::kind::Setting;
use crate::lease::{LeaseHeader, Masks, Resource};
use crate::state::{NEW_FILE, StateDir};
use crate::system::System;

pub(crate) const JOURNAL_FORMAT: u32 = 1;

/// What happened, or is about to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// The first line of a change set.
    Run(Header),
    /// The first line of a lease.
    Lease(LeaseHeader),
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
    /// Of a lease: threads that are about to be confined.
    Masks(Masks),
    /// Of a lease: what is about to be made, or a process that was started.
    Resource(Resource),
    /// Of a lease of format 1: what a file holds before its first change.
    Old {
        path: String,
        old: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        later_paths: Vec<PciAddress>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        driver: Option<String>,
    },
    /// Of a lease of format 1: what it is about to hold, or was found to hold after a write.
    New { path: String, new: String },
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
    pub(crate) lines: LineFile,
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
        .and_then(|file| load(file, LONGEST));
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
    contents.extent = read_lines(bytes, &mut |line| contents.take(line))?;
    Ok(contents)
}

/// A write and how far it got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) intent: Intent,
    /// What the file said after the write, where that was recorded.
    pub(crate) now: Option<String>,
    /// What a lease wrote or made the file say before its last value.
    pub(crate) earlier: BTreeSet<String>,
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
            earlier: BTreeSet::new(),
            progress: Progress::Intended,
        }
    }

    /// The file is about to get another value, or has it by what was written.
    pub(crate) fn intend(&mut self, new: String) {
        let last = std::mem::replace(&mut self.intent.new, new);
        self.earlier.insert(last);
        self.earlier.extend(self.now.take());
        self.progress = Progress::Intended;
    }

    /// It was written and read back.
    pub(crate) fn done(&mut self, now: String) {
        self.now = Some(now);
        self.progress = Progress::Done;
    }

    /// Whether this is another value for the same file.
    pub(crate) fn is_same_file(&self, intent: &Intent) -> bool {
        let Intent {
            write,
            setting,
            old,
            ..
        } = &self.intent;
        (*write, setting, old) == (intent.write, &intent.setting, &intent.old) && self.is_open()
    }

    /// All that was written, and that the file said then.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        let all = once(&self.intent.new).chain(&self.now);
        all.chain(&self.earlier).map(String::as_str)
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
        match line.record {
            Record::Run(header) => (self.at_s, self.header) = (line.at_s, Some(header)),
            Record::Finished {} => self.finished = true,
            Record::Intent(intent) => {
                intent.setting.check().map_err(|error| error.to_string())?;
                begin(&mut self.writes, *intent)?;
            }
            record => advance(&mut self.writes, record)?,
        }
        Ok(())
    }
}

/// Adds a write to those of a journal.
pub(crate) fn begin(writes: &mut Vec<Written>, intent: Intent) -> Result<(), String> {
    if intent.write != writes.len() as u64 {
        let (found, expected) = (intent.write, writes.len());
        return Err(format!("write {found} where {expected} was due"));
    }
    if let Some(name) = &intent.rebind {
        driver(name).map_err(|error| error.to_string())?;
    }
    writes.push(Written::intended(intent));
    Ok(())
}

/// Adds how far a write got that was begun.
pub(crate) fn advance(writes: &mut [Written], record: Record) -> Result<(), String> {
    let (Record::Done { write, .. }
    | Record::Failed { write, .. }
    | Record::Undoing { write }
    | Record::Undone { write, .. }) = record
    else {
        return Err("it is the record of another journal".to_owned());
    };
    let known = usize::try_from(write).ok();
    let known = known
        .and_then(|write| writes.get_mut(write))
        .ok_or_else(|| format!("it speaks of write {write}, which was not begun"))?;
    match record {
        Record::Done { now, .. } if known.progress == Progress::Intended => known.done(now),
        Record::Failed { error, .. } if known.progress == Progress::Intended => {
            known.progress = Progress::Failed { error };
        }
        Record::Undoing { .. } if known.is_open() => known.progress = Progress::Undoing,
        Record::Undone { gone, .. } if known.is_open() => {
            known.progress = Progress::settled(gone);
        }
        _ => return Err(format!("it does not fit what write {write} had come to")),
    }
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

/// A line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Line<R> {
    /// Counted from 0.
    pub(crate) n: u64,
    /// Seconds since 1970.
    pub(crate) at_s: u64,
    #[serde(flatten)]
    pub(crate) record: R,
}

/// The line's text, with its checksum and end.
///
/// # Errors
/// When the record cannot be written as JSON.
pub(crate) fn render<R: Serialize>(line: &Line<R>) -> io::Result<String> {
    let json = serde_json::to_string(line)?;
    Ok(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())))
}

/// Now, in seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A record of a file. The first one, and no other, begins the file and says its format.
pub(crate) trait FileRecord: Serialize + DeserializeOwned {
    /// The one that this version writes; it reads those before it, too.
    const FORMAT: u32;
    /// What such a file is called, and what it is of.
    const FILE: &str;
    const OF: &str;

    /// Of the record that begins a file.
    fn format(&self) -> Option<u32>;

    /// What is wrong with a file of another format.
    fn other_format(found: u32) -> String {
        let (file, known) = (Self::FILE, Self::FORMAT);
        format!(
            "{file} format {found}, this version knows {known}: roll back with the version that wrote it"
        )
    }

    /// What is wrong with a file that begins with another record.
    fn no_beginning() -> String {
        format!("the record that begins the {} is missing", Self::OF)
    }
}

/// A line that does not hold.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub(crate) struct BadLine {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) why: String,
}

/// How far the whole records of a journal go.
#[derive(Default, Debug)]
pub(crate) struct Extent {
    /// Their bytes.
    pub(crate) length: u64,
    /// How many.
    pub(crate) records: u64,
    /// Whether a torn record follows them.
    pub(crate) torn: bool,
}

/// All of a file, if it has no more bytes than this.
///
/// # Errors
/// The system's answer; also for a larger one.
pub(crate) fn load(file: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    match (bytes.len() as u64 > limit, limit >> 30) {
        (false, _) => Ok(bytes),
        (true, 0) => Err(io::Error::other(format!(
            "it has more than {} MiB",
            limit >> 20
        ))),
        (true, gib) => Err(io::Error::other(format!("it has more than {gib} GiB"))),
    }
}

/// Hands each whole record to `take`, which says what is wrong with it. Any bytes may come.
pub(crate) fn read_lines<R: FileRecord>(
    bytes: &[u8],
    take: &mut dyn FnMut(Line<R>) -> Result<(), String>,
) -> Result<Extent, BadLine> {
    let mut extent = Extent::default();
    let mut rest = bytes;
    for line in 1.. {
        if rest.is_empty() {
            break;
        }
        let (text, after) = match rest.iter().position(|&byte| byte == b'\n') {
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
            None => (rest, None),
        };
        // A record counts only with its line end: what it announces was not done before that was on disk.
        let parsed = match after {
            Some(_) => parse_line::<R>(text),
            None => Err("it has no end".to_owned()),
        };
        if parsed.is_err() && after.is_none_or(<[u8]>::is_empty) {
            extent.torn = true;
            break;
        }
        let taken = parsed.and_then(|parsed| match (parsed.n, parsed.record.format()) {
            (n, _) if n != extent.records => {
                Err(format!("record {n} where {} was due", extent.records))
            }
            (0, None) => Err(R::no_beginning()),
            (0, Some(format)) if !(1..=R::FORMAT).contains(&format) => Err(R::other_format(format)),
            (1.., Some(_)) => Err(format!("a second {} begins", R::OF)),
            _ => take(parsed),
        });
        taken.map_err(|why| BadLine { line, why })?;
        extent.records += 1;
        extent.length += text.len() as u64 + 1;
        rest = after.unwrap_or_default();
    }
    Ok(extent)
}

fn parse_line<R: FileRecord>(text: &[u8]) -> Result<Line<R>, String> {
    let Some((sum, json)) = text.split_at_checked(9) else {
        return Err("it is too short for a record".to_owned());
    };
    let json = std::str::from_utf8(json).map_err(|_| "it is not text")?;
    if format!("{:08x} ", crc32fast::hash(json.as_bytes())).as_bytes() != sum {
        return Err("its checksum does not fit".to_owned());
    }
    serde_json::from_str(json).map_err(|error| format!("it is not a record: {error}"))
}

/// A file of records that is only appended to: the journal of a change set or a lease, the record of where pages were.
pub(crate) struct LineFile {
    file: File,
    /// Bytes that are known to be whole records.
    length: u64,
    next: u64,
    /// A torn line that could not be cut off: what is appended behind it would not be found again.
    broken: bool,
}

impl LineFile {
    /// A new, empty file.
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            length: 0,
            next: 0,
            broken: false,
        }
    }

    /// A new file of the state directory with its first record; on disk, with its name, when this returns. Leaves nothing behind on
    /// failure.
    pub(crate) fn begin(
        state: &StateDir,
        system: &dyn System,
        name: &str,
        file: File,
        record: impl Serialize,
    ) -> io::Result<Self> {
        let mut lines = Self::new(file);
        let begun = lines.append(system, record).and_then(|()| state.sync());
        begun.inspect_err(|_| drop(state.remove_file(name)))?;
        Ok(lines)
    }

    /// Goes on behind the whole records of a file: cuts off what follows them.
    pub(crate) fn resume(file: File, whole: &Extent) -> io::Result<Self> {
        // A full disk may refuse even this, and undoing must not depend on it.
        if file.metadata()?.len() != whole.length {
            file.set_len(whole.length)?;
        }
        Ok(Self {
            length: whole.length,
            next: whole.records,
            ..Self::new(file)
        })
    }

    /// Bytes of whole records.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends a record; on disk when this returns. After a failure the file ends where it ended before.
    pub(crate) fn append(&mut self, system: &dyn System, record: impl Serialize) -> io::Result<()> {
        self.add(record, |file, line| {
            system.append(file, line)?;
            system.sync(file)
        })
    }

    /// As [`Self::append`], but the line is on disk only after [`Self::sync`]. Until then it survives a kill, since the page cache
    /// does.
    pub(crate) fn append_cached(
        &mut self,
        system: &dyn System,
        record: impl Serialize,
    ) -> io::Result<()> {
        self.add(record, |file, line| system.append(file, line))
    }

    pub(crate) fn sync(&self, system: &dyn System) -> io::Result<()> {
        system.sync(&self.file)
    }

    fn add(
        &mut self,
        record: impl Serialize,
        write: impl Fn(&File, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other(
                "an earlier line could be neither finished nor cut off",
            ));
        }
        let line = render(&Line {
            n: self.next,
            at_s: now_s(),
            record,
        })?;
        if let Err(error) = write(&self.file, line.as_bytes()) {
            self.broken = self.file.set_len(self.length).is_err();
            return Err(error);
        }
        self.length += line.len() as u64;
        self.next += 1;
        Ok(())
    }
}
