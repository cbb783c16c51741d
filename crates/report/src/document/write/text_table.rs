//! Tables for a terminal, the way lscpu and ip write them: no boxes, two spaces between columns, wide columns wrapped.

use super::super::{Align, HeatCell, HeatMap, Table, Text};
use super::text::paint;
use crate::style::{Role, Style};
use crate::wrapping::columns as width_of;

/// Columns between two cells.
const GAP: usize = 2;

/// A column that is written: its heading, alignment and the place of its cells in a row.
struct Column<'a> {
    heading: Text,
    align: Align,
    cells: Vec<&'a Text>,
    width: usize,
}

/// The table as lines.
pub(crate) fn table(table: &Table, style: &Style) -> String {
    let empty = Text::default();
    let used = table.used();
    let mut columns: Vec<Column<'_>> = used
        .iter()
        .map(|&index| Column {
            heading: Text::new(Role::Dim, &table.columns[index].0),
            align: table.columns[index].1,
            cells: table
                .rows
                .iter()
                .map(|row| row.get(index).unwrap_or(&empty))
                .collect(),
            width: 0,
        })
        .collect();
    fit(&mut columns, style.columns().saturating_sub(table.indent));
    let mut out = String::new();
    if columns.iter().any(|column| !column.heading.is_empty()) {
        let cells: Vec<&Text> = columns.iter().map(|column| &column.heading).collect();
        write_row(&mut out, table.indent, &columns, &cells, style);
    }
    for row in 0..table.rows.len() {
        let cells: Vec<&Text> = columns.iter().map(|column| column.cells[row]).collect();
        write_row(&mut out, table.indent, &columns, &cells, style);
    }
    out
}

/// Names with a value each, in two columns.
pub(super) fn facts(facts: &[(Text, Text)], style: &Style) -> String {
    let mut rows = Table::new(&[("", Align::Left), ("", Align::Left)]);
    for (name, value) in facts {
        rows.row(vec![name.clone().in_role(Role::Dim), value.clone()]);
    }
    table(&rows, style)
}

/// Gives each column what it needs, or for the widest ones what is left.
fn fit(columns: &mut [Column<'_>], width: usize) {
    for column in &mut *columns {
        let cells = column.cells.iter().map(|cell| cell.columns());
        column.width = cells.chain([column.heading.columns()]).max().unwrap_or(0);
    }
    let room = width.saturating_sub(GAP * columns.len().saturating_sub(1));
    let mut most = columns.iter().map(|column| column.width).max().unwrap_or(0);
    let total = |columns: &[Column<'_>], most: usize| {
        columns
            .iter()
            .map(|column| column.width.min(most))
            .sum::<usize>()
    };
    while most > 2 && total(columns, most) > room {
        most -= 1;
    }
    columns
        .iter_mut()
        .for_each(|column| column.width = column.width.min(most));
}

fn write_row(
    out: &mut String,
    indent: usize,
    columns: &[Column<'_>],
    cells: &[&Text],
    style: &Style,
) {
    let wrapped: Vec<Vec<Text>> = columns
        .iter()
        .zip(cells)
        .map(|(column, cell)| cell.lines(column.width))
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    for number in 0..height {
        let mut line = " ".repeat(indent);
        // Spaces are written only before text: no line ends in them.
        let mut pending = 0;
        for (column, lines) in columns.iter().zip(&wrapped) {
            let Some(text) = lines.get(number).filter(|text| !text.is_empty()) else {
                pending += column.width + GAP;
                continue;
            };
            let blank = column.width.saturating_sub(text.columns());
            let (before, after) = match column.align {
                Align::Right => (blank, 0),
                Align::Left => (0, blank),
            };
            line.push_str(&" ".repeat(pending + before));
            line.push_str(&paint(text, style));
            pending = after + GAP;
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// A heat map as a table; where it is too wide, blocks of columns one below the other.
pub(super) fn heat_map(map: &HeatMap, style: &Style) -> String {
    let cells: Vec<Vec<Text>> = map
        .cells
        .iter()
        .map(|row| {
            row.iter()
                .map(|cell| heat_cell(map, cell.as_ref()))
                .collect()
        })
        .collect();
    let width = |column: usize| {
        let texts = cells
            .iter()
            .filter_map(|row| row.get(column))
            .map(Text::columns);
        texts
            .chain([width_of(&map.columns[column])])
            .max()
            .unwrap_or(0)
    };
    let names = (0..map.row_heads.len()).map(|index| {
        let names = map.rows.iter().filter_map(|names| names.get(index));
        let widths = names.map(|name| width_of(name));
        GAP + widths
            .chain([width_of(&map.row_heads[index])])
            .max()
            .unwrap_or(0)
    });
    let room = style.columns().saturating_sub(names.sum());
    let mut out = String::new();
    let mut start = 0;
    while start < map.columns.len() {
        let (mut end, mut taken) = (start, 0);
        while end < map.columns.len() && (end == start || taken + GAP + width(end) <= room) {
            taken += GAP + width(end);
            end += 1;
        }
        let heads = map.row_heads.iter().chain(&map.columns[start..end]);
        let columns: Vec<_> = heads.map(|head| (head, Align::Right)).collect();
        let mut block = Table::new(&columns);
        for (names, cells) in map.rows.iter().zip(&cells) {
            let names = names.iter().map(|name| Text::new(Role::Heading, name));
            block.row(names.chain(cells[start..end].iter().cloned()));
        }
        out.push_str(&table(&block, style));
        start = end;
    }
    out
}

fn heat_cell(map: &HeatMap, cell: Option<&HeatCell>) -> Text {
    match cell {
        None => Role::Dim.text("-"),
        Some(cell) => {
            let is_known = cell.heat.is_finite();
            let role = if is_known {
                map.scale.role(cell.heat)
            } else {
                Role::Plain
            };
            role.text(format!("{}{}", cell.value, cell.spread))
        }
    }
}
