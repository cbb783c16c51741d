//! A document for a terminal. Tables are as lscpu and ip write them: no boxes, two spaces between columns, wide columns wrapped.

use nearfar_machine::shell_words;

use super::text::columns as width_of;
use super::{
    Align, Axis, Bars, Block, Chart, Dot, Dots, DotsRow, Head, HeatMap, Line, Plot, Table, Text,
};
use crate::style::{Role, Style};

/// The whole document, without an empty line at its start.
pub(super) fn whole(head: &Head, blocks: &[Block], style: &Style) -> String {
    let mut out = String::new();
    if !head.title.is_empty() {
        let (title, remark) = (Text::from(&head.title), Text::from(&head.remark));
        out.push_str(&heading(style, &title, &remark));
    }
    write(&mut out, blocks, style);
    out.strip_prefix('\n').map(str::to_owned).unwrap_or(out)
}

fn write(out: &mut String, blocks: &[Block], style: &Style) {
    for block in blocks {
        match block {
            Block::Heading(it) => out.push_str(&heading(style, &it.title, &it.remark)),
            Block::Paragraph(it) => out.push_str(&paragraph(style, it.indent, &it.label, &it.text)),
            Block::Warning(text) => {
                out.push_str(&paragraph(style, 2, &Text::new(Role::Warning, "! "), text));
            }
            Block::Facts(facts) => out.push_str(&facts_of(facts, style)),
            Block::Table(it) => out.push_str(&table_of(it, style)),
            Block::HeatMap(map) => {
                let (title, remark) = (Text::from(&map.title), Text::from(&map.remark));
                out.push_str(&heading(style, &title, &remark));
                out.push_str(&heat_map(map, style));
            }
            Block::Chart(chart) => {
                out.push_str(&heading(style, &Text::from(&chart.title), &Text::default()));
                out.push_str(&chart_of(chart, style));
            }
            Block::Command { label, command } => pasted(out, label, command, style),
            Block::Details {
                summary, blocks, ..
            } => {
                out.push_str(&paragraph(style, 2, &Text::default(), summary));
                write(out, blocks, style);
            }
            Block::Card { blocks, .. } => write(out, blocks, style),
            Block::Gap => out.push('\n'),
            Block::Picture(_) => {}
        }
    }
}

