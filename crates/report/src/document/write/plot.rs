//! The drawing of charts, for pages and pictures alike.
//!
//! Places along x are in percent of the `svg` element around them, so that one drawing fits a phone and a large screen while
//! letters keep their size; places along y are in pixels.

use maud::{Markup, html};

use super::super::{Axis, Bars, Dot, DotsRow, Line};
use super::spread_over_scale;

/// Colours of lines; more lines begin again with the first.
const COLOURS: usize = 3;
/// Height of a row of dots or of a bar.
pub(super) const STRIP_HEIGHT: i32 = 20;
/// Height of a line of tick labels.
pub(super) const TICKS_HEIGHT: i32 = 16;
/// Height of a plot of x and y, without the labels of x.
const PLOT_HEIGHT: i32 = 220;
/// Height of a plot with the labels of x.
pub(super) const WHOLE_PLOT_HEIGHT: i32 = PLOT_HEIGHT + 22;
/// Space that labels of y need on the left.
pub(super) const Y_LABELS: i32 = 56;
/// Most ticks of an axis.
const TICKS: usize = 5;

/// A place along x.
fn at(axis: &Axis, figure: f64) -> String {
    percent(axis.share(figure))
}

fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}%")
}

/// Vertical lines at the ticks.
fn grid(axis: &Axis, height: i32) -> Markup {
    html! {
        @for (tick, _) in axis.ticks(TICKS) {
            line.tick x1=(at(axis, tick)) x2=(at(axis, tick)) y1="0" y2=(height) {}
        }
    }
}

/// The labels of the ticks; those at the ends stay inside.
pub(super) fn tick_labels(axis: &Axis, y: i32) -> Markup {
    html! {
        @for (tick, label) in axis.ticks(TICKS) {
            @let class = match axis.share(tick) {
                share if share < 0.06 => "dim",
                share if share > 0.94 => "dim end",
                _ => "dim middle",
            };
            text class=(class) x=(at(axis, tick)) y=(y) font-size="11" { (label) }
        }
    }
}

/// Every sample of a group, the interval of its median and the median.
pub(super) fn dots(row: &DotsRow, axis: &Axis) -> Markup {
    // Samples of one value stand below each other.
    let height = |index: usize| STRIP_HEIGHT / 2 + [0, -4, 4, -2, 2, -6, 6][index % 7];
    html! {
        (grid(axis, STRIP_HEIGHT))
        @if let Some((low, high)) = row.interval {
            rect.interval x=(at(axis, low)) width=(percent(axis.share(high) - axis.share(low))) y="3" height=(STRIP_HEIGHT - 6) rx="2" {}
        }
        @for (index, it) in row.dots.iter().enumerate() { (dot(it, axis, &height(index).to_string())) }
        @if let Some(median) = row.median {
            line.median x1=(at(axis, median)) x2=(at(axis, median)) y1="1" y2=(STRIP_HEIGHT - 1) {}
        }
    }
}

/// Shapes of the marks of lines; more lines begin again with the first. With the colours they make a dozen of different marks.
const SHAPES: [Option<&str>; 4] = [
    None,
    Some("M-2.3 -2.3H2.3V2.3H-2.3Z"),
    Some("M0 -3.2L3 2.2H-3Z"),
    Some("M0 -3.4L3 0L0 3.4L-3 0Z"),
];
/// A cross, of a sample with a warning.
const CROSS: &str =
    "M-3 -1.8L-1.8 -3L0 -1.2L1.8 -3L3 -1.8L1.2 0L3 1.8L1.8 3L0 1.2L-1.8 3L-3 1.8L-1.2 0Z";

/// A sample: its line by shape and colour, a cross where there is a warning.
fn dot(dot: &Dot, axis: &Axis, y: &str) -> Markup {
    let shape = match (dot.has_warning, dot.line) {
        (true, _) => Some(CROSS),
        (false, Some(line)) => SHAPES[line % SHAPES.len()],
        (false, None) => None,
    };
    let (class, x) = (class(dot), at(axis, dot.x));
    html! {
        @match shape {
            // A path has no percentages: the picture around it has.
            Some(path) => svg x=(x) y=(y) overflow="visible" { path class=(class) d=(path) {} },
            None => circle class=(class) cx=(x) cy=(y) r="2.4" {},
        }
    }
}

/// Whether dots are marked as those of their lines.
pub(super) fn is_marked(dots: &[Dot]) -> bool {
    dots.iter().any(|dot| dot.line.is_some())
}

/// A piece of a line, with the mark of its dots, for a legend.
pub(super) fn key(number: usize, is_marked: bool) -> Markup {
    let dot_of_line = Dot {
        x: 11.0,
        y: 0.0,
        has_warning: false,
        line: Some(number),
    };
    let axis = Axis {
        title: String::new(),
        low: 0.0,
        high: 22.0,
    };
    html! {
        line class={ "line line" (number % COLOURS) } x1="0" x2="22" y1="4" y2="4" {}
        @if is_marked { svg width="22" height="8" overflow="visible" { (dot(&dot_of_line, &axis, "4")) } }
    }
}

fn class(dot: &Dot) -> String {
    match (dot.has_warning, dot.line) {
        (true, _) => "dot warned".to_owned(),
        (false, Some(line)) => format!("dot of{}", line % COLOURS),
        (false, None) => "dot".to_owned(),
    }
}

/// A bar of amounts by class.
pub(super) fn bar(bars: &Bars, amounts: &[f64]) -> Markup {
    let step = spread_over_scale(bars.classes.len());
    let mut ends = vec![0.0];
    for amount in amounts {
        ends.push(ends.last().copied().unwrap_or(0.0) + amount);
    }
    html! {
        (grid(&bars.axis, STRIP_HEIGHT))
        @for (class, sides) in ends.windows(2).enumerate() {
            @let width = bars.axis.share(sides[1]) - bars.axis.share(sides[0]);
            @if width > 0.0 {
                rect class={ "part h" (step(class)) } x=(at(&bars.axis, sides[0])) width=(percent(width)) y="3" height=(STRIP_HEIGHT - 6) {
                    @if let Some(name) = bars.classes.get(class) { title { (name) ": " (amounts[class]) } }
                }
            }
        }
    }
}

/// Dots and lines over x, with the labels of both axes; those of y are left of the drawing.
pub(super) fn plot(x: &Axis, y: &Axis, dots: &[Dot], lines: &[Line]) -> Markup {
    let down = |figure: f64| format!("{:.1}", (1.0 - y.share(figure)) * f64::from(PLOT_HEIGHT));
    html! {
        (grid(x, PLOT_HEIGHT))
        @for (tick, label) in y.ticks(TICKS) {
            line.tick x1="0" x2="100%" y1=(down(tick)) y2=(down(tick)) {}
            text class="dim end" x="-8" y=(down(tick)) dy="4" font-size="11" { (label) }
        }
        @for it in dots { (dot(it, x, &down(it.y))) }
        @for (number, line) in lines.iter().enumerate() {
            @for points in line.points.windows(2) {
                line class={ "line line" (number % COLOURS) } x1=(at(x, points[0].0)) y1=(down(points[0].1))
                    x2=(at(x, points[1].0)) y2=(down(points[1].1)) {}
            }
        }
        (tick_labels(x, PLOT_HEIGHT + 16))
    }
}
