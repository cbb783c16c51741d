//! The columns of each table.

use nearfar_runs::export::{Column, ColumnValues};

/// A table of the dataset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Hosts,
    Facts,
    Findings,
    Samples,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Hosts, Self::Facts, Self::Findings, Self::Samples];

    /// The name of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Facts => "facts",
            Self::Findings => "findings",
            Self::Samples => "samples",
        }
    }

    /// Its columns without rows.
    pub fn columns(self) -> Vec<Column> {
        use Type::{Real, Text, Whole};
        let columns: &[(&str, Type)] = match self {
            Self::Hosts => &[
                ("run", Text),
                ("host", Text),
                ("label", Text),
                ("state", Text),
                ("reason", Text),
                ("run_started_at", Real),
                ("started_at", Real),
                ("took_s", Real),
                ("exit_code", Whole),
                ("verb", Text),
                ("nearfar", Text),
                ("machine_host", Text),
                ("emulated", Text),
                ("by", Text),
            ],
            Self::Facts => &[
                ("run", Text),
                ("host", Text),
                ("fact", Text),
                ("value", Text),
                ("number", Real),
                ("is_size", Whole),
                ("unknown", Text),
            ],
            Self::Findings => &[
                ("run", Text),
                ("host", Text),
                ("rule", Text),
                ("severity", Text),
                ("subject", Text),
                ("message", Text),
                ("device", Text),
            ],
            Self::Samples => &[
                ("run", Text),
                ("host", Text),
                ("stored_run", Text),
                ("parameters", Text),
                ("cell", Text),
                ("metric", Text),
                ("unit", Text),
                ("better", Text),
                ("is_primary", Whole),
                ("sample", Whole),
                ("round", Whole),
                ("started_at", Real),
                ("value", Real),
                ("failed", Text),
                ("warnings", Text),
            ],
        };
        let column = |(name, kind): &(&str, Type)| Column {
            name: (*name).to_owned(),
            values: match kind {
                Text => ColumnValues::Text(Vec::new()),
                Whole => ColumnValues::Whole(Vec::new()),
                Real => ColumnValues::Real(Vec::new()),
            },
        };
        columns.iter().map(column).collect()
    }
}

#[derive(Clone, Copy)]
enum Type {
    Text,
    Whole,
    Real,
}

/// A field of a row.
#[derive(Clone, Copy)]
pub enum Field<'a> {
    Text(&'a str),
    Whole(i64),
    Real(f64),
    Nothing,
}

impl<'a> From<&'a str> for Field<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<Option<&'a str>> for Field<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.map_or(Self::Nothing, Self::Text)
    }
}

impl From<i64> for Field<'_> {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<f64> for Field<'_> {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<Option<i64>> for Field<'_> {
    fn from(number: Option<i64>) -> Self {
        number.map_or(Self::Nothing, Self::Whole)
    }
}

impl From<Option<f64>> for Field<'_> {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::Nothing, Self::Real)
    }
}

/// A field of a row with the name of its column.
pub type Named<'a> = (&'static str, Field<'a>);

/// Appends a row. Columns that it does not name have nothing there.
pub fn push(columns: &mut [Column], row: &[Named<'_>]) {
    debug_assert!(
        row.iter()
            .all(|(name, _)| columns.iter().any(|column| column.name == *name)),
        "a column that the table does not have"
    );
    for (place, column) in columns.iter_mut().enumerate() {
        // Rows mostly have all columns in their order.
        let is_it = |(name, _): &&Named<'_>| column.name == *name;
        let named = row.get(place).filter(is_it);
        let named = named.or_else(|| row.iter().find(is_it));
        let field = named.map_or(&Field::Nothing, |(_, field)| field);
        match (&mut column.values, field) {
            (ColumnValues::Text(values), Field::Text(text)) => {
                values.push(Some((*text).to_owned()))
            }
            (ColumnValues::Whole(values), Field::Whole(number)) => values.push(Some(*number)),
            (ColumnValues::Real(values), Field::Real(number)) => values.push(Some(*number)),
            (ColumnValues::Text(values), Field::Nothing) => values.push(None),
            (ColumnValues::Whole(values), Field::Nothing) => values.push(None),
            (ColumnValues::Real(values), Field::Nothing) => values.push(None),
            _ => unreachable!("column {} has another type", column.name),
        }
    }
}

/// Some columns of a group of rows.
pub struct Rows(Vec<(&'static str, ColumnValues)>);

impl Rows {
    /// Of these columns, in this order.
    pub fn new(names: &[&'static str], values: Vec<ColumnValues>) -> Self {
        Self(names.iter().copied().zip(values).collect())
    }

    pub fn count(&self) -> usize {
        match self.0.first() {
            Some((_, ColumnValues::Text(values))) => values.len(),
            Some((_, ColumnValues::Whole(values))) => values.len(),
            Some((_, ColumnValues::Real(values))) => values.len(),
            Some((_, ColumnValues::Switch(values))) => values.len(),
            None => 0,
        }
    }

    fn column(&self, name: &str) -> Option<&ColumnValues> {
        let column = self.0.iter().find(|(known, _)| *known == name);
        debug_assert!(column.is_some(), "column {name} was not read");
        Some(&column?.1)
    }

    /// `None` where there is nothing.
    pub fn text(&self, name: &str, row: usize) -> Option<&str> {
        match self.column(name)? {
            ColumnValues::Text(values) => values.get(row)?.as_deref(),
            _ => None,
        }
    }

    pub fn whole(&self, name: &str, row: usize) -> Option<i64> {
        match self.column(name)? {
            ColumnValues::Whole(values) => *values.get(row)?,
            _ => None,
        }
    }

    pub fn real(&self, name: &str, row: usize) -> Option<f64> {
        match self.column(name)? {
            ColumnValues::Real(values) => *values.get(row)?,
            _ => None,
        }
    }
}
