//! Samples of one or several runs as columns of one type each.
//!
//! ```text
//!  run label experiment host kernel emulated sample round block started_at failed warnings │ memory cpu │ elapsed_s │ faults_minor ...
//!  ─────────────────────────── of every run ────────────────────────────────────────────── │ factors ── │ metrics ─ │ details ─
//! ```
//!
//! A metric of histograms is six columns: `latency_ns_count`, `_p50`, `_p90`, `_p99`, `_p999`, `_max`.
//!
//! Runs of different shapes get the columns of all of them, with nothing where a run has no such value. A column that
//! holds whole numbers here and fractions there holds fractions; any other mixture is text.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Whole;
use crate::cell::Level;
use crate::metric::{Metric, MetricValue};

/// The most columns a table may have: more is a mistake in what the samples hold, and would take all memory.
const MOST_COLUMNS: usize = 4096;
/// The most bytes that the names of columns of samples may have together: few bytes of nested objects make many of names.
const MOST_OF_NAMES: usize = 16 << 20;
/// The most fields, empty ones included: where each row has a column of its own a table is far larger than what it holds. Rows
/// that are full take more than this table would before it is made.
const MOST_FIELDS: usize = 1 << 27;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the samples have more than {MOST_COLUMNS} different values, names of them of more than 16 MiB, or too many rows \
     for so many: too much for columns; export them as JSON"
)]
pub struct TooWide;

/// The values of a column, one a row.
#[derive(Clone, PartialEq, Debug)]
pub enum ColumnValues {
    Whole(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Switch(Vec<Option<bool>>),
    Text(Vec<Option<String>>),
}

impl ColumnValues {
    /// As many rows without a value, of the same type.
    pub(super) fn empty(&self, rows: usize) -> Self {
        match self {
            Self::Whole(_) => Self::Whole(vec![None; rows]),
            Self::Real(_) => Self::Real(vec![None; rows]),
            Self::Switch(_) => Self::Switch(vec![None; rows]),
            Self::Text(_) => Self::Text(vec![None; rows]),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// Its name, which no other has, also without regard to upper and lower case.
    pub name: String,
    pub values: ColumnValues,
}

/// Columns of equal length.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    pub columns: Vec<Column>,
    /// How many values each has.
    pub rows: usize,
    /// The columns that are metrics, as the runs declare them; one of histograms is several columns.
    pub metrics: Vec<Metric>,
    pub factors: Vec<String>,
    pub renamed: Renamed,
}

/// The columns of factors and metrics whose own name is that of another column, by that name. One of a histogram has the name
/// with its quantile.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Renamed {
    pub factors: BTreeMap<String, String>,
    pub metrics: BTreeMap<String, String>,
}

/// What a column is of, which decides its place: columns of all runs, then factors, then metrics, then what
/// else samples hold, by path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Key {
    OfRun(usize),
    Factor(usize, String),
    /// Its place among the metrics, its name, and for histograms which quantile.
    Metric(usize, String, Option<usize>),
    Detail(Vec<String>),
}

/// The columns of every run, in their order.
const OF_RUN: [&str; 12] = [
    "run",
    "label",
    "experiment",
    "host",
    "kernel",
    "emulated",
    "sample",
    "round",
    "block",
    "started_at",
    "failed",
    "warnings",
];

/// Whether every table has a column of this name, also without regard to upper and lower case, that is neither a factor nor
/// a metric.
pub fn is_column_of_run(name: &str) -> bool {
    OF_RUN
        .iter()
        .any(|of_run| of_run.eq_ignore_ascii_case(name))
}

impl Table {
    /// The samples of these runs, in the order of the runs and then as they were taken.
    ///
    /// # Errors
    /// [`TooWide`].
    pub fn of(runs: &[Whole]) -> Result<Self, TooWide> {
        let mut found = Found::default();
        for index in 0..OF_RUN.len() {
            found.cells.insert(Key::OfRun(index), Vec::new());
        }
        let factors = places(runs.iter().flat_map(|whole| {
            let factors = whole.detail.factors.iter();
            factors.map(|factor| factor.name.as_str())
        }));
        let metrics = places(runs.iter().flat_map(|whole| {
            let metrics = whole.detail.metrics.iter();
            metrics.map(|metric| metric.name.as_str())
        }));
        let declared = |name: &&str| {
            let mut all = runs.iter().flat_map(|whole| &whole.detail.metrics);
            all.find(|metric| metric.name == *name).cloned()
        };
        let declared = in_place_order(&metrics)
            .iter()
            .filter_map(declared)
            .collect();
        for whole in runs {
            for sample in &whole.taken {
                for (index, value) in of_run(whole, sample).into_iter().enumerate() {
                    found.put(Key::OfRun(index), value);
                }
                for (factor, level) in sample.cell.levels() {
                    let place = factors.get(factor).copied().unwrap_or(usize::MAX);
                    found.put(Key::Factor(place, factor.to_owned()), of_level(level));
                }
                for (name, value) in &sample.values {
                    let place = metrics.get(name.as_str()).copied().unwrap_or(usize::MAX);
                    of_value(value, |quantile, value| {
                        found.put(Key::Metric(place, name.clone(), quantile), value);
                    });
                }
                leaves(&sample.detail, &mut |path, value| {
                    // What a single sample has beyond the limit need not be kept to be refused.
                    if !found.is_too_wide() {
                        found.put(Key::Detail(path.to_vec()), value);
                    }
                });
                if found.is_too_wide() {
                    return Err(TooWide);
                }
                found.row += 1;
            }
        }
        let Found { cells, row, .. } = found;
        let mut in_order: Vec<(Key, Vec<(usize, Value)>)> = cells.into_iter().collect();
        in_order.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut names = Names::default();
        let columns = in_order.into_iter().map(|(key, values)| Column {
            name: names.of(&key),
            values: values_of(values, row),
        });
        let columns = columns.collect();
        Ok(Self {
            columns,
            renamed: names.renamed,
            rows: row,
            metrics: declared,
            factors: in_place_order(&factors)
                .into_iter()
                .map(str::to_owned)
                .collect(),
        })
    }

