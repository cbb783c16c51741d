//! Which hosts of a group that should be alike deviate, in which cells and by how much.
//!
//! ```text
//! samples of a host in a cell ──► Location   median of their logarithms, standard error
//! locations of all hosts      ──► Reference  centre and scale of the hosts of a cell, thresholds
//! both                        ──► Deviation  z = (location - centre) / scale, ratio with a 95 % interval
//! ```
//!
//! # Method
//! A host is named where |z| is above `critical` in any cell. Up to a third of the hosts may deviate, in either direction.
//!
//! - Centre and scale: mean and standard deviation of the contiguous two thirds of the sorted values with the least variance (the
//!   minimum covariance determinant in one dimension; P. Rousseeuw & A. Leroy, Robust Regression and Outlier Detection, 1987), the
//!   latter divided by that of the middle two thirds of a normal distribution. From 8 hosts on both are taken again from all hosts
//!   within 3 scales (reweighting, same source).
//! - Below 16 hosts a cell's scale is at least the root mean square of those of all such cells: a few values can be close to each
//!   other by chance, and cells are not equally noisy.
//! - The scale is at least [`MIN_SCALE`], half of a step of the clock, and the usual standard error of a host.
//! - A host with fewer or noisier samples than the others has a larger scale: sqrt(scale^2 + its error^2 - the usual error^2).
//! - `critical`: below 32 hosts simulated, the quantile of the largest |z| of groups of alike hosts with the same missing values, the
//!   larger one of independent cells and of cells that share an effect of the host. From 32 hosts on the quantile of Student's
//!   distribution with 0.6 (n - 1) degrees of freedom at 1 - rate / (2 n m), for n hosts and m cells (Bonferroni).
//! - The other cells of a host that is named are compared with `critical_of_named`, which one given host exceeds in any of its cells at
//!   the same rate. Otherwise cells of a host that certainly deviates are missed.
//! - The interval of a ratio has the variance of the location, in which the host's own counts with k - 1 degrees of freedom and that of
//!   the other hosts with 4, and of the centre (F. E. Satterthwaite, 1946). A deviation whose interval holds 1 is not given.
//!
//! The distance in scales at which one of n hosts is found in 90 % of groups, one cell, 5 % false alarms; the modified z of
//! B. Iglewicz & D. Hoaglin (How to Detect and Handle Outliers, 1993) divides by the MAD, Qn is that of P. Rousseeuw & C. Croux
//! (Alternatives to the Median Absolute Deviation, J. Am. Stat. Assoc. 88, 1993):
//!
//! | hosts | MAD | Qn | this |
//! |---|---|---|---|
//! | 4 | 13.0 | 13.0 | 13.0 |
//! | 5 | 15.4 | 14.0 | 8.2 |
//! | 6 | 9.2 | 8.2 | 9.2 |
//! | 8 | 7.7 | 6.6 | 5.9 |
//! | 16 | 5.7 | 4.8 | 4.5 |
//! | 31 | 4.9 | 4.3 | 4.1 |
//!
//! # Measured rates
//! The example `outlier_rates` prints these tables with more columns. Alike groups in which a host is named, at most 5 %; normal noise
//! of 1 % a sample, 0.3 to 1 % between hosts. 1000 groups of up to 1000 hosts (standard error 0.7 % at a rate of 5 %). The
//! example draws 800, 200 and 50 groups of 10,000 hosts. Those with 1 sample here are of 6000, 2000 and 500 groups, the other two of 16
//! cells with a shared effect of 150 and 500.
//!
//! | hosts | cells | 5 samples | 5 samples, shared effect | 5 samples, hosts do not differ | 1 sample | 1 sample, shared effect |
//! |---|---|---|---|---|---|---|
//! | 4 | 1 | 0.5 % | 0.4 % | 0.0 % | 4.4 % | 4.7 % |
//! | 4 | 4 | 0.0 % | 0.1 % | 0.0 % | 0.3 % | 5.5 % |
//! | 4 | 16 | 0.0 % | 0.0 % | 0.0 % | 0.0 % | 4.4 % |
//! | 5 | 1 | 1.3 % | 1.4 % | 0.0 % | 4.6 % | 4.0 % |
//! | 5 | 4 | 0.5 % | 0.4 % | 0.0 % | 0.5 % | 5.5 % |
//! | 5 | 16 | 0.0 % | 0.2 % | 0.0 % | 0.1 % | 5.7 % |
//! | 8 | 1 | 1.1 % | 1.6 % | 0.0 % | 3.8 % | 3.8 % |
//! | 8 | 4 | 0.2 % | 0.1 % | 0.0 % | 0.5 % | 5.2 % |
//! | 8 | 16 | 0.0 % | 0.2 % | 0.0 % | 0.0 % | 5.4 % |
//! | 16 | 1 | 3.6 % | 3.5 % | 0.2 % | 3.4 % | 3.7 % |
//! | 16 | 4 | 2.8 % | 1.9 % | 0.0 % | 4.3 % | 1.5 % |
//! | 16 | 16 | 1.4 % | 0.8 % | 0.0 % | 4.2 % | 0.2 % |
//! | 50 | 1 | 2.4 % | 2.0 % | 0.3 % | 2.6 % | 3.5 % |
//! | 50 | 4 | 2.8 % | 3.1 % | 0.3 % | 3.3 % | 0.4 % |
//! | 50 | 16 | 1.9 % | 1.0 % | 0.0 % | 3.5 % | 0.4 % |
//! | 200 | 1 | 2.4 % | 2.4 % | 0.8 % | 4.6 % | 4.5 % |
//! | 200 | 4 | 1.6 % | 3.0 % | 0.7 % | 4.5 % | 1.0 % |
//! | 200 | 16 | 3.0 % | 1.7 % | 0.4 % | 4.1 % | 0.2 % |
//! | 1000 | 1 | 2.4 % | 2.7 % | 0.7 % | 5.7 % | 6.1 % |
//! | 1000 | 4 | 2.4 % | 2.8 % | 0.7 % | 4.8 % | 1.3 % |
//! | 1000 | 16 | 2.6 % | 2.2 % | 0.4 % | 5.6 % | 0.4 % |
//! | 10000 | 1 | 2.8 % | 3.0 % | 0.6 % | 5.1 % | 4.2 % |
//! | 10000 | 4 | 0.5 % | 2.5 % | 0.5 % | 4.7 % | 0.5 % |
//! | 10000 | 16 | 4.0 % | 2.7 % | 0.0 % | 5.4 % | 0.2 % |
//!
//! With other distributions, 4 cells, noise of 1 %. Noise is without differences of the hosts; "hosts": they differ by 1 % in this
//! distribution. Heavy tails are those of Student's distribution with 5 degrees of freedom, skewed is exponential:
//!
//! | hosts | noise: heavy tails | noise: skewed | noise of hosts 0.5 to 2 % | the same, 30 samples | last cell 10 times as noisy | hosts: heavy tails | hosts: skewed |
//! |---|---|---|---|---|---|---|---|
//! | 4 | 0.0 % | 0.0 % | 0.0 % | 0.0 % | 3.9 % | 0.1 % | 0.8 % |
//! | 5 | 0.0 % | 0.0 % | 0.1 % | 0.1 % | 4.6 % | 2.1 % | 8.1 % |
//! | 8 | 0.0 % | 0.1 % | 0.1 % | 0.0 % | 5.3 % | 2.8 % | 10.1 % |
//! | 16 | 0.0 % | 0.1 % | 0.4 % | 1.6 % | 5.0 % | 14.2 % | 39.7 % |
//! | 50 | 0.3 % | 3.9 % | 4.4 % | 1.9 % | 4.8 % | 43.6 % | 86.0 % |
//! | 200 | 2.1 % | 15.3 % | 10.3 % | 3.1 % | 4.8 % | 85.4 % | 99.9 % |
//! | 1000 | 4.1 % | 39.0 % | 18.4 % | 3.5 % | 5.7 % | 100.0 % | 100.0 % |
//! | 10000 | 5.5 % | 79.0 % | 38.0 % | 3.0 % | 6.5 % | 100.0 % | 100.0 % |
//! | 10000 | 20 by 5 % in 16 | 50 | 0.0 % | 0.0 % | 97.4 % | 100.0 % | 100.0 % |
//! | 10000 | 500 by ±5 % in 16 | 50 | 0.0 % | 0.0 % | 97.3 % | 100.0 % | 100.0 % |
//! | 10000 | 3333 by 10 % in 16 | 50 | 0.0 % | 0.0 % | 97.2 % | 100.0 % | 100.0 % |
//! | 4 | 1 by 30 % in 2 | 1000 | 0.0 % | 0.0 % | 99.4 % | 100.0 % | 100.0 % |
//! | 4 | 1 by 30 % in 2 | 1000 | 0.0 % | 0.1 % | 99.7 % | 97.7 % | 97.3 % |
//! | 4 | 1 by 15 % in 2 | 1000 | 0.0 % | 0.0 % | 99.3 % | 91.7 % | 91.7 % |
//! | 5 | 1 by 15 % in 2 | 1000 | 0.0 % | 0.3 % | 98.6 % | 100.0 % | 100.0 % |
//! | 8 | 1 by 10 % in 2 | 1000 | 0.0 % | 0.8 % | 97.1 % | 99.9 % | 99.9 % |
//! | 6 | 2 by 10 % in 4 | 1000 | 0.0 % | 0.0 % | 99.7 % | 94.2 % | 92.5 % |
//! | 8 | 2 by 10 % in 4 | 1000 | 0.0 % | 0.0 % | 97.0 % | 100.0 % | 100.0 % |
//! | 9 | 3 by ±10 % in 4 | 1000 | 0.0 % | 0.0 % | 96.5 % | 100.0 % | 100.0 % |
//! | 16 | 5 by 10 % in 4 | 1000 | 0.0 % | 0.0 % | 96.8 % | 100.0 % | 100.0 % |
//! | 50 | 16 by 10 % in 4 | 1000 | 0.0 % | 0.0 % | 97.0 % | 100.0 % | 100.0 % |
//! | 50 | 5 by 10 % in 4 | 1000 | 2.6 % | 0.0 % | 96.2 % | 100.0 % | 100.0 % |
//! | 50 | 5 by 10 % in 4 | 1000 | 1.1 % | 0.0 % | 96.2 % | 100.0 % | 100.0 % |
//! | 200 | 66 by ±10 % in 16 | 1000 | 0.0 % | 0.0 % | 97.2 % | 100.0 % | 100.0 % |
//! | 1000 | 20 by 5 % in 4 | 500 | 1.2 % | 3.6 % | 97.3 % | 100.0 % | 100.0 % |
//! | 12 | 2 by 10 % in 4 | 1000 | 0.0 % | 1.4 % | 96.5 % | 100.0 % | 100.0 % |
//!
//! The rate is held where hosts differ normally or not at all, also with unequal cells and with noise of heavy tails. It is not held
//! where
//! - alike hosts differ with heavy tails or skew, from 16 hosts on: hosts in the tail are named, and they do differ from the centre by
//!   what their interval says. [`Reference::has_heavy_tails`] reports such groups from about 500 hosts on.
//! - noise is very skewed, or four times as large on some hosts as on others, with few samples and 200 hosts or more: 30 samples help.
//!
//! A caller that has no use for small deviations compares `low` or `high` with the smallest that matters.
//!
//! Power: of 10,000 hosts with 16 cells, 5 samples of 1 % and 0.3 % between hosts each deviation of 5 % is found, of 20 hosts and of
//! 500, and each of 10 % of 3333 hosts; of 4 hosts with 4 cells and 6 samples of 2 % one that is 30 % slower in 2 cells in 100 %, 15 %
//! slower in 92 % of groups. Intervals of ratios hold the truth in 96 to 99 %.
//!
//! # Limits
//! Below 6 samples a host's own noise is partly taken from the other hosts. Four hosts need a large deviation (20 standard errors or
//! more). If more than a third of the hosts deviate the same way, the centre may be theirs, or
//! between both: [`split()`] finds such groups.

