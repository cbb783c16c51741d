//! A table of samples as text by column: CSV and Parquet.

use std::collections::BTreeSet;
use std::io::Read;

use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};
use parquet::record::Field;

use nearfar_runs::export::DEFINITIONS;

use crate::error::CompareError;
use crate::side::Definitions;

/// Columns with names, each value as text, nothing for what is missing.
#[derive(Clone, PartialEq, Debug)]
pub struct Columns {
    names: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
    definitions: Option<Definitions>,
}

impl Columns {
    /// Reads CSV with a line of names (RFC 4180).
    ///
    /// # Errors
    /// It is not CSV: a row of another length, a quote that is not closed, bytes that are not UTF-8.
    pub fn of_csv(input: impl Read) -> Result<Self, CompareError> {
        let mut reader = csv::Reader::from_reader(input);
        let names = reader.headers()?.iter().map(str::to_owned).collect();
        let row = |record: csv::StringRecord| {
            let texts = record.iter();
            texts
                .map(|text| (!text.is_empty()).then(|| text.to_owned()))
                .collect()
        };
        let rows = reader.records().map(|record| record.map(row));
        Ok(Self {
            names,
            rows: rows.collect::<Result<_, _>>()?,
            definitions: None,
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
        let definitions =
            entry.and_then(|entry| serde_json::from_str(entry.value.as_deref()?).ok());
        let names = metadata.schema().get_fields().iter();
        let names = names.map(|field| field.name().to_owned()).collect();
        let mut rows = Vec::new();
        for row in reader.get_row_iter(None)? {
            rows.push(
                row?.get_column_iter()
                    .map(|(_, field)| text(field))
                    .collect(),
            );
        }
        Ok(Self {
            names,
            rows,
            definitions,
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
        let of = |row: &Vec<Option<String>>| row[place].clone().unwrap_or_default();
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

    pub(crate) fn text(&self, name: &str, row: usize) -> Option<&str> {
        self.rows[row].get(self.find(name)?)?.as_deref()
    }

    /// What a column holds in its first row: the same in each row of a run.
    pub(crate) fn single(&self, name: &str) -> Option<String> {
        let first = self.rows.first()?;
        first.get(self.find(name)?)?.clone()
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
