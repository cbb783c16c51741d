//! The lines of a journal: what is in it must be whole before it is acted on.
//!
//! A record is a line: eight hex digits (CRC-32 of the rest of the line), a space, a JSON object. Records are numbered, so a
//! line that is missing in the middle is noticed too. The last line may be torn by a crash; any other line that is damaged
//! is an error that names it, because what it held may have been the only copy of an old value.

use std::fs::File;
use std::io::{self, Read};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::state::StateDir;
use crate::system::System;

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
pub(crate) fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A record of a file. The first one, and no other, begins the file and says its format.
pub(crate) trait FileRecord: Serialize + DeserializeOwned {
    /// The one that this version knows.
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
pub(crate) fn read<R: FileRecord>(
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
            (0, Some(format)) if format != R::FORMAT => Err(R::other_format(format)),
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
        file.set_len(whole.length)?;
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