mod reference;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use reference::{Quantiles, Variance, deviation_of_median, references};

pub use reference::{Location, Thresholds};

/// A cell with fewer hosts is not judged: of three hosts one that deviates is not distinct from two that do.
pub const MIN_HOSTS: usize = 4;
/// The scale is not less (0.1 %): a difference of a few times as much has no use, and values that are all equal have no scale of their
/// own.
pub const MIN_SCALE: f64 = 0.001;
/// The threshold of fewer false alarms takes too long to simulate.
pub const MIN_FALSE_ALARMS: f64 = 1e-4;
pub const MAX_FALSE_ALARMS: f64 = 0.5;
/// |z| of hosts that are counted as far from the centre.
pub const FAR: f64 = 3.0;
/// Logarithms of ratios are cut off here, so that the ratio is a number.
const MAX_LOG_RATIO: f64 = 700.0;

/// The values of one metric of a group of hosts.
#[derive(Clone, PartialEq, Debug)]
pub struct Values {
    hosts: usize,
    cells: usize,
    /// Cell after cell.
    locations: Vec<Option<Location>>,
    resolution: Option<f64>,
}

impl Values {
    /// Of so many cells and hosts; `location` gives that of a cell and a host, `None` where the host did not measure the cell. A
    /// location that is not finite counts as not measured.
    pub fn from_fn(
        cells: usize,
        hosts: usize,
        mut location: impl FnMut(usize, usize) -> Option<Location>,
    ) -> Self {
        let places = (0..cells).flat_map(|cell| (0..hosts).map(move |host| (cell, host)));
        let locations = places
            .map(|(cell, host)| location(cell, host).filter(Location::is_valid))
            .collect();
        Self {
            hosts,
            cells,
            locations,
            resolution: None,
        }
    }

