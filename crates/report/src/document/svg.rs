//! The heat maps and charts of a document as one self-contained picture, with its warnings and remarks.

use maud::{Markup, PreEscaped, html};

use super::chart::{
    self, Axis, Chart, Line, Plot, STRIP_HEIGHT, TICKS_HEIGHT, WHOLE_PLOT_HEIGHT, Y_LABELS,
};
use super::heat_map::spread_over_scale;
use super::{Block, HOTTEST, Head, HeatCell, HeatMap, Text, clean, wrap};
use crate::style::Role;
use crate::topo::{at, text, theme};

/// Width of the picture in its own units.
const WIDTH: i32 = 960;
/// Space around everything, and between drawings.
const MARGIN: i32 = 18;
/// Least space for the names of rows.
const MIN_LABEL: i32 = 40;
/// Letters of the notes that fit into a line: 11 units high, about 0.52 of that wide.
const NOTE_COLUMNS: usize = ((WIDTH - 2 * MARGIN) as f64 / (11.0 * 0.52)) as usize;

/// Height of a line of names.
const NAME_HEIGHT: i32 = 16;

/// Steps from which on a figure is written in the ink for hot cells.
const HOT: u8 = 7;

/// Something drawn, and its size.
pub(crate) struct Drawn {
    pub(crate) markup: Markup,
    width: i32,
    pub(crate) height: i32,
}

/// The picture: legible on light and dark, all foreign text escaped, nothing fetched or run.
pub(super) fn whole(head: &Head, blocks: &[Block]) -> String {
    let inner = WIDTH - 2 * MARGIN;
    let drawn = blocks.iter().filter_map(|block| match block {
        Block::HeatMap(map) => Some(heat_map(map, inner)),
        Block::Chart(chart) => Some(draw_chart(chart, inner)),
        _ => None,
    });
    let mut y = MARGIN + 58;
    let mut placed = Vec::new();
    for row in rows(drawn.collect(), inner) {
        let mut x = MARGIN;
        let height = row.iter().map(|drawn| drawn.height).max().unwrap_or(0);
        for drawn in row {
            placed.push(html! { g transform=(at(x, y)) { (drawn.markup) } });
            x += drawn.width + 2 * MARGIN;
        }
        y += height + MARGIN;
    }
    let notes = notes(blocks);
    placed.push(html! { g transform=(at(MARGIN, y)) { (notes.markup) } });
    let height = y + notes.height + MARGIN;
    let name = match head.tool.as_str() {
        "" => head.title.clone(),
        tool => format!("{tool}: {}", head.title),
    };
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="nearfar-map" viewBox={ "0 0 " (WIDTH) " " (height) } role="img" {
            title { (clean(&name)) ", " (clean(&head.remark)) }
            style { (PreEscaped(theme::style())) }
            rect class="paper" width=(WIDTH) height=(height) {}
            g transform=(at(MARGIN, MARGIN)) {
                (text("name", 0, 18, inner, 18, &name))
                (text(if head.emulated.is_some() { "warn" } else { "dim" }, 0, 36, inner, 12, &head.remark))
            }
            @for part in &placed { (part) }
        }
    };
    theme::with_attributes(&drawing.into_string())
}

/// Drawings side by side as far as they fit.
fn rows(all: Vec<Drawn>, inner: i32) -> Vec<Vec<Drawn>> {
    let mut rows: Vec<Vec<Drawn>> = Vec::new();
    let mut taken = inner;
    for drawn in all {
        match rows.last_mut() {
            Some(row) if taken + 2 * MARGIN + drawn.width <= inner => {
                taken += 2 * MARGIN + drawn.width;
                row.push(drawn);
            }
            _ => {
                taken = drawn.width;
                rows.push(vec![drawn]);
            }
        }
    }
    rows
}

