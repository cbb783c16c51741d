//! Columns as Parquet (<https://parquet.apache.org/docs/file-format/>): each optional, with dictionaries and without
//! compression, which every reader knows.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use serde_json::json;

use super::{Column, ColumnValues, Table};

/// The key of the file's metadata that says which columns are metrics, with units and directions, which are factors, and
/// which of both have a column of another name.
pub const DEFINITIONS: &str = "nearfar_definitions";
/// Rows that are written together. A run has a few thousand; more row groups than needed make files slow to read.
const ROWS_A_GROUP: usize = 1 << 18;
/// The most rows of a group that is read: a damaged file may claim any number.
const MAX_ROWS_A_GROUP: usize = 1 << 24;

/// Writes a table as Parquet.
///
/// # Errors
/// What writing answers.
pub fn write_parquet<W: Write + Send>(table: &Table, out: W) -> Result<(), ParquetError> {
    let definitions =
        json!({"metrics": table.metrics, "factors": table.factors, "renamed": table.renamed});
    let metadata = [
        ("nearfar_schema", "runs-table/2"),
        (DEFINITIONS, &definitions.to_string()),
    ];
    let mut file = ParquetWriter::new(out, "samples", &table.columns, &metadata)?;
    let mut from = 0;
    while from < table.rows {
        let to = table.rows.min(from + ROWS_A_GROUP);
        file.rows(&table.columns, from..to)?;
        from = to;
    }
    file.finish()
}

/// A file that is written group by group.
pub struct ParquetWriter<W: Write + Send>(SerializedFileWriter<W>);

