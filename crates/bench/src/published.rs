//! Figures of others, read from a file, and whether they rank the cells of a run the same way.
//!
//! ```text
//! file ─► lines ─► Table          the experiment says which columns there are and what a line's cells are
//! Table + run ───► Agreement      one for each column of figures and set of levels that the table does not have
//! ```
//!
//! Absolute figures of another machine cannot be compared with those of a run; their order can.
//! The file is CSV with a line of columns, and comments.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Sample};
use nearfar_statistics::law::Law;
use nearfar_statistics::{Interval, Summary, spearman};
use serde::{Deserialize, Serialize};

use crate::step::Rounds;

/// Most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;

/// A table of published figures that an experiment understands.
pub trait PublishedTable: Sized {
    /// The names of the levels of its cells, in the order that they are shown in.
    const LEVELS: &'static [&'static str];

    /// Reads CSV with a line of columns; lines that begin with `#` are comments.
    ///
    /// # Errors
    /// The first line that is wrong, with its number and, of a field, its column; a file of more than 1 MiB.
    fn read(input: impl Read) -> Result<Self, PublishedError>;

    /// Compares the ranks of a run's cells with those of the table: once for each column of figures and each set of levels that the
    /// table does not have.
    fn agreement(&self, detail: &Detail, samples: &[Sample]) -> Vec<Agreement>;
}

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

/// Whether a run ranks its cells as a published table does, for one metric and one set of levels that the table does not have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Agreement {
    pub metric: String,
    /// The published column or columns.
    pub column: String,
    /// The levels of the other factors.
    pub conditions: Cell,
    /// Spearman's rank correlation of the published figures and the medians, -1 to 1.
    pub correlation: Known<f64>,
    /// The same of the samples of one round, over the rounds that have all of the cells.
    pub by_round: Option<ByRound>,
    pub cells: Vec<Pair>,
    /// The laws that the published figures follow, of an experiment that fits some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub laws: Vec<PublishedLaw>,
    /// Published cells that the run has no sample of, and cells of the run that are not published, each with the reason.
    pub left_out: Vec<LeftOut>,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ByRound {
    pub median: f64,
    /// The 95 % interval of the median; `None` below six rounds.
    pub confidence: Option<Interval>,
    pub rounds: usize,
}

/// The universal scalability law of the published figures of machines with one number of nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PublishedLaw {
    pub nodes: i64,
    pub law: Law,
    /// The number of tasks with the highest throughput; `None` where it grows without end.
    pub peak: Option<f64>,
    /// What the law has for halves, quarters, ... of the largest published number of tasks that are not published; fewest first.
    pub between: Vec<Between>,
}

/// A throughput that is not published.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Between {
    pub tasks: u32,
    /// In the unit of the published column.
    pub throughput: f64,
}

/// A cell of both. In JSON its levels are keys of their own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// By the published names.
    #[serde(flatten)]
    pub levels: Cell,
    /// In the unit of the published column.
    pub published: f64,
    /// The median, or the mean where means are published, in the unit of the metric.
    pub measured: f64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub cell: String,
    pub reason: String,
}

/// The one of these cells that the run has.
///
/// # Errors
/// That it has none, or that it has several.
pub(crate) fn only_in_plan(
    cells: impl Iterator<Item = Cell>,
    detail: &Detail,
    several: &'static str,
) -> Result<Cell, &'static str> {
    let mut in_plan = cells.filter(|cell| detail.plan.contains(cell));
    match (in_plan.next(), in_plan.next()) {
        (None, _) => Err("the run does not have it"),
        (Some(cell), None) => Ok(cell),
        (Some(_), Some(_)) => Err(several),
    }
}

/// Cells of a run that a published table does not have.
pub(crate) fn not_published(cells: impl IntoIterator<Item = String>) -> Vec<LeftOut> {
    let mut known = BTreeSet::new();
    let cells = cells.into_iter().filter(|it| known.insert(it.clone()));
    let left_out = |cell| LeftOut {
        cell,
        reason: "not in the published table".to_owned(),
    };
    cells.map(left_out).collect()
}

/// A column of figures of a published table and one metric of a run.
pub(crate) struct Ranked<'a> {
    /// The samples of the metric.
    pub(crate) rounds: &'a Rounds<'a>,
    pub(crate) rows: &'a [Row],
    /// The names of the rows' levels, as they are shown.
    pub(crate) order: &'a [&'a str],
    /// The figure's place in each row.
    pub(crate) place: usize,
    pub(crate) metric: &'a str,
    pub(crate) column: &'a str,
    /// Whether the figures are means of samples.
    pub(crate) is_mean: bool,
}

impl Ranked<'_> {
    /// `cell_of`: the run's cell of a published one, or why there is none.
    pub(crate) fn agreement(
        &self,
        conditions: Cell,
        cell_of: impl Fn(&Row) -> Result<Cell, &'static str>,
        not_published: Vec<LeftOut>,
    ) -> Agreement {
        let (mut pairs, mut by_cell, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for row in self.rows {
            match self.pair(row, &cell_of) {
                Ok((pair, rounds)) => {
                    pairs.push(pair);
                    by_cell.push(rounds);
                }
                Err(reason) => left_out.push(LeftOut {
                    cell: row.name(self.order),
                    reason: reason.to_owned(),
                }),
            }
        }
        left_out.extend(not_published);
        let figures = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
        let published = figures(|pair| pair.published);
        let correlation = spearman(&published, &figures(|pair| pair.measured));
        let correlation = correlation.map_or_else(
            || Known::no(format!("{} cells have no order", pairs.len())),
            Known::Yes,
        );
        Agreement {
            metric: self.metric.to_owned(),
            column: self.column.to_owned(),
            conditions,
            correlation,
            by_round: by_round(&published, &by_cell),
            cells: pairs,
            laws: Vec::new(),
            left_out,
        }
    }

    /// The figures of a published cell, and its samples by round; else why there are none.
    fn pair(
        &self,
        row: &Row,
        cell_of: impl Fn(&Row) -> Result<Cell, &'static str>,
    ) -> Result<(Pair, &BTreeMap<u32, f64>), &'static str> {
        let published = row.figures[self.place].ok_or("the published table has no figure")?;
        let rounds = self.rounds.of_cell(&cell_of(row)?);
        let values: Vec<f64> = rounds.values().copied().collect();
        let summary = Summary::of(&values).ok_or("the run has no sample of it")?;
        let measured = match self.is_mean {
            true => values.iter().sum::<f64>() / values.len() as f64,
            false => summary.median,
        };
        let pair = Pair {
            levels: row.levels.clone(),
            published,
            measured,
        };
        Ok((pair, rounds))
    }
}

/// The correlation within each round that has all cells.
fn by_round(published: &[f64], by_cell: &[&BTreeMap<u32, f64>]) -> Option<ByRound> {
    let rounds: BTreeSet<u32> = by_cell.iter().flat_map(|it| it.keys()).copied().collect();
    let of_round = |round: &u32| {
        let values: Option<Vec<f64>> = by_cell.iter().map(|it| it.get(round).copied()).collect();
        spearman(published, &values?)
    };
    let correlations: Vec<f64> = rounds.iter().filter_map(of_round).collect();
    let summary = Summary::of(&correlations)?;
    Some(ByRound {
        median: summary.median,
        confidence: summary.confidence,
        rounds: correlations.len(),
    })
}
