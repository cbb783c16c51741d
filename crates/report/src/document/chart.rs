//! Charts: as data, and as they are drawn on pages and pictures alike.
//!
//! ```text
//!  Dots   a row a group:     0 F   ·  ··[·:·]· ·       every sample, the interval of the median
//!  Bars   a row a group:     0 F   ▓▓▓▓▒▒░░            amounts by class, from left to right
//!  Plot   x and y:           dots and lines            what changes over time
//! ```
//!
//! In a drawing, places along x are in percent of the `svg` element around them, so that one drawing fits a phone and a large screen
//! while letters keep their size; places along y are in pixels.

use maud::{Markup, html};

use super::heat_map::spread_over_scale;

/// A chart with its title.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    /// What it shows, in a sentence, also for those who do not see it.
    pub about: String,
    pub plot: Plot,
}

/// What is drawn.
#[derive(Clone, Debug)]
pub enum Plot {
    Dots(Dots),
    Bars(Bars),
    Lines {
        x: Axis,
        y: Axis,
        dots: Vec<Dot>,
        lines: Vec<Line>,
    },
}

/// A range of figures with ticks.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// The quantity with its unit: `elapsed time (s)`.
    pub title: String,
    pub low: f64,
    pub high: f64,
}

/// Every sample of groups.
#[derive(Clone, Debug)]
pub struct Dots {
    /// What the names of rows are.
    pub row_heads: Vec<String>,
    pub axis: Axis,
    pub rows: Vec<DotsRow>,
}

/// The samples of one group.
#[derive(Clone, Debug)]
pub struct DotsRow {
    pub names: Vec<String>,
    pub dots: Vec<Dot>,
    pub median: Option<f64>,
    /// The interval of the median.
    pub interval: Option<(f64, f64)>,
    /// The figures in words.
    pub about: String,
}

/// One sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Dot {
    /// Where it is along the horizontal axis.
    pub x: f64,
    /// Where it is along the vertical axis; of no meaning in rows of dots.
    pub y: f64,
    /// Whether there is a warning about it.
    pub has_warning: bool,
    /// The position of the line that it belongs to, of several.
    pub line: Option<usize>,
}

/// Amounts by class.
#[derive(Clone, Debug)]
pub struct Bars {
    pub row_heads: Vec<String>,
    pub axis: Axis,
    /// The classes, from best to worst: their colours follow that order.
    pub classes: Vec<String>,
    /// Names of a row, then an amount for each class.
    pub rows: Vec<(Vec<String>, Vec<f64>)>,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

impl Axis {
    /// An axis over these figures with a margin; what is not finite is left out.
    pub fn over(title: impl Into<String>, figures: impl IntoIterator<Item = f64>) -> Self {
        let finite = figures.into_iter().filter(|figure| figure.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| {
            (low.min(it), high.max(it))
        });
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let margin = match high - low {
            0.0 => (high.abs() * 0.05).max(1e-9),
            range => range * 0.04,
        };
        // Amounts begin at zero, not below it.
        let below = if low >= 0.0 {
            (low - margin).max(0.0)
        } else {
            low - margin
        };
        Self {
            title: title.into(),
            low: below,
            high: high + margin,
        }
    }

    /// An axis from zero.
    pub fn from_zero(title: impl Into<String>, figures: impl IntoIterator<Item = f64>) -> Self {
        Self {
            low: 0.0,
            ..Self::over(title, figures.into_iter().chain([0.0]))
        }
    }

    /// Where a figure is, from 0 to 1.
    pub(super) fn share(&self, figure: f64) -> f64 {
        ((figure - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// At most `most` round figures within the axis, with their texts.
    pub(super) fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / most.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(rough);
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let first = (self.low / step).ceil() as i64;
        (first..)
            .map(|number| number as f64 * step)
            .take_while(|tick| *tick <= self.high)
            .take(most + 1)
            .map(|tick| (tick, format!("{tick:.decimals$}")))
            .collect()
    }
}

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_are_round() {
        let texts = |low, high| {
            let axis = Axis {
                title: String::new(),
                low,
                high,
            };
            let ticks = axis.ticks(5).into_iter().map(|(_, text)| text);
            ticks.collect::<Vec<_>>()
        };
        assert_eq!(texts(2.8, 4.3), ["3.0", "3.5", "4.0"]);
        assert_eq!(texts(0.0, 50.0), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(
            texts(0.0, 0.0021),
            ["0.0000", "0.0005", "0.0010", "0.0015", "0.0020"]
        );
    }

    proptest! {
        #[test]
        fn all_figures_lie_on_their_axis(figures in prop::collection::vec(-1e9..1e9f64, 1..20)) {
            let axis = Axis::over("", figures.iter().copied());
            prop_assert!(figures.iter().all(|&it| axis.low <= it && it <= axis.high));
            let ticks = axis.ticks(5);
            prop_assert!(ticks.len() <= 6 && ticks.iter().all(|(tick, _)| axis.low <= *tick && *tick <= axis.high));
        }
    }
}
