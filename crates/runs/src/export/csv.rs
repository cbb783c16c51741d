//! A table as comma-separated values (RFC 4180): a line of names, LF as line end, nothing for what is missing.

use std::io::{self, Write};

use super::{ColumnValues, Table};

/// Writes a table as CSV. Fractions have as many digits as it takes to read the same number back. A text that is empty is
/// `""`, which most readers tell from one that is missing.
///
/// # Errors
/// What writing answers.
pub fn write(table: &Table, out: &mut dyn Write) -> io::Result<()> {
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