    /// The step of the clock or counter, in the unit of the samples. Without it the step is taken from samples and hosts that have
    /// equal values.
    pub fn with_resolution(self, step: f64) -> Self {
        let resolution = Some(step).filter(|step| step.is_finite() && *step > 0.0);
        Self { resolution, ..self }
    }

    pub fn hosts(&self) -> usize {
        self.hosts
    }

    pub fn cells(&self) -> usize {
        self.cells
    }

    /// `None` where the host did not measure the cell, or there is no such cell or host.
    pub fn get(&self, cell: usize, host: usize) -> Option<&Location> {
        self.row(cell).get(host)?.as_ref()
    }

    fn row(&self, cell: usize) -> &[Option<Location>] {
        let start = cell.saturating_mul(self.hosts);
        self.locations
            .get(start..start.saturating_add(self.hosts))
            .unwrap_or(&[])
    }

    /// The hosts that measured a cell.
    fn measured(&self, cell: usize) -> impl Iterator<Item = (usize, &Location)> {
        let row = self.row(cell).iter().enumerate();
        row.filter_map(|(host, location)| Some((host, location.as_ref()?)))
    }
}

/// What the hosts of a cell are compared with. Figures are of natural logarithms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reference {
    /// Number of hosts that measured the cell.
    pub hosts: usize,
    /// Mean of the hosts that do not deviate.
    pub centre: f64,
    /// Standard error of the centre.
    pub centre_error: f64,
    /// Standard deviation of the hosts that do not deviate, [`MIN_SCALE`] or more.
    pub scale: f64,
    /// Threshold on |z|.
    pub critical: f64,
    /// Threshold on |z| for hosts that are named because of another cell.
    pub critical_of_named: f64,
    /// Number of hosts between [`FAR`] and `critical`.
    pub far_hosts: usize,
    /// Standard deviation of one sample around its host's median, the median over the hosts; `None` where hosts have one sample each.
    pub sample_deviation: Option<f64>,
    /// Standard error of a host's median, the median over the hosts.
    pub usual_error: Option<f64>,
}