    pub fn column(&self, name: &str) -> Option<&ColumnValues> {
        self.columns
            .iter()
            .find(|column| column.name == name)
            .map(|column| &column.values)
    }
}

/// What was found so far, with the row it is of.
#[derive(Default)]
struct Found {
    cells: HashMap<Key, Vec<(usize, Value)>>,
    row: usize,
    /// Bytes of the paths in samples.
    of_names: usize,
}

impl Found {
    fn put(&mut self, key: Key, value: Value) {
        let entry = self.cells.entry(key);
        if let (Entry::Vacant(_), Key::Detail(path)) = (&entry, entry.key()) {
            self.of_names += path.iter().map(String::len).sum::<usize>();
        }
        entry.or_default().push((self.row, value));
    }

    fn is_too_wide(&self) -> bool {
        self.cells.len() > MOST_COLUMNS
            || self.of_names > MOST_OF_NAMES
            || self.cells.len().saturating_mul(self.row + 1) > MOST_FIELDS
    }
}

/// The place of each name: as the first run that has it declares it.
fn places<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut places = BTreeMap::new();
    for name in names {
        let next = places.len();
        places.entry(name).or_insert(next);
    }
    places
}

/// The names in the order of their places.
fn in_place_order<'a>(places: &BTreeMap<&'a str, usize>) -> Vec<&'a str> {
    let mut names: Vec<&str> = places.keys().copied().collect();
    names.sort_by_key(|name| places[name]);
    names
}

/// What the columns of a histogram have, in their order.
const QUANTILES: [&str; 6] = ["count", "p50", "p90", "p99", "p999", "max"];

/// The values of a metric: one, or of a histogram those of [`QUANTILES`], each with its place there.
fn of_value(value: &MetricValue, mut put: impl FnMut(Option<usize>, Value)) {
    match value {
        MetricValue::Integer(value) => put(None, (*value).into()),
        MetricValue::Real(value) => put(None, (*value).into()),
        MetricValue::Histogram(histogram) => match histogram.quantiles() {
            None => put(Some(0), histogram.count().into()),
            Some(it) => {
                let values = [it.count, it.p50, it.p90, it.p99, it.p999, it.max].into_iter();
                values
                    .enumerate()
                    .for_each(|(place, value)| put(Some(place), value.into()));
            }
        },
    }
}

fn of_run(whole: &Whole, sample: &crate::run::Sample) -> [Value; OF_RUN.len()] {
    let run = &whole.run;
    let (kernel, emulation) = match whole.detail.target(&sample.cell) {
        Some(target) => (&target.host.kernel, &target.emulation),
        None => (&run.kernel, &run.emulation),
    };
    let warnings = (!sample.warnings.is_empty()).then(|| sample.warnings.join("; "));
    [
        run.run.0.into(),
        run.label.clone().into(),
        run.experiment.clone().into(),
        run.host.clone().into(),
        kernel.clone().into(),
        emulation.as_ref().map(ToString::to_string).into(),
        sample.number.into(),
        sample.round.into(),
        whole.detail.block(sample.round).into(),
        sample.started_at_s.into(),
        sample.failed.clone().into(),
        warnings.into(),
    ]
}

fn of_level(level: &Level) -> Value {
    match level {
        Level::Switch(on) => Value::Bool(*on),
        Level::Number(number) => (*number).into(),
        Level::Name(name) => Value::String(name.clone()),
    }
}

/// Names that were given. Programs that read tables do not tell upper from lower case, so neither does this.
#[derive(Default)]
struct Names {
    taken: BTreeSet<String>,
    renamed: Renamed,
}

