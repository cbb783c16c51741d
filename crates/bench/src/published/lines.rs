//! The file: CSV with a line of columns and comments.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use nearfar_runs::Cell;

/// Most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;

/// A cell of a published table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    /// By the published names.
    pub(crate) levels: Cell,
    /// In the order of the table's columns of figures.
    pub(crate) figures: Vec<Option<f64>>,
}

impl Row {
    /// `far-low limit`: its levels.
    pub(crate) fn name(&self, order: &[&str]) -> String {
        let levels: Vec<String> = order.iter().map(|it| self.levels.text(it)).collect();
        levels.join(" ")
    }
}

/// What is wrong with a file of published figures. Lines are counted from 1, with comments.
#[derive(Debug, thiserror::Error)]
pub enum PublishedError {
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    #[error("line {line}: it is not UTF-8")]
    Utf8 { line: u64 },
    #[error("it is larger than {} KiB", MAX_BYTES >> 10)]
    TooLarge,
    #[error("it is empty: expected a line of columns, {columns}")]
    Empty { columns: &'static str },
    #[error("it has no figures below the line of columns")]
    NoRows,
    #[error("line {line}: it has {fields} fields instead of {expected}")]
    Fields {
        line: u64,
        fields: usize,
        expected: usize,
    },
    #[error("line {line}: there is no column {column:?}; the columns are {columns}")]
    MissingColumn {
        line: u64,
        column: &'static str,
        columns: &'static str,
    },
    #[error("line {line}: unknown or repeated column {column:?}; the columns are {columns}")]
    Column {
        line: u64,
        column: String,
        columns: &'static str,
    },
    #[error("line {line}: {column} is empty")]
    EmptyField { line: u64, column: String },
    #[error("line {line}: {column} is not a number {}: {text:?}", range(*max))]
    NotANumber {
        line: u64,
        column: String,
        max: f64,
        text: String,
    },
    #[error("line {line}: {column} is unknown: {text:?}; expected {expected}")]
    Unknown {
        line: u64,
        column: String,
        text: String,
        expected: String,
    },
    #[error("line {line}: {name:?} is also on line {first}")]
    Twice { line: u64, first: u64, name: String },
}

/// `of at least 0`, `from 0 to 100`.
fn range(max: f64) -> String {
    match max < f64::MAX {
        true => format!("from 0 to {max}"),
        false => "of at least 0".to_owned(),
    }
}

/// The line of columns.
pub(crate) struct Columns {
    line: u64,
    heads: Vec<String>,
    /// What a file can have, for messages.
    expected: &'static str,
}

impl Columns {
    pub(crate) fn heads(&self) -> impl Iterator<Item = &str> {
        self.heads.iter().map(String::as_str)
    }

    pub(crate) fn place(&self, column: &str) -> Option<usize> {
        self.heads().position(|head| head == column)
    }

    /// # Errors
    /// There is no such column.
    pub(crate) fn needed(&self, column: &'static str) -> Result<usize, PublishedError> {
        let missing = PublishedError::MissingColumn {
            line: self.line,
            column,
            columns: self.expected,
        };
        self.place(column).ok_or(missing)
    }

    pub(crate) fn unknown(&self, column: &str) -> PublishedError {
        PublishedError::Column {
            line: self.line,
            column: column.to_owned(),
            columns: self.expected,
        }
    }
}

/// A line below the line of columns, with as many fields as there are columns.
pub(crate) struct Line<'a> {
    line: u64,
    record: &'a csv::StringRecord,
    columns: &'a Columns,
}

impl Line<'_> {
    fn column(&self, place: usize) -> String {
        self.columns.heads[place].clone()
    }

    pub(crate) fn is_empty(&self, place: usize) -> bool {
        self.record.get(place).is_none_or(str::is_empty)
    }

    /// # Errors
    /// The field is empty.
    pub(crate) fn text(&self, place: usize) -> Result<&str, PublishedError> {
        let empty = || PublishedError::EmptyField {
            line: self.line,
            column: self.column(place),
        };
        let field = self.record.get(place).filter(|it| !it.is_empty());
        field.ok_or_else(empty)
    }

    /// # Errors
    /// The field is empty, or not a number from 0 to `max`.
    pub(crate) fn number(&self, place: usize, max: f64) -> Result<f64, PublishedError> {
        let text = self.text(place)?;
        let number = text.parse().ok();
        let number = number.filter(|it: &f64| it.is_finite() && (0.0..=max).contains(it));
        number.ok_or_else(|| PublishedError::NotANumber {
            line: self.line,
            column: self.column(place),
            max,
            text: text.to_owned(),
        })
    }

    pub(crate) fn unknown(&self, place: usize, expected: &str) -> PublishedError {
        PublishedError::Unknown {
            line: self.line,
            column: self.column(place),
            text: self.record.get(place).unwrap_or_default().to_owned(),
            expected: expected.to_owned(),
        }
    }
}

