//! Charts as data.
//!
//! ```text
//!  Dots   a row a group:     0 F   ·  ··[·:·]· ·       every sample, the interval of the median
//!  Bars   a row a group:     0 F   ▓▓▓▓▒▒░░            amounts by class, from left to right
//!  Plot   x and y:           dots and lines            what changes over time
//! ```

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
