//! The common shift of hosts that deviate.

use serde::{Deserialize, Serialize};

use super::variance::{Quantiles, Variance};
use super::{Outliers, Values, ratio};

/// From this number of hosts on, their own spread counts as well.
const SPREAD_FROM: usize = 3;

/// How far some hosts are from the centre of their group together.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Shift {
    /// Number of hosts that measured one of the cells.
    pub hosts: usize,
    /// Geometric mean of their values over those of the group's centre.
    pub ratio: f64,
    /// Lower end of the 95 % interval of the ratio.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

/// The common shift of these hosts against the rest, over these cells; `None` where no host measured one of the cells, or none of
/// them is judged.
///
/// Each host has the mean of its distances from the centres; the shift is the mean over hosts. Its interval holds the errors of the
/// measurement, of three hosts or more also how the hosts differ (Student's), whichever is wider, and the error of the centres, which
/// is not divided by the number of cells because the same hosts may be above the mean in all of them.
pub fn common_shift(
    values: &Values,
    outliers: &Outliers,
    hosts: &[usize],
    cells: &[usize],
) -> Option<Shift> {
    let means: Vec<(f64, Variance)> = distinct(hosts)
        .filter_map(|host| mean_distance(values, outliers, host, cells))
        .collect();
    let mut quantiles = Quantiles::default();
    let count = means.len() as f64;
    let shift = means.iter().map(|it| it.0).sum::<f64>() / count;
    let of_hosts = half_of_hosts(&means, shift, &mut quantiles);
    let centres = distinct(cells)
        .filter_map(|cell| outliers.references.get(cell)?.as_ref())
        .map(|it| it.centre_variance());
    let centre = centres.max_by(|a, b| a.value.total_cmp(&b.value))?;
    let half = of_hosts.hypot(quantiles.half_interval(centre));
    (!means.is_empty()).then(|| Shift {
        hosts: means.len(),
        ratio: ratio(shift),
        low: ratio(shift - half),
        high: ratio(shift + half),
    })
}

fn distinct(places: &[usize]) -> impl Iterator<Item = usize> {
    let distinct: std::collections::BTreeSet<usize> = places.iter().copied().collect();
    distinct.into_iter()
}

/// Mean distance of a host from the centres, and the variance of its measurement.
fn mean_distance(
    values: &Values,
    outliers: &Outliers,
    host: usize,
    cells: &[usize],
) -> Option<(f64, Variance)> {
    let of_cell = |cell: usize| {
        let reference = outliers.references.get(cell)?.as_ref()?;
        let location = values.get(cell, host)?;
        let distance = location.log_median - reference.centre;
        Some((distance, reference.location_variance(location)))
    };
    mean(distinct(cells).filter_map(of_cell))
}

/// The mean of independent figures and its variance.
fn mean(figures: impl Iterator<Item = (f64, Variance)>) -> Option<(f64, Variance)> {
    let add = |(sum, variance, count): (f64, Variance, f64), it: (f64, Variance)| {
        (sum + it.0, variance.plus(it.1), count + 1.0)
    };
    let (sum, variance, count) = figures
        .map(|(figure, variance)| (figure, variance, 1.0))
        .reduce(|all, (figure, variance, _)| add(all, (figure, variance)))?;
    let variance = Variance {
        value: variance.value / (count * count),
        ..variance
    };
    Some((sum / count, variance))
}

fn half_of_hosts(means: &[(f64, Variance)], shift: f64, quantiles: &mut Quantiles) -> f64 {
    let measured = mean(means.iter().copied()).map_or(0.0, |it| quantiles.half_interval(it.1));
    let count = means.len() as f64;
    let squares: f64 = means.iter().map(|it| (it.0 - shift).powi(2)).sum();
    let spread = Variance {
        value: squares / (count * (count - 1.0)),
        freedom: count - 1.0,
    };
    match means.len() >= SPREAD_FROM {
        true => measured.max(quantiles.half_interval(spread)),
        false => measured,
    }
}