/// A heat map below its title, at most so wide.
pub(crate) fn heat_map(map: &HeatMap, inner: i32) -> Drawn {
    let names: Vec<String> = map.rows.iter().map(|names| names.join(" ")).collect();
    let label = label_width(&names).max(MIN_LABEL);
    let (columns, top) = (map.columns.len().max(1) as i32, 52);
    let cell_width = ((inner - label) / columns).clamp(3, 84);
    let cell_height = cell_width.clamp(3, 34);
    let size = (cell_width * 10 / 34).clamp(5, 13);
    let name_size = size.clamp(8, 11);
    let width = (label + columns * cell_width).max(420).min(inner);
    // Where names would run into each other, every few of them are written.
    let (column_step, row_step) = (
        ((15 + cell_width) / cell_width) as usize,
        ((9 + cell_height) / cell_height) as usize,
    );
    let place = |index: usize, cell: i32, start: i32| start + index as i32 * cell;
    let markup = html! {
        (text("name", 0, 12, width, 14, &map.title))
        (text("dim", 0, 28, width, 11, &map.remark))
        (text("dim end", label - 8, top - 6, label, name_size, &map.row_heads.join(" ")))
        @for (column, name) in map.columns.iter().enumerate().step_by(column_step) {
            text.dim.middle x=(place(column, cell_width, label) + cell_width / 2) y=(top - 6) font-size=(name_size) { (clean(name)) }
        }
        @for (row, (name, cells)) in names.iter().zip(&map.cells).enumerate() {
            @let y = place(row, cell_height, top);
            @if row.is_multiple_of(row_step) {
                text.dim.end x=(label - 8) y=(y + (cell_height + name_size * 7 / 10) / 2) font-size=(name_size) { (clean(name)) }
            }
            @for (column, figure) in cells.iter().enumerate() {
                (cell(map, figure.as_ref(), place(column, cell_width, label), y, (cell_width, cell_height), size))
            }
        }
        (legend(map, label, top + map.rows.len() as i32 * cell_height + 12))
    };
    Drawn {
        markup,
        width,
        height: top + map.rows.len() as i32 * cell_height + 42,
    }
}

fn cell(
    map: &HeatMap,
    figure: Option<&HeatCell>,
    x: i32,
    y: i32,
    (width, height): (i32, i32),
    size: i32,
) -> Markup {
    let Some(figure) = figure else {
        return html! { rect class="hole" x=(x) y=(y) width=(width - 1) height=(height - 1) {} };
    };
    let step = map.scale.step(figure.heat);
    let (ground, class) = match step {
        _ if !figure.heat.is_finite() => ("hole".to_owned(), "middle"),
        HOT.. => (format!("h{step}"), "middle hot"),
        _ => (format!("h{step}"), "middle cool"),
    };
    let has_room = figure.value.chars().count() as i32 * size * 6 / 10 <= width;
    let (middle, two_lines) = (x + width / 2, height >= 30 && !figure.spread.is_empty());
    let baseline = y + (height + size * 7 / 10) / 2 - if two_lines { 6 } else { 0 };
    html! {
        g {
            @if !figure.about.is_empty() { title { (clean(&figure.about)) } }
            rect class=(ground) x=(x) y=(y) width=(width - 1) height=(height - 1) {}
            @if has_room { text class=(class) x=(middle) y=(baseline) font-size=(size) { (figure.value) } }
            @if two_lines { text class=(class) x=(middle) y=(baseline + 12) font-size="9" { (figure.spread.trim()) } }
        }
    }
}

/// The steps with the figures they stand for; nothing where all figures are the same.
pub(crate) fn legend(map: &HeatMap, label: i32, y: i32) -> Markup {
    let Some(name) = map.scale.name() else {
        return html! {};
    };
    let width = 30;
    html! {
        @for step in 0..=HOTTEST {
            rect class={ "h" (step) } x=(label + i32::from(step) * width) y=(y) width=(width - 1) height="8" {}
            @if step.is_multiple_of(3) {
                text.dim.middle x=(label + i32::from(step) * width + width / 2) y=(y + 20) font-size="10" {
                    (map.legend.get(usize::from(step)).map_or("", String::as_str))
                }
            }
        }
        text.dim x=(label + (i32::from(HOTTEST) + 1) * width + 8) y=(y + 8) font-size="10" { (name) (map.scale_of) }
    }
}

/// A chart over the whole width, below its title.
fn draw_chart(chart: &Chart, width: i32) -> Drawn {
    let top = 40;
    let (drawing, height) = match &chart.plot {
        Plot::Dots(dots) => {
            let rows = dots.rows.iter();
            let rows = rows.map(|row| (&row.names, chart::dots(row, &dots.axis)));
            strips(&dots.axis, rows.collect(), &[], width)
        }
        Plot::Bars(bars) => {
            let rows = bars.rows.iter();
            let rows = rows.map(|(names, amounts)| (names, chart::bar(bars, amounts)));
            strips(&bars.axis, rows.collect(), &bars.classes, width)
        }
        Plot::Lines { x, y, dots, lines } => {
            let drawing = html! {
                (text("dim", 0, 6, width, 11, &y.title))
                svg x=(Y_LABELS) y="16" width=(width - Y_LABELS) height=(WHOLE_PLOT_HEIGHT) overflow="visible" {
                    (chart::plot(x, y, dots, lines))
                }
                (text("dim end", width, WHOLE_PLOT_HEIGHT + 30, width, 11, &x.title))
                g transform=(at(Y_LABELS, WHOLE_PLOT_HEIGHT + 42)) { (names_of(lines, chart::is_marked(dots), width - Y_LABELS)) }
            };
            let names = lines.iter().filter(|line| !line.name.is_empty()).count();
            (drawing, WHOLE_PLOT_HEIGHT + 42 + NAME_HEIGHT * names as i32)
        }
    };
    let markup = html! {
        (text("name", 0, 12, width, 14, &chart.title))
        (text("dim", 0, 28, width, 11, &chart.about))
        g transform=(at(0, top)) { (drawing) }
    };
    Drawn {
        markup,
        width,
        height: top + height,
    }
}

