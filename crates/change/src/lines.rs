//! The lines of a journal: what is in it must be whole before it is acted on.
//!
//! A record is a line: eight hex digits (CRC-32 of the rest of the line), a space, a JSON object. Records are numbered, so a
//! line that is missing in the middle is noticed too. The last line may be torn by a crash; any other line that is damaged
//! is an error that names it, because what it held may have been the only copy of an old value.
//!
//! A file of records that is only appended to: the journal of a change set or a lease, and the record of where pages were.

use std::fs::File;
use std::io;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::system::System;

/// A line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Line<R> {
    /// Counted from 0.
    pub n: u64,
    /// Seconds since 1970.
    pub at_s: u64,
    #[serde(flatten)]
    pub record: R,
}

/// The line's text, with its checksum and end.
///
/// # Errors
/// When the record cannot be written as JSON.
pub fn render<R: Serialize>(line: &Line<R>) -> io::Result<String> {
    let json = serde_json::to_string(line)?;
    Ok(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())))
}

/// Now, in seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A line that does not hold.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    pub why: LineError,
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("it has no end")]
    NoEnd,
    #[error("it is too short for a record")]
    TooShort,
    #[error("it is not text")]
    NotText(#[from] std::str::Utf8Error),
    #[error("its checksum does not fit")]
    Checksum,
    #[error("it is not a record: {0}")]
    NotARecord(#[from] serde_json::Error),
    #[error("record {found} where {expected} was due")]
    OutOfTurn { found: u64, expected: u64 },
    /// What the journal's owner says of the record.
    #[error(transparent)]
    Content(Box<dyn std::error::Error + Send + Sync>),
}

/// How far the whole records of a journal go.
#[derive(Default, Debug)]
pub struct Extent {
    /// Their bytes.
    pub length: u64,
    /// How many.
    pub records: u64,
    /// Whether a torn record follows them.
    pub torn: bool,
}

/// Hands each whole record to `take`, which says what is wrong with it. Any bytes may come.
pub fn read<R: DeserializeOwned, E: std::error::Error + Send + Sync + 'static>(
    bytes: &[u8],
    take: &mut dyn FnMut(Line<R>) -> Result<(), E>,
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
        let parsed = after.ok_or(LineError::NoEnd).and_then(|_| parse_line(text));
        let parsed = match parsed {
            Err(_) if after.is_none_or(<[u8]>::is_empty) => {
                extent.torn = true;
                break;
            }
            parsed => parsed.map_err(|why| BadLine { line, why })?,
        };
        let in_turn = match parsed.n == extent.records {
            true => take(parsed).map_err(|error| LineError::Content(error.into())),
            false => Err(LineError::OutOfTurn {
                found: parsed.n,
                expected: extent.records,
            }),
        };
        in_turn.map_err(|why| BadLine { line, why })?;
        extent.records += 1;
        extent.length += text.len() as u64 + 1;
        rest = after.unwrap_or_default();
    }
    Ok(extent)
}

fn parse_line<R: DeserializeOwned>(text: &[u8]) -> Result<Line<R>, LineError> {
    let (sum, json) = text.split_at_checked(9).ok_or(LineError::TooShort)?;
    let json = std::str::from_utf8(json)?;
    if format!("{:08x} ", crc32fast::hash(json.as_bytes())).as_bytes() != sum {
        return Err(LineError::Checksum);
    }
    Ok(serde_json::from_str(json)?)
}

/// A file of lines ([`crate::lines`]) that is being written.
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

    /// Goes on behind the whole records of a file: cuts off what follows them.
    pub(crate) fn resume(file: File, length: u64, records: u64) -> io::Result<Self> {
        file.set_len(length)?;
        Ok(Self {
            file,
            length,
            next: records,
            broken: false,
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
