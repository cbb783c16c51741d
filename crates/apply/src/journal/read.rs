//! Reading a journal back. The last line may be torn by a crash; any other line that does not hold is an error that
//! names it, because what it hid may have been the only copy of an old value.

use std::io::Read;

use serde::de::DeserializeOwned;

use super::writes::{Written, take};
use super::{Header, JOURNAL_FORMAT, Line, Record};
use crate::error::ApplyError;
use crate::run_id::RunId;
use crate::state::StateDir;
use crate::target::plain;

/// 4096 interrupts take 2 MiB.
const LONGEST: u64 = 256 << 20;

/// A journal that was read.
#[derive(Debug)]
pub(crate) struct Contents {
    /// `None` where the crash was during the very first record; nothing was written then.
    pub(crate) header: Option<Header>,
    /// When the run began, in seconds since 1970.
    pub(crate) at_s: u64,
    /// Every write that was begun, in order.
    pub(crate) writes: Vec<Written>,
    /// Whether the run came to its end.
    pub(crate) finished: bool,
    /// Bytes of whole records.
    pub(crate) length: u64,
    /// How many.
    pub(crate) records: u64,
    /// Whether a torn record follows them.
    pub(crate) torn: bool,
}

/// Reads the journal of a run.
pub(crate) fn read(state: &StateDir, run: RunId) -> Result<Contents, ApplyError> {
    let file = state.journal_place(run);
    let mut bytes = Vec::new();
    let read = state
        .open_journal(run, false)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
    let because = match read {
        Err(error) => plain(&error),
        Ok(_) if bytes.len() as u64 > LONGEST => "it has more than 256 MiB".to_owned(),
        Ok(_) => {
            let contents = parse(&bytes).map_err(|bad| ApplyError::Corrupt {
                file,
                line: bad.line,
                because: bad.why,
            })?;
            return match &contents.header {
                Some(header) if header.id != run => Err(ApplyError::Corrupt {
                    file: state.journal_place(run),
                    line: 1,
                    because: format!("it is the journal of run {}", header.id),
                }),
                _ => Ok(contents),
            };
        }
    };
    Err(ApplyError::Unreadable { file, because })
}

/// A line that does not hold.
#[derive(Debug)]
pub(crate) struct BadLine {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) why: String,
}

/// Reads the text of a run's journal. Any bytes may come.
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
    let extent = lines(bytes, &mut |line| take_line(&mut contents, line))?;
    contents.length = extent.length;
    contents.records = extent.records;
    contents.torn = extent.torn;
    Ok(contents)
}

/// How far the whole records of a journal go.
#[derive(Default, Debug)]
pub(crate) struct Extent {
    /// Their bytes.
    length: u64,
    /// How many.
    records: u64,
    /// Whether a torn record follows them.
    torn: bool,
}

/// Hands each whole record to `take`, which says what is wrong with it. Any bytes may come.
pub(crate) fn lines<R: DeserializeOwned>(
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
        let parsed = after
            .ok_or_else(|| "it has no end".to_owned())
            .and_then(|_| parse_line(text));
        let parsed = match parsed {
            Err(_) if after.is_none_or(<[u8]>::is_empty) => {
                extent.torn = true;
                break;
            }
            parsed => parsed.map_err(|why| BadLine { line, why })?,
        };
        let in_turn = match parsed.n == extent.records {
            true => take(parsed),
            false => Err(format!(
                "record {} where {} was due",
                parsed.n, extent.records
            )),
        };
        in_turn.map_err(|why| BadLine { line, why })?;
        extent.records += 1;
        extent.length += text.len() as u64 + 1;
        rest = after.unwrap_or_default();
    }
    Ok(extent)
}

fn parse_line<R: DeserializeOwned>(text: &[u8]) -> Result<Line<R>, String> {
    let (sum, json) = text
        .split_at_checked(9)
        .ok_or("it is too short for a record")?;
    let json = std::str::from_utf8(json).map_err(|_| "it is no text")?;
    if format!("{:08x} ", crc32fast::hash(json.as_bytes())).as_bytes() != sum {
        return Err("its checksum does not fit".to_owned());
    }
    serde_json::from_str(json).map_err(|error| format!("it is no record: {error}"))
}

fn take_line(contents: &mut Contents, line: Line) -> Result<(), String> {
    let first = line.n == 0;
    match line.record {
        Record::Run(header) if first => {
            if header.journal_format != JOURNAL_FORMAT {
                return Err(format!(
                    "journal format {}, this version knows {JOURNAL_FORMAT}: roll back with the version that wrote it",
                    header.journal_format
                ));
            }
            contents.at_s = line.at_s;
            contents.header = Some(header);
            Ok(())
        }
        Record::Run(_) => Err("a second run begins".to_owned()),
        _ if first => Err("the record that begins the run is missing".to_owned()),
        Record::Finished {} => {
            contents.finished = true;
            Ok(())
        }
        record => take(&mut contents.writes, record),
    }
}