/// A command in lines that can be pasted: broken between words with a backslash, never within quotation marks. A word
/// that is longer than a line stays whole, since a broken one would be another command.
fn pasted(out: &mut String, label: &str, command: &str, style: &Style) {
    let before = match label {
        "" => "    ".to_owned(),
        label => format!("      {label:<10}"),
    };
    let room = style.columns().saturating_sub(width_of(&before) + 4);
    let mut lines: Vec<String> = Vec::new();
    for word in shell_words(command) {
        match lines.last_mut() {
            Some(line) if width_of(line) + 1 + width_of(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            Some(line) => {
                line.push_str(" \\");
                lines.push(format!("  {word}"));
            }
            None => lines.push(word.to_owned()),
        }
    }
    for (number, line) in lines.iter().enumerate() {
        let before = match (number, label) {
            (0, "") => before.clone(),
            (0, _) => style.paint(Role::Dim, &before).to_string(),
            _ => " ".repeat(width_of(&before)),
        };
        out.push_str(&format!("{before}{}\n", style.paint(Role::Subject, line)));
    }
}

/// A title behind an empty line, with a remark.
fn heading(style: &Style, title: &Text, remark: &Text) -> String {
    let gap = if remark.is_empty() { "" } else { "  " };
    let label = Role::Heading.text(title.plain() + gap);
    let remark = remark.clone().in_role(Role::Dim);
    format!("\n{}", paragraph(style, 0, &label, &remark))
}

/// Text wrapped below itself: the label before the first line, as many spaces before the others. A label that takes more than
/// half of the width is on lines of its own.
fn paragraph(style: &Style, indent: usize, label: &Text, text: &Text) -> String {
    let mut out = String::new();
    let mut line = |indent: usize, parts: &[&Text]| {
        let parts = parts.iter().map(|part| paint(part, style));
        let line = " ".repeat(indent) + &parts.collect::<String>();
        out.push_str(line.trim_end());
        out.push('\n');
    };
    let hang = indent + label.columns();
    if hang > style.columns() / 2 {
        for part in label.lines(style.columns().saturating_sub(indent)) {
            line(indent, &[&part]);
        }
        let below = text.lines(style.columns().saturating_sub(indent + 2));
        for part in below.iter().filter(|part| !part.is_empty()) {
            line(indent + 2, &[part]);
        }
        return out;
    }
    let lines = text.lines(style.columns().saturating_sub(hang));
    for (number, part) in lines.iter().enumerate() {
        match number {
            0 => line(indent, &[label, part]),
            _ => line(hang, &[part]),
        }
    }
    out
}

/// A line in the colours of its roles.
fn paint(text: &Text, style: &Style) -> String {
    let parts = text.spans().iter();
    parts.map(|it| style.paint(it.role, &it.text)).collect()
}

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
fn table_of(table: &Table, style: &Style) -> String {
    let room = style.columns().saturating_sub(table.indent);
    let blocks = blocks(table, room).into_iter();
    blocks
        .map(|columns| block(table, &columns, room, style))
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
    let heads = table.columns.iter();
    let heads: Vec<Text> = heads.map(|(heading, _)| Role::Dim.text(heading)).collect();
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
fn facts_of(facts: &[(Text, Text)], style: &Style) -> String {
    let mut rows = Table::of(["", ""]);
    for (name, value) in facts {
        rows.row([name.clone().in_role(Role::Dim), value.clone()]);
    }
    table_of(&rows, style)
}

/// Leaves each column what it needs, or the widest ones what is left. No column gets less than its longest word while there is room
/// for those.
fn fit(widths: &mut [usize], words: &[usize], room: usize) {
    let room = room.saturating_sub(GAP * widths.len().saturating_sub(1));
    let has_room = words.iter().sum::<usize>() <= room;
    let least = |column: usize| if has_room { words[column] } else { 0 };
    let given =
        |most: usize, (column, width): (usize, &usize)| (*width).min(most.max(least(column)));
    let fitted = |most: usize| -> Vec<usize> {
        let widths = widths.iter().enumerate();
        widths.map(|it| given(most, it)).collect()
    };
    let mut most = widths.iter().copied().max().unwrap_or(0);
    while most > 2 && fitted(most).iter().sum::<usize>() > room {
        most -= 1;
    }
    let fitted = fitted(most);
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
fn heat_map(map: &HeatMap, style: &Style) -> String {
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
        out.push_str(&table_of(&map.table(start..end), style));
        start = end;
    }
    out
}

/// Lines of a plot of x and y.
const PLOT_LINES: usize = 10;
/// Least columns of a drawing; it takes what names leave of the width.
const MIN_COLUMNS: usize = 20;

/// The chart below its title.
fn chart_of(chart: &Chart, style: &Style) -> String {
    match &chart.plot {
        Plot::Dots(dots) => dots_of(dots, style),
        Plot::Bars(bars) => bars_of(bars, style),
        Plot::Lines { x, y, dots, lines } => plot(x, y, dots, lines, style),
    }
}

/// Columns that names of rows leave, with their gaps.
fn room<'a>(heads: &[String], rows: impl Iterator<Item = &'a Vec<String>>, style: &Style) -> usize {
    let rows: Vec<&Vec<String>> = rows.collect();
    let taken = heads.iter().enumerate().map(|(index, head)| {
        let names = rows.iter().filter_map(|names| names.get(index));
        let lengths = names.chain([head]).map(|name| name.chars().count());
        lengths.max().unwrap_or(0) + 2
    });
    let taken: usize = taken.sum();
    let room = style.columns().saturating_sub(2 + taken);
    room.max(MIN_COLUMNS)
}

/// A table of rows with a drawing behind their names.
fn rows(
    heads: &[String],
    axis: &Axis,
    columns: usize,
    lines: Vec<(&Vec<String>, Text)>,
    style: &Style,
) -> String {
    let ends = format!("{} to {}", short(axis.low), short(axis.high));
    let title = format!("{}, {ends}", axis.title);
    let title: String = title.chars().take(columns).collect();
    let heads = heads.iter().map(|head| (head, Align::Right));
    let heads: Vec<_> = heads.chain([(&title, Align::Left)]).collect();
    let mut table = Table::new(&heads);
    for (names, drawing) in lines {
        let names = names.iter().map(|name| Text::new(Role::Heading, name));
        table.row(names.chain([drawing]));
    }
    table_of(&table, style)
}

fn dots_of(dots: &Dots, style: &Style) -> String {
    let names = dots.rows.iter().map(|row| &row.names);
    let columns = room(&dots.row_heads, names, style);
    let line = |row| Text::from(strip(row, &dots.axis, columns));
    let lines = dots.rows.iter().map(|row| (&row.names, line(row)));
    rows(&dots.row_heads, &dots.axis, columns, lines.collect(), style)
}

/// `.` one sample, `:` several, `=` the interval of the median, `|` the median.
fn strip(row: &DotsRow, axis: &Axis, columns: usize) -> String {
    let mut line = vec![' '; columns];
    let column = |figure: f64| (axis.share(figure) * (columns - 1) as f64).round() as usize;
    if let Some((low, high)) = row.interval {
        line[column(low)..=column(high)].fill('=');
    }
    for dot in &row.dots {
        let place = &mut line[column(dot.x)];
        *place = match *place {
            '.' | ':' => ':',
            _ => '.',
        };
    }
    if let Some(median) = row.median {
        line[column(median)] = '|';
    }
    line.into_iter().collect()
}

fn bars_of(bars: &Bars, style: &Style) -> String {
    const MARKS: [char; 6] = ['░', '▒', '▓', '█', '▄', '▀'];
    let columns = room(&bars.row_heads, bars.rows.iter().map(|row| &row.0), style);
    let bar = |amounts: &[f64]| {
        let mut line = String::new();
        let mut sum = 0.0;
        for (amount, mark) in amounts.iter().zip(MARKS.iter().cycle()) {
            sum += amount;
            let end = (bars.axis.share(sum) * columns as f64).round() as usize;
            let more = end.saturating_sub(line.chars().count());
            line.extend(std::iter::repeat_n(*mark, more));
        }
        Text::from(line)
    };
    let lines = bars.rows.iter();
    let lines = lines.map(|(names, amounts)| (names, bar(amounts)));
    let text = rows(&bars.row_heads, &bars.axis, columns, lines.collect(), style);
    let legend = bars.classes.iter().zip(MARKS.iter().cycle());
    let legend = legend.map(|(class, mark)| format!("{mark} {class}"));
    let legend = Role::Dim.text(legend.collect::<Vec<_>>().join("  "));
    text + &paragraph(style, 2, &Text::default(), &legend)
}

fn plot(x: &Axis, y: &Axis, dots: &[Dot], lines: &[Line], style: &Style) -> String {
    let columns = style.columns().saturating_sub(14).max(MIN_COLUMNS);
    let mut grid = vec![vec![' '; columns]; PLOT_LINES];
    let mut mark = |at: (f64, f64), mark: char| {
        let column = (x.share(at.0) * (columns - 1) as f64).round() as usize;
        let line = ((1.0 - y.share(at.1)) * (PLOT_LINES - 1) as f64).round() as usize;
        grid[line][column] = mark;
    };
    dots.iter().for_each(|dot| mark((dot.x, dot.y), '.'));
    let points = lines.iter().flat_map(|line| &line.points);
    points.for_each(|&point| mark(point, 'o'));
    let mut out = format!("  {}\n", y.title);
    for (number, line) in grid.iter().enumerate() {
        let name = match number {
            0 => short(y.high),
            _ if number == PLOT_LINES - 1 => short(y.low),
            _ => String::new(),
        };
        let line: String = line.iter().collect();
        let line = format!("  {name:>9} {line}");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let ends = format!("{}: {} to {}", x.title, short(x.low), short(x.high));
    out + &format!("  {:>9} {}\n", "", style.paint(Role::Dim, &ends))
}

/// A figure with four digits that mean something.
fn short(figure: f64) -> String {
    let decimals = crate::amount::decimals(figure.abs());
    format!("{figure:.decimals$}")
}
