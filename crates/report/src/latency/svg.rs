//! A survey as a picture: a heat map a matrix, in one self-contained SVG file.

use maud::{Markup, PreEscaped, html};
use nearfar_bench::survey::Survey;
use nearfar_machine::Machine;

use super::panel::{Figure, Panel};
use super::panels;
use super::survey::{label, left_out, methods, warnings};
use crate::heat::HOTTEST;
use crate::summary;
use crate::topo::{SVG_THEME, at, ink, text};
use crate::wrapping::{clean, wrap};

/// Width of the picture in its own units.
const WIDTH: i32 = 960;
/// Space around everything, and between panels.
const MARGIN: i32 = 18;
/// Space for the names of rows.
const LABEL: i32 = 40;
/// Letters of the notes that fit into a line: 11 units high, about 0.52 of that wide.
const NOTE_COLUMNS: usize = ((WIDTH - 2 * MARGIN) as f64 / (11.0 * 0.52)) as usize;

/// Something drawn, and its size.
struct Drawn {
    markup: Markup,
    width: i32,
    height: i32,
}

/// A heat map of each matrix, with legends, warnings and method; legible on light and dark, all foreign text escaped, and
/// nothing fetched or run. `machine` names the machine that was measured.
pub fn survey_svg(survey: &Survey, machine: &Machine) -> String {
    let inner = WIDTH - 2 * MARGIN;
    let panels = panels::all(survey)
        .iter()
        .map(|panel| draw(panel, inner))
        .collect();
    let mut y = MARGIN + 58;
    let mut placed = Vec::new();
    for row in rows(panels, inner) {
        let mut x = MARGIN;
        let height = row.iter().map(|drawn| drawn.height).max().unwrap_or(0);
        for drawn in row {
            placed.push(html! { g transform=(at(x, y)) { (drawn.markup) } });
            x += drawn.width + 2 * MARGIN;
        }
        y += height + MARGIN;
    }
    let notes = notes(survey);
    placed.push(html! { g transform=(at(MARGIN, y)) { (notes.markup) } });
    let height = y + notes.height + MARGIN;
    let title = format!(
        "{}: near and far memory, {}",
        summary::name(machine),
        label(survey)
    );
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="nearfar-map" viewBox={ "0 0 " (WIDTH) " " (height) } role="img" {
            title { (clean(&title)) }
            style { (PreEscaped(SVG_THEME)) }
            rect class="paper" width=(WIDTH) height=(height) {}
            g transform=(at(MARGIN, MARGIN)) {
                (text("name", 0, 18, inner, 18, &summary::name(machine)))
                (text(if survey.emulated.is_some() { "warn" } else { "dim" }, 0, 36, inner, 12, &label(survey)))
            }
            @for part in &placed { (part) }
        }
    };
    drawing.into_string()
}

/// Panels side by side as far as they fit.
fn rows(panels: Vec<Drawn>, inner: i32) -> Vec<Vec<Drawn>> {
    let mut rows: Vec<Vec<Drawn>> = Vec::new();
    let mut taken = inner;
    for panel in panels {
        match rows.last_mut() {
            Some(row) if taken + 2 * MARGIN + panel.width <= inner => {
                taken += 2 * MARGIN + panel.width;
                row.push(panel);
            }
            _ => {
                taken = panel.width;
                rows.push(vec![panel]);
            }
        }
    }
    rows
}