impl Names {
    fn of(&mut self, key: &Key) -> String {
        let (name, otherwise) = match key {
            Key::OfRun(index) => (OF_RUN[*index].to_owned(), ""),
            Key::Factor(_, name) => (name.clone(), "factor_"),
            Key::Metric(_, name, None) => (name.clone(), "metric_"),
            Key::Metric(_, name, Some(quantile)) => {
                (format!("{name}_{}", QUANTILES[*quantile]), "metric_")
            }
            Key::Detail(path) if path.is_empty() => ("value".to_owned(), "detail_"),
            Key::Detail(path) => (path.join("_").replace('.', "_"), "detail_"),
        };
        let prefixed = format!("{otherwise}{name}");
        let numbered = (2..).map(|number| format!("{prefixed}_{number}"));
        let free = |name: &String| !name.is_empty() && !self.taken.contains(&name.to_lowercase());
        let column = [name.clone(), prefixed.clone()]
            .into_iter()
            .chain(numbered)
            .find(free)
            .unwrap_or_default();
        self.taken.insert(column.to_lowercase());
        let renamed = match key {
            Key::Factor(..) => Some(&mut self.renamed.factors),
            Key::Metric(..) => Some(&mut self.renamed.metrics),
            Key::OfRun(_) | Key::Detail(_) => None,
        };
        if let Some(renamed) = renamed.filter(|_| column != name) {
            renamed.insert(name, column.clone());
        }
        column
    }
}

/// What a value can be kept as without loss.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Whole,
    Real,
    Text,
}

fn kind_of(value: &Value) -> Option<Kind> {
    match value {
        Value::Null => None,
        Value::Bool(_) => Some(Kind::Switch),
        Value::Number(number) if number.is_i64() => Some(Kind::Whole),
        Value::Number(_) => Some(Kind::Real),
        _ => Some(Kind::Text),
    }
}

fn values_of(values: Vec<(usize, Value)>, rows: usize) -> ColumnValues {
    let kinds = values.iter().filter_map(|(_, value)| kind_of(value));
    let kind = kinds.reduce(|one, other| match (one, other) {
        _ if one == other => one,
        (Kind::Whole, Kind::Real) | (Kind::Real, Kind::Whole) => Kind::Real,
        _ => Kind::Text,
    });
    match kind {
        Some(Kind::Switch) => ColumnValues::Switch(spread(values, rows, |value| value.as_bool())),
        Some(Kind::Whole) => ColumnValues::Whole(spread(values, rows, |value| value.as_i64())),
        Some(Kind::Real) => ColumnValues::Real(spread(values, rows, |value| value.as_f64())),
        // A column of which no row has anything is text as well: it needs some type.
        Some(Kind::Text) | None => ColumnValues::Text(spread(values, rows, |value| match value {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        })),
    }
}

fn spread<T: Clone>(
    values: Vec<(usize, Value)>,
    rows: usize,
    of: impl Fn(Value) -> Option<T>,
) -> Vec<Option<T>> {
    let mut column = vec![None; rows];
    for (row, value) in values {
        column[row] = of(value);
    }
    column
}

/// Lists longer than this are one text of JSON instead of a column an element.
const LONGEST_LIST: usize = 16;

/// Calls `found` with the path and value of each scalar that is not null.
fn leaves(value: &Value, found: &mut dyn FnMut(&[String], Value)) {
    walk(value, &mut Vec::new(), found);
}

fn walk(value: &Value, path: &mut Vec<String>, found: &mut dyn FnMut(&[String], Value)) {
    let mut below = |name: String, value: &Value| {
        path.push(name);
        walk(value, path, found);
        path.pop();
    };
    match value {
        Value::Null => {}
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| below(name.clone(), value)),
        Value::Array(items) if items.len() <= LONGEST_LIST => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| below(index.to_string(), value));
        }
        Value::Array(_) => found(path, Value::String(value.to_string())),
        scalar => found(path, scalar.clone()),
    }
}

/// Writes a table as CSV. Fractions have as many digits as it takes to read the same number back. A text that is empty is
/// `""`, which most readers tell from one that is missing.
///
/// # Errors
/// What writing answers.
pub fn write_csv(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    let names: Vec<String> = table
        .columns
        .iter()
        .map(|column| quoted(&column.name))
        .collect();
    writeln!(out, "{}", names.join(","))?;
    for row in 0..table.rows {
        let cells: Vec<String> = table
            .columns
            .iter()
            .map(|column| cell(&column.values, row))
            .collect();
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

fn cell(values: &ColumnValues, row: usize) -> String {
    let text = match values {
        ColumnValues::Whole(values) => values[row].map(|value| value.to_string()),
        ColumnValues::Real(values) => values[row].map(|value| format!("{value:?}")),
        ColumnValues::Switch(values) => values[row].map(|value| value.to_string()),
        ColumnValues::Text(values) => values[row].as_deref().map(quoted),
    };
    text.unwrap_or_default()
}

fn quoted(text: &str) -> String {
    let plain = |byte: u8| !matches!(byte, b'"' | b',' | b'\n' | b'\r');
    let unquoted = !text.is_empty() && text.bytes().all(plain) && text.trim() == text;
    if unquoted {
        text.to_owned()
    } else {
        format!("\"{}\"", text.replace('"', "\"\""))
    }
}
