//! The columns of each table.

use nearfar_runs::export::{Column, Values};

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
                Text => Values::Text(Vec::new()),
                Whole => Values::Whole(Vec::new()),
                Real => Values::Real(Vec::new()),
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

impl From<Option<f64>> for Field<'_> {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::Nothing, Self::Real)
    }
}

/// Appends a row. A field whose type is not the column's is nothing there.
pub fn push(columns: &mut [Column], row: &[Field<'_>]) {
    debug_assert_eq!(columns.len(), row.len());
    for (column, field) in columns.iter_mut().zip(row) {
        match (&mut column.values, field) {
            (Values::Text(values), Field::Text(text)) => values.push(Some((*text).to_owned())),
            (Values::Whole(values), Field::Whole(number)) => values.push(Some(*number)),
            (Values::Real(values), Field::Real(number)) => values.push(Some(*number)),
            (Values::Text(values), _) => values.push(None),
            (Values::Whole(values), _) => values.push(None),
            (Values::Real(values), _) => values.push(None),
            (Values::Switch(values), _) => values.push(None),
        }
    }
}