impl<W: Write + Send> ParquetWriter<W> {
    /// Begins a file of rows of columns with these names and types; what they hold is not written.
    ///
    /// # Errors
    /// What writing answers.
    pub fn new(
        out: W,
        name: &str,
        columns: &[Column],
        metadata: &[(&str, &str)],
    ) -> Result<Self, ParquetError> {
        let metadata = metadata
            .iter()
            .map(|(key, value)| KeyValue::new((*key).to_owned(), (*value).to_owned()));
        let properties = WriterProperties::builder()
            .set_created_by(concat!("nearfar version ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(metadata.collect()))
            .build();
        let schema = schema(name, columns)?;
        SerializedFileWriter::new(out, schema, Arc::new(properties)).map(Self)
    }

    /// Writes these rows of the columns as one group.
    ///
    /// # Errors
    /// What writing answers; columns of other types than the file was begun with.
    pub fn rows(
        &mut self,
        columns: &[Column],
        rows: std::ops::Range<usize>,
    ) -> Result<(), ParquetError> {
        let mut group = self.0.next_row_group()?;
        for column in columns {
            let rows = rows.clone();
            match &column.values {
                ColumnValues::Whole(values) => {
                    column_of::<Int64Type, _>(&mut group, &values[rows], |value| *value)?
                }
                ColumnValues::Real(values) => {
                    column_of::<DoubleType, _>(&mut group, &values[rows], |value| *value)?
                }
                ColumnValues::Switch(values) => {
                    column_of::<BoolType, _>(&mut group, &values[rows], |value| *value)?
                }
                ColumnValues::Text(values) => {
                    column_of::<ByteArrayType, _>(&mut group, &values[rows], |text| {
                        ByteArray::from(text.as_str())
                    })?;
                }
            }
        }
        group.close().map(|_| ())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// What writing answers.
    pub fn finish(self) -> Result<(), ParquetError> {
        self.0.close().map(|_| ())
    }
}

/// Reads columns by name, group by group; a column that the file does not have is `None` in every row.
///
/// `read` gets the columns in the order of `columns`, whose types say what each has to be.
///
/// # Errors
/// It is not Parquet, a column has another type, or is nested; what `read` answers.
pub fn read_parquet<E: From<ParquetError>>(
    input: impl ChunkReader + 'static,
    columns: &[Column],
    mut read: impl FnMut(Vec<ColumnValues>) -> Result<(), E>,
) -> Result<(), E> {
    let file = SerializedFileReader::new(input)?;
    let schema = file.metadata().file_metadata().schema_descr_ptr();
    let place = |name: &str| {
        let mut fields = schema.columns().iter();
        fields.position(|field| field.path().string() == name)
    };
    let places: Vec<Option<usize>> = columns.iter().map(|column| place(&column.name)).collect();
    for index in 0..file.num_row_groups() {
        let group = file.get_row_group(index)?;
        let rows = usize::try_from(group.metadata().num_rows());
        let rows = rows
            .ok()
            .filter(|rows| *rows <= MAX_ROWS_A_GROUP)
            .ok_or_else(|| {
                ParquetError::General("a group has more than 16,777,216 rows".to_owned())
            })?;
        let values = columns
            .iter()
            .zip(&places)
            .map(|(column, place)| match place {
                Some(place) => values_of(group.get_column_reader(*place)?, &column.values, rows)
                    .map_err(|error| {
                        ParquetError::General(format!("column {}: {error}", column.name))
                    }),
                None => Ok(column.values.empty(rows)),
            });
        read(values.collect::<Result<Vec<_>, ParquetError>>()?)?;
    }
    Ok(())
}

/// A column of a group, of the type that `like` has.
fn values_of(
    reader: ColumnReader,
    like: &ColumnValues,
    rows: usize,
) -> Result<ColumnValues, ParquetError> {
    Ok(match (reader, like) {
        (ColumnReader::Int64ColumnReader(mut reader), ColumnValues::Whole(_)) => {
            ColumnValues::Whole(column_from(&mut reader, rows, |value| Ok(*value))?)
        }
        (ColumnReader::DoubleColumnReader(mut reader), ColumnValues::Real(_)) => {
            ColumnValues::Real(column_from(&mut reader, rows, |value| Ok(*value))?)
        }
        (ColumnReader::BoolColumnReader(mut reader), ColumnValues::Switch(_)) => {
            ColumnValues::Switch(column_from(&mut reader, rows, |value| Ok(*value))?)
        }
        (ColumnReader::ByteArrayColumnReader(mut reader), ColumnValues::Text(_)) => {
            ColumnValues::Text(column_from(&mut reader, rows, |bytes: &ByteArray| {
                bytes.as_utf8().map(str::to_owned)
            })?)
        }
        _ => return Err(ParquetError::General("it has another type".to_owned())),
    })
}

/// The rows of a column: levels say which have a value (1), the values follow each other.
fn column_from<D: DataType, T>(
    reader: &mut parquet::column::reader::ColumnReaderImpl<D>,
    rows: usize,
    of: impl Fn(&D::T) -> Result<T, ParquetError>,
) -> Result<Vec<Option<T>>, ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let (records, ..) =
            reader.read_records(rows - read, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Err(ParquetError::General(format!("{read} rows of {rows}")));
        }
        read += records;
    }
    // A column that is required has no levels.
    if levels.is_empty() {
        levels = vec![1; values.len()];
    }
    let mut there = values.iter();
    let row = |level: &i16| match level {
        0 => Ok(None),
        _ => there.next().map(&of).transpose(),
    };
    levels.iter().map(row).collect()
}

fn schema(name: &str, columns: &[Column]) -> Result<TypePtr, ParquetError> {
    let field = |name: &str, values: &ColumnValues| {
        let (physical, logical) = match values {
            ColumnValues::Whole(_) => (Physical::INT64, None),
            ColumnValues::Real(_) => (Physical::DOUBLE, None),
            ColumnValues::Switch(_) => (Physical::BOOLEAN, None),
            ColumnValues::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let field =
            Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        field.with_logical_type(logical).build().map(Arc::new)
    };
    let fields = columns
        .iter()
        .map(|column| field(&column.name, &column.values));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder(name)
        .with_fields(fields)
        .build()
        .map(Arc::new)
}

/// Writes one column of a row group: values that are there, and for each row whether it has one.
fn column_of<D: DataType, T>(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    rows: &[Option<T>],
    of: impl Fn(&T) -> D::T,
) -> Result<(), ParquetError> {
    let there: Vec<D::T> = rows.iter().flatten().map(of).collect();
    let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("fewer columns than named".to_owned()))?;
    column
        .typed::<D>()
        .write_batch(&there, Some(&levels), None)?;
    column.close()
}