/// The names of lines, each in a line of its own next to a piece of it.
fn names_of(lines: &[Line], is_marked: bool, width: i32) -> Markup {
    let named = lines.iter().enumerate();
    let named = named.filter(|(_, line)| !line.name.is_empty());
    html! {
        @for (y, (number, line)) in (0..).step_by(NAME_HEIGHT as usize).zip(named) {
            g transform=(at(0, y)) { (chart::key(number, is_marked)) }
            (text("dim", 30, y + 8, width - 30, 11, &line.name))
        }
    }
}

/// What the longest of these names needs.
fn label_width(names: &[String]) -> i32 {
    let lengths = names.iter().map(|name| name.chars().count());
    lengths.max().unwrap_or(0) as i32 * 7 + 12
}

/// Rows of dots or bars below the labels of their axis, and a legend.
fn strips(
    axis: &Axis,
    rows: Vec<(&Vec<String>, Markup)>,
    classes: &[String],
    width: i32,
) -> (Markup, i32) {
    let names: Vec<String> = rows.iter().map(|(names, _)| names.join(" ")).collect();
    let label = label_width(&names).clamp(MIN_LABEL, width / 2);
    let (room, first) = (width - label, TICKS_HEIGHT * 2);
    let y = |number: usize| first + number as i32 * STRIP_HEIGHT;
    let (end, step) = (y(rows.len()), spread_over_scale(classes.len()));
    let drawing = html! {
        (text("dim", label, 10, room, 11, &axis.title))
        svg x=(label) y=(TICKS_HEIGHT) width=(room) height=(TICKS_HEIGHT) { (chart::tick_labels(axis, TICKS_HEIGHT - 4)) }
        @for (number, ((_, drawing), name)) in rows.iter().zip(&names).enumerate() {
            (text("dim end", label - 8, y(number) + 14, label, 11, name))
            svg x=(label) y=(y(number)) width=(room) height=(STRIP_HEIGHT) { (drawing) }
        }
        @for (number, class) in classes.iter().enumerate() {
            @let x = label + number as i32 * 150;
            rect class={ "h" (step(number)) } x=(x) y=(end + 8) width="12" height="10" {}
            (text("dim", x + 18, end + 17, 130, 11, class))
        }
    };
    (drawing, end + if classes.is_empty() { 0 } else { 24 })
}

/// Warnings and paragraphs.
fn notes(blocks: &[Block]) -> Drawn {
    let class = |text: &Text| match text.spans().first().map(|span| span.role) {
        Some(Role::Dim) => "dim",
        _ => "note",
    };
    let note = |block: &Block| match block {
        Block::Warning(text) => Some(("warn", text.plain())),
        Block::Paragraph(it) if !it.label.is_empty() => {
            Some(("warn", it.label.plain() + &it.text.plain()))
        }
        // The command that it announces is not in the picture.
        Block::Paragraph(it) if it.text.plain().ends_with(':') => None,
        Block::Paragraph(it) => Some((class(&it.text), it.text.plain())),
        _ => None,
    };
    let wrapped = |(class, note): (&'static str, String)| {
        let lines = wrap(&note, NOTE_COLUMNS).into_iter();
        lines.map(move |line| (class, line))
    };
    let lines: Vec<(&str, String)> = blocks.iter().filter_map(note).flat_map(wrapped).collect();
    let markup = html! {
        @for (y, (class, line)) in (12..).step_by(16).zip(&lines) {
            text class=(class) x="0" y=(y) font-size="11" { (line) }
        }
    };
    Drawn {
        markup,
        width: WIDTH - 2 * MARGIN,
        height: lines.len() as i32 * 16,
    }
}
