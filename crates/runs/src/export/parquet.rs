//! A table as Parquet (<https://parquet.apache.org/docs/file-format/>): a column a column, each optional, with
//! dictionaries and without compression, which every reader knows.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use serde_json::json;

use super::{Table, Values};

/// The key of the file's metadata that says which columns are metrics, with units and directions, which are factors, and
/// which of both have a column of another name.
pub const DEFINITIONS: &str = "nearfar_definitions";
/// Rows that are written together. A run has a few thousand; more row groups than needed make files slow to read.
const ROWS_A_GROUP: usize = 1 << 18;

/// Writes a table as Parquet.
///
/// # Errors
/// What writing answers.
pub fn write<W: Write + Send>(table: &Table, out: W) -> Result<(), ParquetError> {
    let definitions =
        json!({"metrics": table.metrics, "factors": table.factors, "renamed": table.renamed});
    let properties = WriterProperties::builder()
        .set_created_by(concat!("nearfar version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![
            KeyValue::new("nearfar_schema".to_owned(), "runs-table/2".to_owned()),
            KeyValue::new(DEFINITIONS.to_owned(), definitions.to_string()),
        ]))
        .build();
    let mut file = SerializedFileWriter::new(out, schema(table)?, Arc::new(properties))?;
    let mut from = 0;
    while from < table.rows {
        let to = table.rows.min(from + ROWS_A_GROUP);
        let mut group = file.next_row_group()?;
        for column in &table.columns {
            match &column.values {
                Values::Whole(values) => {
                    column_of::<Int64Type, _>(&mut group, &values[from..to], |value| *value)?
                }
                Values::Real(values) => {
                    column_of::<DoubleType, _>(&mut group, &values[from..to], |value| *value)?
                }
                Values::Switch(values) => {
                    column_of::<BoolType, _>(&mut group, &values[from..to], |value| *value)?
                }
                Values::Text(values) => {
                    column_of::<ByteArrayType, _>(&mut group, &values[from..to], |text| {
                        ByteArray::from(text.as_str())
                    })?;
                }
            }
        }
        group.close()?;
        from = to;
    }
    file.close().map(|_| ())
}

fn schema(table: &Table) -> Result<TypePtr, ParquetError> {
    let field = |name: &str, values: &Values| {
        let (physical, logical) = match values {
            Values::Whole(_) => (Physical::INT64, None),
            Values::Real(_) => (Physical::DOUBLE, None),
            Values::Switch(_) => (Physical::BOOLEAN, None),
            Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let field =
            Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        field.with_logical_type(logical).build().map(Arc::new)
    };
    let fields = table
        .columns
        .iter()
        .map(|column| field(&column.name, &column.values));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder("samples")
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
