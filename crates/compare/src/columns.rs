//! A table of samples as text by column: CSV and Parquet.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};
use parquet::record::Field;

use nearfar_runs::Level;
use nearfar_runs::export::{DEFINITIONS, Renamed, is_column_of_run};
use serde::Deserialize;

use crate::error::CompareError;
use crate::side::Definitions;

/// Columns with names, each value as text, nothing for what is missing.
#[derive(Clone, PartialEq, Debug)]
pub struct Columns {
    names: Vec<String>,
    rows: Vec<CsvRow>,
    definitions: Option<Definitions>,
    renamed: Option<Renamed>,
}

#[derive(Clone, PartialEq, Debug)]
struct CsvRow {
    /// Its place in the file, from 1, without the line of names.
    number: usize,
    fields: Vec<Option<String>>,
}

impl CsvRow {
    fn number(from_0: usize, fields: Vec<Option<String>>) -> Self {
        Self {
            number: from_0 + 1,
            fields,
        }
    }
}

/// What a Parquet file says of its columns; one without `renamed` is of an older version.
#[derive(Deserialize)]
struct Written {
    #[serde(flatten)]
    definitions: Definitions,
    renamed: Option<Renamed>,
}

impl Columns {
    /// Reads CSV with a line of names (RFC 4180).
    ///
    /// # Errors
    /// It is empty or not CSV: a row of another length, a quote that is not closed, bytes that are not UTF-8.
    pub fn of_csv(input: impl Read) -> Result<Self, CompareError> {
        let mut reader = csv::Reader::from_reader(input);
        let headers = reader.headers().map_err(|error| match error.kind() {
            csv::ErrorKind::Utf8 { .. } => CompareError::UnknownFormat,
            _ => error.into(),
        })?;
        let is_binary = |it: char| it.is_control() && !it.is_whitespace();
        if headers.iter().any(|name| name.contains(is_binary)) {
            return Err(CompareError::UnknownFormat);
        }
        if headers.is_empty() {
            return Err(CompareError::Empty);
        }
        let names = headers.iter().map(str::to_owned).collect();
        let field = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let mut rows = Vec::new();
        for (index, record) in reader.records().enumerate() {
            rows.push(CsvRow::number(index, record?.iter().map(field).collect()));
        }
        Ok(Self {
            names,
            rows,
            definitions: None,
            renamed: None,
        })
    }

    /// Reads Parquet.
    ///
    /// # Errors
    /// It is not Parquet, or uses a compression that is not built in.
    pub fn of_parquet(input: impl ChunkReader + 'static) -> Result<Self, CompareError> {
        let reader = SerializedFileReader::new(input)?;
        let metadata = reader.metadata().file_metadata();
        let entries = metadata.key_value_metadata().into_iter().flatten();
        let entry = entries.clone().find(|entry| entry.key == DEFINITIONS);
        let written: Option<Written> =
            entry.and_then(|entry| serde_json::from_str(entry.value.as_deref()?).ok());
        let (definitions, renamed) = written.map_or((None, None), |written| {
            (Some(written.definitions), written.renamed)
        });
        let names = metadata.schema().get_fields().iter();
        let names = names.map(|field| field.name().to_owned()).collect();
        let mut rows = Vec::new();
        for (index, row) in reader.get_row_iter(None)?.enumerate() {
            let row = row?;
            let fields = row.get_column_iter().map(|(_, field)| text(field));
            rows.push(CsvRow::number(index, fields.collect()));
        }
        Ok(Self {
            names,
            rows,
            definitions,
            renamed,
        })
    }

