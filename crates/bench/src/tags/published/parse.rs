//! The file: CSV with a line of columns and comments.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use super::super::scenario::PUBLISHED_NAMES;
use super::super::{DECLARATION, OPERATIONS, POLICY, SYSTEM_SHARE};

/// Most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;
const SCENARIO: &str = "scenario";
const VARIANT: &str = "variant";

/// A column of figures.
pub(super) struct Figure {
    pub(super) column: &'static str,
    /// Whether a file has to have it.
    is_needed: bool,
    /// The largest number in it.
    max: f64,
    /// The metric of a run that it is.
    pub(super) metric: &'static str,
}

pub(super) const FIGURES: [Figure; 2] = [
    Figure {
        column: "kiops",
        is_needed: true,
        max: f64::MAX,
        metric: OPERATIONS,
    },
    Figure {
        column: "sys_percent",
        is_needed: false,
        max: 100.0,
        metric: SYSTEM_SHARE,
    },
];

/// A file of published figures.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    pub(super) rows: Vec<Row>,
}

/// A cell of a published table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    /// One of [`PUBLISHED_NAMES`].
    pub(super) scenario: &'static str,
    /// A level of the factor [`POLICY`].
    pub(super) policy: &'static str,
    /// As [`FIGURES`].
    pub(super) figures: [Option<f64>; FIGURES.len()],
}

impl Row {
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.scenario, self.policy)
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
    #[error("it is empty: expected a line of columns, {}", columns())]
    Empty,
    #[error("it has no figures below the line of columns")]
    NoRows,
    #[error("line {line}: it has {fields} fields instead of {expected}")]
    Fields {
        line: u64,
        fields: usize,
        expected: usize,
    },
    #[error(
        "line {line}: there is no column {column:?}; the columns are {}",
        columns()
    )]
    MissingColumn { line: u64, column: &'static str },
    #[error(
        "line {line}: unknown or repeated column {column:?}; the columns are {}",
        columns()
    )]
    Column { line: u64, column: String },
    #[error("line {line}: {column} is empty")]
    EmptyField { line: u64, column: &'static str },
    #[error("line {line}: {column} is not a number {}: {text:?}", range(*max))]
    NotANumber {
        line: u64,
        column: &'static str,
        max: f64,
        text: String,
    },
    #[error("line {line}: {column} is unknown: {text:?}; expected {}", known.join(", "))]
    Unknown {
        line: u64,
        column: &'static str,
        text: String,
        known: &'static [&'static str],
    },
    #[error("line {line}: {name:?} is also on line {first}")]
    Twice { line: u64, first: u64, name: String },
}

fn columns() -> String {
    let of = |it: &Figure| match it.is_needed {
        true => it.column.to_owned(),
        false => format!("{} (optional)", it.column),
    };
    let names = [SCENARIO, VARIANT].map(str::to_owned);
    let names: Vec<String> = names.into_iter().chain(FIGURES.iter().map(of)).collect();
    names.join(", ")
}

/// `of at least 0`, `from 0 to 100`.
fn range(max: f64) -> String {
    match max < f64::MAX {
        true => format!("from 0 to {max}"),
        false => "of at least 0".to_owned(),
    }
}

/// Where the columns of a file are.
struct Places {
    scenario: usize,
    variant: usize,
    figures: [Option<usize>; FIGURES.len()],
}

impl Places {
    fn of(line: u64, heads: &csv::StringRecord) -> Result<Self, PublishedError> {
        let mut known = BTreeSet::new();
        for head in heads {
            let is_figure = || FIGURES.iter().any(|it| it.column == head);
            let is_column = head == SCENARIO || head == VARIANT || is_figure();
            if !is_column || !known.insert(head) {
                let column = head.to_owned();
                return Err(PublishedError::Column { line, column });
            }
        }
        let place = |name: &str| heads.iter().position(|head| head == name);
        let needed = |column| place(column).ok_or(PublishedError::MissingColumn { line, column });
        for it in FIGURES.iter().filter(|it| it.is_needed) {
            needed(it.column)?;
        }
        Ok(Self {
            scenario: needed(SCENARIO)?,
            variant: needed(VARIANT)?,
            figures: FIGURES.map(|it| place(it.column)),
        })
    }

    fn row(&self, line: u64, record: &csv::StringRecord) -> Result<Row, PublishedError> {
        let text = |place: usize, column| match record.get(place) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(PublishedError::EmptyField { line, column }),
        };
        let known = |place, column, known: &'static [&'static str], read: fn(&str) -> String| {
            let text = text(place, column)?;
            let mut all = known.iter();
            let found = all.find(|it| **it == read(text));
            found.copied().ok_or_else(|| PublishedError::Unknown {
                line,
                column,
                text: text.to_owned(),
                known,
            })
        };
        let mut figures = [None; FIGURES.len()];
        for ((figure, place), of) in figures.iter_mut().zip(self.figures).zip(&FIGURES) {
            let Some(place) = place else { continue };
            let is_missing = record.get(place).is_none_or(str::is_empty);
            if is_missing && !of.is_needed {
                continue;
            }
            let (column, max) = (of.column, of.max);
            let text = text(place, column)?;
            let number = text.parse().ok();
            let number = number.filter(|it: &f64| it.is_finite() && (0.0..=max).contains(it));
            *figure = Some(number.ok_or_else(|| PublishedError::NotANumber {
                line,
                column,
                max,
                text: text.to_owned(),
            })?);
        }
        let policy = |text: &str| text.replace(['+', '-'], "_");
        let policies = DECLARATION.levels_of(POLICY);
        Ok(Row {
            scenario: known(self.scenario, SCENARIO, &PUBLISHED_NAMES, str::to_owned)?,
            policy: known(self.variant, VARIANT, policies, policy)?,
            figures,
        })
    }
}

impl Published {
    /// Reads CSV with a line of columns; lines that begin with `#` are comments.
    ///
    /// # Errors
    /// The first line that is wrong, with its number and, of a field, its column; a file of more than 1 MiB.
    pub fn read(input: impl Read) -> Result<Self, PublishedError> {
        let mut text = Vec::new();
        input.take(MAX_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(PublishedError::TooLarge);
        }
        let mut places = None;
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        let mut rows = Vec::new();
        for (bytes, line) in text.split(|byte| *byte == b'\n').zip(1..) {
            let Some(record) = record(bytes, line)? else {
                continue;
            };
            let Some((places, expected)) = &places else {
                places = Some((Places::of(line, &record)?, record.len()));
                continue;
            };
            if record.len() != *expected {
                return Err(PublishedError::Fields {
                    line,
                    fields: record.len(),
                    expected: *expected,
                });
            }
            let row: Row = places.row(line, &record)?;
            let name = row.name();
            if let Some(first) = lines.insert(name.clone(), line) {
                return Err(PublishedError::Twice { line, first, name });
            }
            rows.push(row);
        }
        match (places, rows.is_empty()) {
            (None, _) => Err(PublishedError::Empty),
            (Some(_), true) => Err(PublishedError::NoRows),
            (Some(_), false) => Ok(Self { rows }),
        }
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
