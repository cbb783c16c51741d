//! Charts for a terminal: a line a group, or a grid of characters.

use super::super::{Align, Axis, Bars, Chart, Dot, Dots, DotsRow, Line, Plot, Table, Text};
use super::text_table;
use crate::style::{Role, Style};

/// Lines of a plot of x and y.
const PLOT_LINES: usize = 10;
/// Least columns of a drawing; it takes what names leave of the width.
const MIN_COLUMNS: usize = 20;

/// The chart below its title.
pub(super) fn chart(chart: &Chart, style: &Style) -> String {
    match &chart.plot {
        Plot::Dots(dots) => dots_of(dots, style),
        Plot::Bars(bars) => bars_of(bars, style),
        Plot::Lines { x, y, dots, lines } => plot(x, y, dots, lines, style),
    }
}

/// Columns that names of rows leave, with their gaps.
fn room<'a>(heads: &[String], rows: impl Iterator<Item = &'a Vec<String>>, style: &Style) -> usize {
    let rows: Vec<&Vec<String>> = rows.chain([]).collect();
    let taken = heads.iter().enumerate().map(|(index, head)| {
        let names = rows.iter().filter_map(|names| names.get(index));
        names
            .chain([head])
            .map(|name| name.chars().count())
            .max()
            .unwrap_or(0)
            + 2
    });
    style
        .columns()
        .saturating_sub(2 + taken.sum::<usize>())
        .max(MIN_COLUMNS)
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
    let title: String = format!("{}, {ends}", axis.title)
        .chars()
        .take(columns)
        .collect();
    let mut heads: Vec<(String, Align)> = heads
        .iter()
        .map(|head| (head.clone(), Align::Right))
        .collect();
    heads.push((title, Align::Left));
    let mut table = Table::new(&heads);
    for (names, drawing) in lines {
        let names = names.iter().map(|name| Text::new(Role::Heading, name));
        table.row(names.chain([drawing]));
    }
    text_table::table(&table, style)
}

fn dots_of(dots: &Dots, style: &Style) -> String {
    let columns = room(
        &dots.row_heads,
        dots.rows.iter().map(|row| &row.names),
        style,
    );
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
            line.extend(std::iter::repeat_n(
                *mark,
                end.saturating_sub(line.chars().count()),
            ));
        }
        Text::from(line)
    };
    let lines = bars
        .rows
        .iter()
        .map(|(names, amounts)| (names, bar(amounts)));
    let text = rows(&bars.row_heads, &bars.axis, columns, lines.collect(), style);
    let legend = bars.classes.iter().zip(MARKS.iter().cycle());
    let legend: Vec<String> = legend
        .map(|(class, mark)| format!("{mark} {class}"))
        .collect();
    text + &super::text::paragraph(
        style,
        2,
        &Text::default(),
        &Text::new(Role::Dim, legend.join("  ")),
    )
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
