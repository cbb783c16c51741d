//! Tables for a terminal, the way lscpu and ip write them: no boxes, two spaces between columns, wide columns wrapped.

use super::super::{Align, HeatMap, Table, Text};
use super::text::paint;
use crate::style::{Role, Style};
use crate::wrapping::columns as width_of;

/// Columns between two cells.
const GAP: usize = 2;

/// A cell in the lines that its column has room for.
struct Cell {
    lines: Vec<Text>,
    align: Align,
    width: usize,
}

/// Longer words may be broken.
const MAX_WORD: usize = 24;

/// The table as lines; where its words are too wide, blocks of columns one below the other, each with the first columns.
pub(crate) fn table(table: &Table, style: &Style) -> String {
    let room = style.columns().saturating_sub(table.indent);
    let blocks = blocks(table, room);
    blocks
        .iter()
        .map(|columns| block(table, columns, room, style))
        .collect()
}

/// The columns of each block: all of them where they fit.
fn blocks(table: &Table, room: usize) -> Vec<Vec<usize>> {
    let used = table.used();
    let least = |columns: &[usize]| -> usize {
        let words: usize = columns.iter().map(|&column| word(table, column)).sum();
        words + GAP * columns.len().saturating_sub(1)
    };
    let is_head = |&&column: &&usize| table.columns[column].1 == Align::Left;
    let heads = used.iter().take_while(is_head).count().max(1);
    let fits_with_heads = |&column: &usize| {
        let columns = [&used[..heads], &[column]].concat();
        least(&columns) <= room
    };
    let is_split =
        least(&used) > room && used.len() > heads && used[heads..].iter().all(fits_with_heads);
    if !is_split {
        return vec![used];
    }
    let mut blocks: Vec<Vec<usize>> = Vec::new();
    for &column in &used[heads..] {
        match blocks.last_mut() {
            Some(block) if least(&[&block[..], &[column]].concat()) <= room => block.push(column),
            _ => blocks.push([&used[..heads], &[column]].concat()),
        }
    }
    blocks
}

fn block(table: &Table, used: &[usize], room: usize, style: &Style) -> String {
    let mut widths: Vec<usize> = used.iter().map(|&column| width(table, column)).collect();
    let words: Vec<usize> = used.iter().map(|&column| word(table, column)).collect();
    fit(&mut widths, &words, room);
    let heads = table
        .columns
        .iter()
        .map(|(heading, _)| Role::Dim.text(heading));
    let heads: Vec<Text> = heads.collect();
    let has_heads = used.iter().any(|&column| !heads[column].is_empty());
    let mut out = String::new();
    for row in has_heads.then_some(&heads).into_iter().chain(&table.rows) {
        let cells = used.iter().zip(&widths).map(|(&column, &width)| Cell {
            lines: row
                .get(column)
                .map_or_else(Vec::new, |cell| cell.lines(width)),
            align: table.columns[column].1,
            width,
        });
        write_row(&mut out, table.indent, &cells.collect::<Vec<_>>(), style);
    }
    out
}

/// What the longest word of a column needs.
fn word(table: &Table, column: usize) -> usize {
    let cells = table.rows.iter().filter_map(|row| row.get(column));
    let of_cells = cells.map(Text::longest_word).max().unwrap_or(0);
    let heading = Text::from(table.columns[column].0.as_str());
    of_cells.max(heading.longest_word()).min(MAX_WORD)
}

/// What a column needs.
fn width(table: &Table, column: usize) -> usize {
    let cells = table.rows.iter().filter_map(|row| row.get(column));
    let widest = cells.map(Text::columns).max().unwrap_or(0);
    widest.max(width_of(&table.columns[column].0))
}

/// Names with a value each, in two columns.
pub(super) fn facts(facts: &[(Text, Text)], style: &Style) -> String {
    let mut rows = Table::of(["", ""]);
    for (name, value) in facts {
        rows.row([name.clone().in_role(Role::Dim), value.clone()]);
    }
    table(&rows, style)
}

/// Leaves each column what it needs, or the widest ones what is left. No column gets less than its longest word while there is room
/// for those.
fn fit(widths: &mut [usize], words: &[usize], room: usize) {
    let room = room.saturating_sub(GAP * widths.len().saturating_sub(1));
    let has_room = words.iter().sum::<usize>() <= room;
    let least = |column: usize| if has_room { words[column] } else { 0 };
    let given =
        |most: usize, (column, width): (usize, &usize)| (*width).min(most.max(least(column)));
    let mut most = widths.iter().copied().max().unwrap_or(0);
    while most > 2
        && widths
            .iter()
            .enumerate()
            .map(|it| given(most, it))
            .sum::<usize>()
            > room
    {
        most -= 1;
    }
    let fitted: Vec<usize> = widths
        .iter()
        .enumerate()
        .map(|it| given(most, it))
        .collect();
    widths.copy_from_slice(&fitted);
}

fn write_row(out: &mut String, indent: usize, cells: &[Cell], style: &Style) {
    let height = cells.iter().map(|cell| cell.lines.len()).max().unwrap_or(0);
    for number in 0..height {
        let mut line = " ".repeat(indent);
        // Spaces are written only before text: no line ends in them.
        let mut pending = 0;
        for cell in cells {
            let Some(text) = cell.lines.get(number).filter(|text| !text.is_empty()) else {
                pending += cell.width + GAP;
                continue;
            };
            let blank = cell.width.saturating_sub(text.columns());
            let (before, after) = match cell.align {
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
    let names = map.row_heads.len();
    let whole = map.table(0..map.columns.len());
    let needed = |column: usize| GAP + width(&whole, column);
    let room = style.columns().saturating_sub((0..names).map(needed).sum());
    let mut out = String::new();
    let mut start = 0;
    while start < map.columns.len() {
        let (mut end, mut taken) = (start, 0);
        while end < map.columns.len() && (end == start || taken + needed(names + end) <= room) {
            taken += needed(names + end);
            end += 1;
        }
        out.push_str(&table(&map.table(start..end), style));
        start = end;
    }
    out
}
