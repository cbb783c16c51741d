//! Where most hosts of a cell are, and how far they scatter, when up to a third of them is elsewhere.

use statrs::distribution::{Continuous as _, ContinuousCDF as _, Normal};

/// Below this number of hosts the first window is the result: so few hosts beyond it say nothing of its width.
const REWEIGHTED_FROM: usize = 8;
/// Hosts further from the centre than this many scales do not count.
const KEPT_WITHIN: f64 = 3.0;
/// The standard deviation of a normal distribution that is cut off there.
const KEPT_DEVIATION: f64 = 0.986_6;
/// Below this number of hosts a cell's scale is at least that of all such cells together: its own may be small by chance.
const POOLED_BELOW: usize = 16;

/// The values of a cell.
pub(super) struct Column {
    /// Sorted logarithms, one or more.
    pub sorted: Vec<f64>,
    /// The scale is not less.
    pub min_scale: f64,
}

#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub centre: f64,
    pub scale: f64,
    /// The number of hosts that both are taken from.
    pub hosts: usize,
}

/// How many of so many hosts may deviate.
pub(super) fn most_deviating(hosts: usize) -> usize {
    hosts / 3
}

/// The spread of each cell; cells with few hosts share their scales.
pub(super) fn spreads(columns: &[Column]) -> Vec<Spread> {
    let mut spreads: Vec<Spread> = columns.iter().map(window).collect();
    pool(columns, &mut spreads);
    for (column, spread) in columns.iter().zip(&mut spreads) {
        if column.sorted.len() >= REWEIGHTED_FROM {
            *spread = reweight(column, *spread);
        }
    }
    pool(columns, &mut spreads);
    spreads
}

/// The contiguous two thirds of the values with the least variance.
fn window(column: &Column) -> Spread {
    let values = &column.sorted;
    let count = values.len() - most_deviating(values.len());
    // Relative to one of them, so that a large common part takes no digits from the rest.
    let origin = values[values.len() / 2];
    let relative = |place: usize| values[place] - origin;
    let (mut sum, mut squares) = (0.0, 0.0);
    for place in 0..count {
        sum += relative(place);
        squares += relative(place).powi(2);
    }
    let squares_about_mean = |sum: f64, squares: f64| squares - sum * sum / count as f64;
    let mut best = (squares_about_mean(sum, squares), 0);
    for place in count..values.len() {
        let (new, old) = (relative(place), relative(place - count));
        sum += new - old;
        squares += new * new - old * old;
        let candidate = squares_about_mean(sum, squares);
        if candidate < best.0 {
            best = (candidate, place + 1 - count);
        }
    }
    let kept = &values[best.1..best.1 + count];
    moments(kept, column, deviation_of_middle(count, values.len()))
}

/// The standard deviation of the middle `count` of `all` values of a standard normal distribution.
fn deviation_of_middle(count: usize, all: usize) -> f64 {
    let share = count as f64 / all as f64;
    if count == all {
        return 1.0;
    }
    let normal = Normal::standard();
    let end = normal.inverse_cdf(f64::midpoint(1.0, share));
    (1.0 - 2.0 * end * normal.pdf(end) / share).sqrt()
}

fn reweight(column: &Column, first: Spread) -> Spread {
    let limit = KEPT_WITHIN * first.scale;
    let values = &column.sorted;
    let start = values.partition_point(|value| *value < first.centre - limit);
    let end = values.partition_point(|value| *value <= first.centre + limit);
    if end.saturating_sub(start) < first.hosts {
        return first;
    }
    moments(&values[start..end], column, KEPT_DEVIATION)
}

fn moments(kept: &[f64], column: &Column, deviation: f64) -> Spread {
    let count = kept.len() as f64;
    let origin = kept[kept.len() / 2];
    let mean = kept.iter().map(|value| value - origin).sum::<f64>() / count;
    let squares: f64 = kept
        .iter()
        .map(|value| (value - origin - mean).powi(2))
        .sum();
    let scale = (squares / (count - 1.0).max(1.0)).sqrt() / deviation;
    Spread {
        centre: origin + mean,
        scale: scale.max(column.min_scale),
        hosts: kept.len(),
    }
}

fn pool(columns: &[Column], spreads: &mut [Spread]) {
    let is_pooled = |column: &Column| column.sorted.len() < POOLED_BELOW;
    let (mut squares, mut count) = (0.0, 0.0);
    for (_, spread) in columns.iter().zip(&*spreads).filter(|it| is_pooled(it.0)) {
        squares += spread.scale.powi(2);
        count += 1.0;
    }
    let common = (squares / f64::max(count, 1.0)).sqrt();
    for (_, spread) in columns.iter().zip(spreads).filter(|it| is_pooled(it.0)) {
        spread.scale = spread.scale.max(common);
    }
}