    /// The rows of one run: of this number, or of the only one. A table without a column `run` is one run.
    ///
    /// # Errors
    /// There is no such run, or there are several and none was chosen.
    pub fn of_run(mut self, run: Option<&str>) -> Result<Self, CompareError> {
        let Some(place) = self.find("run") else {
            return Ok(self);
        };
        let of = |row: &CsvRow| row.fields[place].clone().unwrap_or_default();
        let runs: BTreeSet<String> = self.rows.iter().map(of).collect();
        let list = || runs.iter().cloned().collect();
        match run {
            Some(run) if !runs.contains(run) => Err(CompareError::NoSuchRun {
                run: run.to_owned(),
                runs: list(),
            }),
            Some(run) => {
                self.rows.retain(|row| of(row) == run);
                Ok(self)
            }
            None if runs.len() > 1 => Err(CompareError::SeveralRuns { runs: list() }),
            None => Ok(self),
        }
    }

    /// What the file says of its columns.
    pub fn definitions(&self) -> Option<&Definitions> {
        self.definitions.as_ref()
    }

    /// How many rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|it| it == name)
    }

    /// The place of a factor's column.
    pub(crate) fn factor(&self, name: &str) -> Option<usize> {
        let renamed = self.renamed.as_ref().map(|renamed| &renamed.factors);
        self.find_renamed(renamed, "factor_", name, is_column_of_run(name))
    }

    /// The place of a metric's column.
    pub(crate) fn metric(&self, name: &str, factors: &[String]) -> Option<usize> {
        let renamed = self.renamed.as_ref().map(|renamed| &renamed.metrics);
        let is_factor = factors.iter().any(|it| it.eq_ignore_ascii_case(name));
        let is_taken = is_factor || is_column_of_run(name);
        self.find_renamed(renamed, "metric_", name, is_taken)
    }

    /// Exports rename columns whose name is taken. CSV does not say which, so that there the name with the prefix is looked for.
    fn find_renamed(
        &self,
        renamed: Option<&BTreeMap<String, String>>,
        prefix: &str,
        name: &str,
        is_taken: bool,
    ) -> Option<usize> {
        match renamed {
            Some(renamed) => self.find(renamed.get(name).map_or(name, String::as_str)),
            None => is_taken
                .then(|| self.find(&format!("{prefix}{name}")))
                .flatten()
                .or_else(|| self.find(name)),
        }
    }

    pub(crate) fn text(&self, place: usize, row: usize) -> Option<&str> {
        let text = self.rows[row].fields.get(place)?.as_deref();
        text.filter(|text| !text.is_empty())
    }

    /// # Errors
    /// [`CompareError::NotANumber`]; infinity and NaN are none.
    pub(crate) fn number(&self, place: usize, row: usize) -> Result<Option<f64>, CompareError> {
        let Some(text) = self.text(place, row) else {
            return Ok(None);
        };
        let number = text.trim().parse().ok().filter(|it: &f64| it.is_finite());
        number.map(Some).ok_or_else(|| CompareError::NotANumber {
            column: self.names[place].clone(),
            row: self.rows[row].number,
            text: text.to_owned(),
        })
    }

    /// A level as a table writes it.
    pub(crate) fn level(&self, place: usize, row: usize) -> Option<Level> {
        Some(match self.text(place, row)? {
            "true" => Level::Switch(true),
            "false" => Level::Switch(false),
            text => match text.parse::<i64>() {
                // "007" and "+7" are names: they would be written otherwise.
                Ok(number) if number.to_string() == text => Level::Number(number),
                _ => Level::Name(text.to_owned()),
            },
        })
    }

    /// What a column holds in its first row: the same in each row of a run.
    pub(crate) fn single(&self, name: &str) -> Option<String> {
        let first = self.rows.first()?;
        first.fields.get(self.find(name)?)?.clone()
    }

    pub(crate) fn missing(&self, column: &str) -> CompareError {
        CompareError::NoColumn {
            column: column.to_owned(),
            columns: self.names.clone(),
        }
    }
}

fn text(field: &Field) -> Option<String> {
    match field {
        Field::Null => None,
        Field::Str(text) => Some(text.clone()),
        Field::Bool(it) => Some(it.to_string()),
        Field::Long(it) => Some(it.to_string()),
        Field::Int(it) => Some(it.to_string()),
        Field::Double(it) => Some(format!("{it:?}")),
        Field::Float(it) => Some(format!("{it:?}")),
        other => Some(other.to_string()),
    }
}