/// A host that deviates in a cell.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Deviation {
    pub host: usize,
    pub cell: usize,
    /// Distance from the centre of the group, in scales; positive where the host's value is larger.
    pub z: f64,
    /// Value of the host over that of the group's centre.
    pub ratio: f64,
    /// Lower end of the 95 % interval of the ratio.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

/// The hosts of a group that deviate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outliers {
    /// Probability that a group of alike hosts has a deviation at all, at most.
    pub false_alarms: f64,
    /// Threshold on |z|, the largest of all cells; cells with the same number of hosts have the same.
    pub critical: f64,
    /// Of each cell; `None` for a cell with fewer than [`MIN_HOSTS`] hosts, which is not judged.
    pub references: Vec<Option<Reference>>,
    /// By host, then by cell.
    pub deviations: Vec<Deviation>,
}

/// Why a group is not judged.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum CannotJudge {
    #[error("{0} hosts are too few to compare: it takes {MIN_HOSTS} or more")]
    TooFewHosts(usize),
    #[error(
        "the rate of false alarms is {0}, which is not from {MIN_FALSE_ALARMS} to {MAX_FALSE_ALARMS}"
    )]
    FalseAlarms(f64),
}

/// [`outliers_with`] thresholds of its own.
///
/// # Errors
/// Those of [`outliers_with`].
pub fn outliers(values: &Values, false_alarms: f64, seed: u64) -> Result<Outliers, CannotJudge> {
    outliers_with(values, false_alarms, &mut Thresholds::new(seed))
}

