//! Reading a journal back. The last line may be torn by a crash; any other line that does not hold is an error that
//! names it, because what it hid may have been the only copy of an old value.

use std::io::Read;

use nearfar_proc::error_text;

use super::writes::{Written, take};
use super::{Header, JOURNAL_FORMAT, JournalLine, Record};
use crate::change_set_files::ChangeSetFiles as _;
use crate::change_set_id::ChangeSetId;
use crate::error::ApplyError;
use crate::kind::ChangeError;
use crate::lines::{self, BadLine};
use crate::state::StateDir;

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
pub(super) enum BadRecord {
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