/// A file whose lines one experiment understands.
pub(crate) struct Lines {
    columns: Columns,
    records: Vec<(u64, csv::StringRecord)>,
}

impl Lines {
    /// Reads CSV with a line of columns; lines that begin with `#` are comments. `is_column`: whether a file can have such a column.
    ///
    /// # Errors
    /// The first line that is wrong, with its number; a file of more than 1 MiB.
    pub(crate) fn read(
        input: impl Read,
        is_column: impl Fn(&str) -> bool,
        expected: &'static str,
    ) -> Result<Self, PublishedError> {
        let mut text = Vec::new();
        input.take(MAX_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(PublishedError::TooLarge);
        }
        let mut lines = None;
        for (bytes, line) in text.split(|byte| *byte == b'\n').zip(1..) {
            let Some(record) = record(bytes, line)? else {
                continue;
            };
            let Some(Self { columns, records }) = &mut lines else {
                let columns = columns(&record, line, &is_column, expected)?;
                let records = Vec::new();
                lines = Some(Self { columns, records });
                continue;
            };
            if record.len() != columns.heads.len() {
                return Err(PublishedError::Fields {
                    line,
                    fields: record.len(),
                    expected: columns.heads.len(),
                });
            }
            records.push((line, record));
        }
        lines.ok_or(PublishedError::Empty { columns: expected })
    }

    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The cells of all lines. `order`: the names of their levels, as a message about a cell has them.
    ///
    /// # Errors
    /// What `of_line` refuses, a cell that the file has twice, a file without a cell.
    pub(crate) fn rows(
        &self,
        order: &[&str],
        of_line: impl Fn(&Line<'_>) -> Result<Vec<Row>, PublishedError>,
    ) -> Result<Vec<Row>, PublishedError> {
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        let mut rows = Vec::new();
        for (line, record) in &self.records {
            let columns = &self.columns;
            let line = *line;
            for row in of_line(&Line {
                line,
                record,
                columns,
            })? {
                let name = row.name(order);
                if let Some(first) = lines.insert(name.clone(), line) {
                    return Err(PublishedError::Twice { line, first, name });
                }
                rows.push(row);
            }
        }
        match rows.is_empty() {
            true => Err(PublishedError::NoRows),
            false => Ok(rows),
        }
    }
}

fn columns(
    record: &csv::StringRecord,
    line: u64,
    is_column: impl Fn(&str) -> bool,
    expected: &'static str,
) -> Result<Columns, PublishedError> {
    let columns = Columns {
        line,
        heads: record.iter().map(str::to_owned).collect(),
        expected,
    };
    let mut known = BTreeSet::new();
    let mut heads = record.iter();
    let wrong = heads.find(|head| !is_column(head) || !known.insert(*head));
    let wrong = wrong.map(|it| columns.unknown(it));
    match wrong {
        Some(error) => Err(error),
        None => Ok(columns),
    }
}

/// The fields of a line; `None` for one without any. Each line is read by itself: the positions of a csv reader do not count the
/// comments before a record.
fn record(bytes: &[u8], line: u64) -> Result<Option<csv::StringRecord>, PublishedError> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() || bytes.starts_with(b"#") {
        return Ok(None);
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(csv::Trim::All)
        // Without this a carriage return ends the record, and the rest of the line is dropped.
        .terminator(csv::Terminator::Any(b'\n'))
        .from_reader(bytes);
    match reader.records().next() {
        None => Ok(None),
        Some(Ok(record)) => Ok(Some(record)),
        Some(Err(_)) => Err(PublishedError::Utf8 { line }),
    }
}