/// Judges a group. `false_alarms`: the probability that any host of a group of alike hosts is named. With several metrics, give each
/// the rate divided by their number.
///
/// # Errors
/// No cell has [`MIN_HOSTS`] hosts, or the rate is not from [`MIN_FALSE_ALARMS`] to [`MAX_FALSE_ALARMS`].
pub fn outliers_with(
    values: &Values,
    false_alarms: f64,
    thresholds: &mut Thresholds,
) -> Result<Outliers, CannotJudge> {
    if !(MIN_FALSE_ALARMS..=MAX_FALSE_ALARMS).contains(&false_alarms) {
        return Err(CannotJudge::FalseAlarms(false_alarms));
    }
    let references = references(values, false_alarms, thresholds)?;
    let mut quantiles = Quantiles::default();
    let mut deviations = Vec::new();
    for (cell, reference) in references.iter().enumerate() {
        if let Some(reference) = reference {
            deviations.extend(beyond(values, cell, reference, &mut quantiles));
        }
    }
    let is_named = |it: &&Deviation| {
        let (reference, location) = (references[it.cell].as_ref(), values.get(it.cell, it.host));
        reference
            .zip(location)
            .is_some_and(|(reference, location)| {
                let distance = location.log_median - reference.centre;
                distance.abs() > reference.critical * reference.scale_to_name(location)
            })
    };
    let named: BTreeSet<usize> = deviations
        .iter()
        .filter(is_named)
        .map(|it| it.host)
        .collect();
    deviations.retain(|it| named.contains(&it.host));
    deviations.sort_by_key(|it| (it.host, it.cell));
    let critical = references.iter().flatten().map(|it| it.critical);
    Ok(Outliers {
        false_alarms,
        critical: critical.fold(0.0, f64::max),
        references,
        deviations,
    })
}