fn draw(panel: &Panel, inner: i32) -> Drawn {
    let (columns, top) = (panel.columns.len().max(1) as i32, 52);
    let cell_width = ((inner - LABEL) / columns).clamp(3, 84);
    let cell_height = cell_width.clamp(3, 34);
    let size = (cell_width * 10 / 34).clamp(5, 13);
    let names = size.clamp(8, 11);
    let width = (LABEL + columns * cell_width).max(420).min(inner);
    // Where names would run into each other, every few of them are written.
    let (column_step, row_step) = (
        ((15 + cell_width) / cell_width) as usize,
        ((9 + cell_height) / cell_height) as usize,
    );
    let place = |index: usize, cell: i32, start: i32| start + index as i32 * cell;
    let markup = html! {
        (text("name", 0, 12, width, 14, &panel.title))
        (text("dim", 0, 28, width, 11, &panel.remark))
        (text("dim end", LABEL - 8, top - 6, LABEL, names, panel.corner))
        @for (column, name) in panel.columns.iter().enumerate().step_by(column_step) {
            text.dim.middle x=(place(column, cell_width, LABEL) + cell_width / 2) y=(top - 6) font-size=(names) { (clean(name)) }
        }
        @for (row, (name, cells)) in panel.rows.iter().zip(&panel.cells).enumerate() {
            @let y = place(row, cell_height, top);
            @if row.is_multiple_of(row_step) {
                text.dim.end x=(LABEL - 8) y=(y + (cell_height + names * 7 / 10) / 2) font-size=(names) { (clean(name)) }
            }
            @for (column, figure) in cells.iter().enumerate() {
                (cell(panel, figure.as_ref(), place(column, cell_width, LABEL), y, (cell_width, cell_height), size))
            }
        }
        (legend(panel, top + panel.rows.len() as i32 * cell_height + 12))
    };
    Drawn {
        markup,
        width,
        height: top + panel.rows.len() as i32 * cell_height + 42,
    }
}

fn cell(
    panel: &Panel,
    figure: Option<&Figure>,
    x: i32,
    y: i32,
    (width, height): (i32, i32),
    size: i32,
) -> Markup {
    let Some(figure) = figure else {
        return html! { rect class="hole" x=(x) y=(y) width=(width - 1) height=(height - 1) {} };
    };
    let step = panel.scale.step(figure.heat);
    let class = ink(Some(step));
    let (middle, two_lines) = (x + width / 2, height >= 30 && !figure.beside.is_empty());
    let baseline = y + (height + size * 7 / 10) / 2 - if two_lines { 6 } else { 0 };
    html! {
        g {
            title { (clean(&figure.about)) }
            rect class={ "h" (step) } x=(x) y=(y) width=(width - 1) height=(height - 1) {}
            @if width >= 22 { text class=(class) x=(middle) y=(baseline) font-size=(size) { (figure.value) } }
            @if two_lines { text class=(class) x=(middle) y=(baseline + 12) font-size="9" { (figure.beside.trim()) } }
        }
    }
}

/// The steps with the figures they stand for; nothing where all figures are the same.
fn legend(panel: &Panel, y: i32) -> Markup {
    let Some(spacing) = panel.scale.spacing() else {
        return html! {};
    };
    let width = 30;
    html! {
        @for step in 0..=HOTTEST {
            rect class={ "h" (step) } x=(LABEL + i32::from(step) * width) y=(y) width=(width - 1) height="8" {}
            @if step.is_multiple_of(3) {
                text.dim.middle x=(LABEL + i32::from(step) * width + width / 2) y=(y + 20) font-size="10" {
                    ((panel.legend)(panel.scale.figure(step)))
                }
            }
        }
        text.dim x=(LABEL + (i32::from(HOTTEST) + 1) * width + 8) y=(y + 8) font-size="10" { (spacing.to_string()) " scale" (panel.scale_of) }
    }
}

/// What was left out, the warnings, and how it was done.
fn notes(survey: &Survey) -> Drawn {
    let left_out = left_out(survey)
        .into_iter()
        .map(|(first, text)| ("warn", first + &text));
    let warnings = warnings(survey)
        .into_iter()
        .map(|warning| ("warn", warning));
    let methods = methods(survey).into_iter().map(|method| ("dim", method));
    let notes = left_out.chain(warnings).chain(methods);
    let lines: Vec<(&str, String)> = notes
        .flat_map(|(class, note)| {
            wrap(&clean(&note), NOTE_COLUMNS)
                .into_iter()
                .map(move |line| (class, line))
        })
        .collect();
    let height = lines.len() as i32 * 16;
    let markup = html! {
        @for (y, (class, line)) in (12..).step_by(16).zip(&lines) {
            text class=(class) x="0" y=(y) font-size="11" { (line) }
        }
    };
    Drawn {
        markup,
        width: WIDTH - 2 * MARGIN,
        height,
    }
}