/// The hosts of a cell that deviate if they are named.
fn beyond<'a>(
    values: &'a Values,
    cell: usize,
    reference: &'a Reference,
    quantiles: &'a mut Quantiles,
) -> impl Iterator<Item = Deviation> + 'a {
    values.measured(cell).filter_map(move |(host, location)| {
        let distance = location.log_median - reference.centre;
        // The host's own scale is not less, so most hosts need not have theirs worked out.
        if distance.abs() <= reference.critical_of_named * reference.scale {
            return None;
        }
        let z = distance / reference.scale_of_named(location, quantiles);
        let variance = reference.location_variance(location);
        let half = quantiles.half_interval(variance.plus(reference.centre_variance()));
        let is_beyond = z.abs() > reference.critical_of_named && distance.abs() > half;
        is_beyond.then(|| Deviation {
            host,
            cell,
            z,
            ratio: ratio(distance),
            low: ratio(distance - half),
            high: ratio(distance + half),
        })
    })
}

fn ratio(log: f64) -> f64 {
    log.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
}

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

/// Below this number of hosts two pairs that are close by chance look the same.
const MIN_HOSTS_TO_SPLIT: usize = 6;

/// Two groups of hosts in a cell.
#[derive(Clone, PartialEq, Debug)]
pub struct Split {
    /// The hosts with the smaller values.
    pub below: Vec<usize>,
    pub above: Vec<usize>,
    /// The mean of those above over that of those below.
    pub ratio: f64,
}

/// Whether the hosts of a cell that are not named are two groups, each of a quarter of them or more.
///
/// The sorted values are divided where the means of both parts are furthest apart in standard deviations within the parts. That has to
/// be more than 4.5 + 72 / n for n hosts. One group exceeds it in less than 0.2 % (simulated for 6 to 200 hosts: normal, uniform,
/// exponential, Student's with 5 degrees of freedom); a median of 12 samples of 1 % and 0.3 % between hosts are found from a difference
/// of 3 % on for 40 hosts.
pub fn split(values: &Values, found: &Outliers, cell: usize) -> Option<Split> {
    let reference = found.references.get(cell)?.as_ref()?;
    let is_named = |host: usize| {
        let mut deviations = found.deviations.iter();
        deviations.any(|it| it.cell == cell && it.host == host)
    };
    let measured = values.measured(cell).filter(|(host, _)| !is_named(*host));
    let mut hosts: Vec<(usize, f64)> = measured
        .map(|(host, location)| (host, location.log_median - reference.centre))
        .collect();
    if hosts.len() < MIN_HOSTS_TO_SPLIT {
        return None;
    }
    hosts.sort_by(|a, b| a.1.total_cmp(&b.1));
    let least = hosts.len().div_ceil(4).max(2);
    let own = values.measured(cell).map(|(_, location)| location.samples);
    let error = reference.sample_deviation.zip(own.min());
    let error = error.map_or(0.0, |(deviation, samples)| {
        deviation * deviation_of_median(samples)
    });
    let count = hosts.len() as f64;
    let sums = |part: &[(usize, f64)]| {
        let mean = part.iter().map(|it| it.1).sum::<f64>() / part.len() as f64;
        let squares: f64 = part.iter().map(|it| (it.1 - mean).powi(2)).sum();
        (mean, squares)
    };
    let parts = (least..=hosts.len() - least).map(|at| {
        let ((low, of_low), (high, of_high)) = (sums(&hosts[..at]), sums(&hosts[at..]));
        let scale = ((of_low + of_high) / (count - 2.0)).sqrt();
        let scale = scale.max(error).max(MIN_SCALE);
        (at, high - low, (high - low) / scale)
    });
    let (at, distance, in_scales) = parts.max_by(|a, b| a.2.total_cmp(&b.2))?;
    let of = |part: &[(usize, f64)]| {
        let mut part: Vec<usize> = part.iter().map(|it| it.0).collect();
        part.sort_unstable();
        part
    };
    (in_scales > 4.5 + 72.0 / count).then(|| Split {
        below: of(&hosts[..at]),
        above: of(&hosts[at..]),
        ratio: ratio(distance),
    })
}
