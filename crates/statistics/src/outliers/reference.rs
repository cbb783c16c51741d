//! What the hosts of each cell are compared with: centre, scale, threshold, and the noise of one sample.

use std::collections::{BTreeMap, HashMap};

use statrs::distribution::{ChiSquared, Continuous as _, ContinuousCDF as _, Normal, StudentsT};

use super::{CannotJudge, FAR, MAX_LOG_RATIO, MIN_HOSTS, MIN_SCALE, Reference, Values};
use crate::CONFIDENCE;
use crate::summary::sorted;

/// The reference of each cell; `None` for cells with fewer than [`MIN_HOSTS`] hosts.
pub(super) fn references(
    values: &Values,
    false_alarms: f64,
    thresholds: &mut Thresholds,
) -> Result<Vec<Option<Reference>>, CannotJudge> {
    let counts: Vec<usize> = (0..values.cells())
        .map(|cell| values.measured(cell).count())
        .collect();
    let cells: Vec<usize> = (0..counts.len())
        .filter(|cell| counts[*cell] >= MIN_HOSTS)
        .collect();
    if cells.is_empty() {
        let most = counts.into_iter().max();
        return Err(CannotJudge::TooFewHosts(most.unwrap_or(0)));
    }
    // Cells of many hosts are judged by themselves, those of few together.
    let is_few = |cell: &usize| counts[*cell] < SIMULATED_BELOW;
    let few: Vec<usize> = cells.iter().copied().filter(is_few).collect();
    let each = false_alarms / cells.len() as f64;
    let of_few =
        (!few.is_empty()).then(|| thresholds.of(pattern(values, &few), each * few.len() as f64));
    let (columns, noises): (Vec<Column>, Vec<Noise>) =
        cells.iter().map(|cell| column(values, *cell)).unzip();
    let mut references = vec![None; counts.len()];
    for (place, spread) in spreads(&columns).into_iter().enumerate() {
        let cell = cells[place];
        let critical = match of_few {
            Some(critical) if is_few(&cell) => critical,
            _ => of_many(counts[cell], each),
        };
        references[cell] = Some(reference(&spread, &columns[place], critical, noises[place]));
    }
    Ok(references)
}

fn reference(spread: &Spread, column: &Column, critical: Critical, noise: Noise) -> Reference {
    let is_far = |value: &&f64| {
        let z = (*value - spread.centre).abs() / spread.scale;
        z > FAR && z <= critical.any
    };
    Reference {
        hosts: column.sorted.len(),
        centre: spread.centre,
        centre_error: spread.scale / (spread.hosts as f64).sqrt(),
        scale: spread.scale,
        critical: critical.any,
        critical_of_named: critical.named,
        far_hosts: column.sorted.iter().filter(is_far).count(),
        sample_deviation: noise.sample_deviation,
        usual_error: noise.usual_error,
    }
}

/// Of the measurement of a cell, where hosts have more than one sample.
#[derive(Clone, Copy)]
struct Noise {
    /// Standard deviation of a sample around its host's median, median over the hosts.
    sample_deviation: Option<f64>,
    /// Standard error of a host's location, likewise.
    usual_error: Option<f64>,
}

/// The values of a cell with the least scale, and their noise.
fn column(values: &Values, cell: usize) -> (Column, Noise) {
    let locations = || values.measured(cell).map(|(_, location)| location);
    let sorted = sorted(locations().map(|it| it.log_median));
    let sample_deviation = sorted_median(
        locations().filter_map(|it| Some(it.error()? / deviation_of_median(it.samples))),
    );
    let usual_error = sample_deviation.and_then(|deviation| {
        sorted_median(locations().map(|it| deviation * deviation_of_median(it.samples)))
    });
    let step = step(values, &sorted, locations());
    let min_scale = [Some(MIN_SCALE), usual_error, step.map(|step| step / 2.0)];
    let min_scale = min_scale.into_iter().flatten().fold(0.0, f64::max);
    let noise = Noise {
        sample_deviation,
        usual_error,
    };
    (Column { sorted, min_scale }, noise)
}

fn sorted_median(values: impl Iterator<Item = f64>) -> Option<f64> {
    median(&sorted(values))
}

/// The resolution of a cell's logarithms: as given, or the smallest step within a host's samples where most hosts have equal samples, or
/// that between values that several hosts share where most hosts do. Measurements that are not rounded are not equal; a few can be
/// by chance.
fn step<'a>(
    values: &Values,
    sorted: &[f64],
    locations: impl Iterator<Item = &'a Location>,
) -> Option<f64> {
    if let Some(resolution) = values.resolution {
        return median(sorted).map(|middle| (resolution / middle.exp()).ln_1p().min(MAX_LOG_RATIO));
    }
    // Without a step where all are equal.
    let has_equal = |it: &&Location| it.step.is_some() || it.standard_error == Some(0.0);
    let with_equal: Vec<&Location> = locations.filter(has_equal).collect();
    let is_rounded = 2 * with_equal.len() > sorted.len();
    let steps = with_equal.iter().filter_map(|it| it.step);
    let within = steps.min_by(f64::total_cmp).filter(|_| is_rounded);
    within.or_else(|| {
        let shared = || {
            sorted
                .chunk_by(|a, b| b - a < EQUAL)
                .filter(|it| it.len() > 1)
        };
        let is_rounded = 2 * shared().map(<[f64]>::len).sum::<usize>() > sorted.len();
        let values: Vec<f64> = shared().map(|it| it[0]).collect();
        let gaps = values.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.min_by(f64::total_cmp).filter(|_| is_rounded)
    })
}

/// Which hosts the cells have, in an order that does not depend on that of the hosts.
fn pattern(values: &Values, cells: &[usize]) -> Pattern {
    let mut has: Vec<Vec<bool>> = (0..values.hosts())
        .map(|host| {
            let has = |cell: &usize| values.get(*cell, host).is_some();
            cells.iter().map(has).collect()
        })
        .filter(|has: &Vec<bool>| has.contains(&true))
        .collect();
    has.sort_unstable();
    let of_cell = |place: usize| (0..has.len()).filter(|host| has[*host][place]).collect();
    Pattern {
        hosts: has.len(),
        cells: (0..cells.len()).map(of_cell).collect(),
    }
}

/// Logarithms that differ by less are equal: rounding errors of a scale factor are smaller, timer ticks larger, and of 10,000 values
/// that are not rounded hardly any two are as close.
const EQUAL: f64 = 1e-12;

/// The median of the natural logarithms of some samples.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Location {
    pub log_median: f64,
    /// `None` for a single sample.
    pub standard_error: Option<f64>,
    /// Number of samples, 1 or more.
    pub samples: usize,
    /// The smallest difference between logarithms of two samples, where some samples are equal: the resolution of the clock or counter.
    pub step: Option<f64>,
}

impl Location {
    /// Of samples in any unit; `None` when there is none. Samples that are 0, negative or not finite are left out.
    ///
    /// The standard error is the distance between two order statistics about sqrt(k) ranks on either side of the median of k
    /// samples (R. M. Price & D. G. Bonett, Estimating the variance of the sample median, J. Statist. Comput. Simul. 68, 2001),
    /// scaled so that it is that of normal noise. Single slow samples do not move it where k is 10 or more; below that it comes
    /// from the smallest and the largest.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let is_valid = |sample: &&f64| sample.is_finite() && **sample > 0.0;
        let valid = samples.iter().filter(is_valid);
        let logs = sorted(valid.map(|sample| sample.ln()));
        let log_median = median(&logs)?;
        Some(Self {
            log_median,
            standard_error: standard_error(&logs),
            samples: logs.len(),
            step: step_of_samples(&logs),
        })
    }

    /// Whether this is a number that can be compared.
    pub(super) fn is_valid(&self) -> bool {
        self.log_median.is_finite() && self.samples > 0
    }

    /// The standard error, where it is one.
    pub(super) fn error(&self) -> Option<f64> {
        self.standard_error
            .filter(|error| error.is_finite() && *error >= 0.0)
    }
}

/// Of sorted values.
pub(super) fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    Some(lower + (upper - lower) / 2.0)
}

/// The standard deviation of the median of so many standard normal samples, within 3 % of the exact one.
pub(super) fn deviation_of_median(samples: usize) -> f64 {
    use std::f64::consts::{FRAC_PI_2, PI};
    let count = samples as f64;
    let shift = match samples % 2 {
        0 => PI - 2.0,
        _ => FRAC_PI_2 - 1.0,
    };
    (FRAC_PI_2 / (count + shift)).sqrt()
}

fn standard_error(sorted: &[f64]) -> Option<f64> {
    let count = sorted.len();
    let half = (count as f64 + 1.0) / 2.0 - (count as f64).sqrt();
    let rank = (half.round() as usize).max(1);
    let (low, high) = (sorted.get(rank - 1)?, sorted.get(count.checked_sub(rank)?)?);
    if count < 2 {
        return None;
    }
    // Blom's approximation of the expected order statistic.
    let place = ((count - rank + 1) as f64 - 0.375) / (count as f64 + 0.25);
    let expected = Normal::standard().inverse_cdf(place);
    Some((high - low) / (2.0 * expected) * deviation_of_median(count))
}

fn step_of_samples(sorted: &[f64]) -> Option<f64> {
    let gaps = || sorted.windows(2).map(|pair| pair[1] - pair[0]);
    let has_ties = gaps().any(|gap| gap < EQUAL);
    gaps()
        .filter(|gap| has_ties && *gap >= EQUAL)
        .min_by(f64::total_cmp)
}

/// Below this number of hosts the first window is the result: so few hosts beyond it say nothing of its width.
const REWEIGHTED_FROM: usize = 8;
/// Hosts further from the centre than this many scales do not count.
const KEPT_WITHIN: f64 = 3.0;
/// The standard deviation of a normal distribution that is cut off there.
const KEPT_DEVIATION: f64 = 0.986_6;
/// Below this number of hosts a cell's scale is at least that of all such cells together: its own may be small by chance.
const POOLED_BELOW: usize = 16;

/// The values of a cell.
struct Column {
    /// Sorted logarithms, one or more.
    sorted: Vec<f64>,
    /// The scale is not less.
    min_scale: f64,
}

#[derive(Clone, Copy)]
struct Spread {
    centre: f64,
    scale: f64,
    /// The number of hosts that both are taken from.
    hosts: usize,
}

/// How many of so many hosts may deviate.
fn most_deviating(hosts: usize) -> usize {
    hosts / 3
}

/// The spread of each cell; cells with few hosts share their scales.
fn spreads(columns: &[Column]) -> Vec<Spread> {
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

/// A host's standard error is combined with that of the other hosts as if theirs came from this many samples more.
const PRIOR_FREEDOM: f64 = 4.0;
/// A host's samples are noisier than those of others where that is so sure.
const NOISIER_CONFIDENCE: f64 = 0.99;
/// More hosts than expected, in standard deviations of a Poisson distribution, are heavy tails (P < 0.001).
const HEAVY_BEYOND: f64 = 3.3;

/// A variance and its degrees of freedom.
#[derive(Clone, Copy)]
pub(super) struct Variance {
    pub value: f64,
    pub freedom: f64,
}

impl Variance {
    /// Of a sum of independent terms (F. E. Satterthwaite, 1946).
    pub(super) fn plus(self, other: Self) -> Self {
        let value = self.value + other.value;
        let share = |it: Self| it.value.powi(2) / it.freedom;
        let freedom = value.powi(2) / (share(self) + share(other));
        Self { value, freedom }
    }
}

impl Reference {
    /// Of a host's location: its own standard error and that of the other hosts together; the spread of the hosts where no host
    /// has a standard error.
    pub(super) fn location_variance(&self, location: &Location) -> Variance {
        let Some(expected) = self.expected_variance(location) else {
            return self.host_variance();
        };
        let own = location.error().map_or(0.0, |error| error.powi(2));
        let freedom = match location.error() {
            Some(_) => location.samples.saturating_sub(1) as f64,
            None => 0.0,
        };
        let sum = freedom * own + PRIOR_FREEDOM * expected;
        Variance {
            value: (sum / (freedom + PRIOR_FREEDOM)).max(f64::MIN_POSITIVE),
            freedom: freedom + PRIOR_FREEDOM,
        }
    }

    /// Of a location with as many samples, where a sample is as noisy as on most hosts.
    fn expected_variance(&self, location: &Location) -> Option<f64> {
        let deviation = self.sample_deviation? * deviation_of_median(location.samples);
        Some(deviation.powi(2))
    }

    /// Of the hosts around the centre.
    fn host_variance(&self) -> Variance {
        Variance {
            value: self.scale.powi(2),
            freedom: (FREEDOM_PER_HOST * (self.hosts as f64 - 1.0)).max(1.0),
        }
    }

    pub(super) fn centre_variance(&self) -> Variance {
        Variance {
            value: self.centre_error.powi(2),
            ..self.host_variance()
        }
    }

    /// The scale for this host, by which it is named: larger than that of the others by what its samples are fewer or noisier.
    pub(super) fn scale_to_name(&self, location: &Location) -> f64 {
        let own = location.error().unwrap_or(0.0).powi(2);
        self.with_excess(location, own)
    }

    /// The scale for this host once it is named: what its samples are noisier by chance does not count.
    pub(super) fn scale_of_named(&self, location: &Location, quantiles: &mut Quantiles) -> f64 {
        let own = location.error().unwrap_or(0.0).powi(2);
        self.with_excess(location, own * quantiles.least_variance(location.samples))
    }

    fn with_excess(&self, location: &Location, own: f64) -> f64 {
        let (Some(usual), Some(expected)) = (self.usual_error, self.expected_variance(location))
        else {
            return self.scale;
        };
        let excess = expected.max(own) - usual.powi(2);
        (self.scale.powi(2) + excess.max(0.0)).sqrt()
    }

    /// Whether more hosts are far from the centre, and not named, than there are in a normal distribution. Alike hosts with such tails
    /// are named more often than at the stated rate. Reliable from about 500 hosts on.
    pub fn has_heavy_tails(&self) -> bool {
        let freedom = self.host_variance().freedom;
        let beyond = StudentsT::new(0.0, 1.0, freedom).map_or(0.0, |it| 2.0 * it.sf(FAR));
        let expected = self.hosts as f64 * beyond;
        self.far_hosts as f64 > expected + HEAVY_BEYOND * expected.sqrt() + 1.0
    }
}

/// Quantiles that were worked out before.
#[derive(Default)]
pub(super) struct Quantiles {
    /// By degrees of freedom.
    student: HashMap<u64, f64>,
    /// By number of samples.
    least: HashMap<usize, f64>,
}

impl Quantiles {
    /// Half of the 95 % interval.
    pub(super) fn half_interval(&mut self, variance: Variance) -> f64 {
        let freedom = (variance.freedom as u64).max(1);
        let quantile_of = |freedom: &u64| quantile(*freedom as f64, f64::midpoint(1.0, CONFIDENCE));
        let student = self.student.entry(freedom).or_insert_with_key(quantile_of);
        *student * variance.value.sqrt()
    }

    /// The least true variance over that of so many samples.
    fn least_variance(&mut self, samples: usize) -> f64 {
        *self.least.entry(samples).or_insert_with_key(|samples| {
            let freedom = samples.saturating_sub(1) as f64;
            ChiSquared::new(freedom).map_or(0.0, |it| freedom / it.inverse_cdf(NOISIER_CONFIDENCE))
        })
    }
}

/// Below this number of hosts in a cell the threshold is simulated; from there on it is a quantile of Student's distribution.
const SIMULATED_BELOW: usize = 32;
/// Degrees of freedom of the scale for each host after the first: 0.60 to 0.80 by simulation of 32 to 1000 hosts.
const FREEDOM_PER_HOST: f64 = 0.6;
/// Simulated groups with a larger deviation than the threshold, at least.
const MIN_EXCEEDING: f64 = 20.0;
/// Values that are drawn, where there are more groups than necessary.
const MAX_VALUES: usize = 1_000_000;
const MAX_GROUPS: usize = 20_000;

/// Simulated thresholds, so that several metrics of the same hosts and cells take one simulation.
#[derive(Clone, Debug)]
pub struct Thresholds {
    seed: u64,
    /// By pattern and the bits of the rate.
    known: BTreeMap<(Pattern, u64), Critical>,
}

impl Thresholds {
    /// The same seed gives the same thresholds.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            known: BTreeMap::new(),
        }
    }

    fn of(&mut self, pattern: Pattern, false_alarms: f64) -> Critical {
        let seed = self.seed;
        let key = (pattern, false_alarms.to_bits());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let threshold = simulated(&key.0, false_alarms, seed);
        self.known.insert(key, threshold);
        threshold
    }
}

/// Thresholds on |z|.
#[derive(Clone, Copy, Debug)]
struct Critical {
    /// Of all hosts.
    pub any: f64,
    /// Of the other cells of a host that is named.
    pub named: f64,
}

impl Critical {
    fn larger(self, other: Self) -> Self {
        Self {
            any: self.any.max(other.any),
            named: self.named.max(other.named),
        }
    }
}

/// Which hosts each cell has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Pattern {
    pub hosts: usize,
    /// Of each cell the hosts, from 0.
    pub cells: Vec<Vec<usize>>,
}

/// The thresholds of a cell of so many hosts that has this share of the false alarms (Bonferroni).
fn of_many(hosts: usize, false_alarms: f64) -> Critical {
    let count = hosts as f64;
    let freedom = FREEDOM_PER_HOST * (count - 1.0);
    // The centre has an error of its own.
    let of = |share: f64| quantile(freedom, 1.0 - share / 2.0) * (1.0 + 1.0 / count).sqrt();
    Critical {
        any: of(false_alarms / count),
        named: of(false_alarms),
    }
}

/// Of Student's distribution.
fn quantile(freedom: f64, share: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom.max(1.0)).map_or(f64::INFINITY, |it| it.inverse_cdf(share))
}

/// The thresholds that the furthest value of a group of alike hosts, and that of one host, exceed at this rate: the larger ones of
/// cells that vary independently and of cells that vary together.
fn simulated(pattern: &Pattern, false_alarms: f64, seed: u64) -> Critical {
    let draws: usize = pattern.cells.iter().map(Vec::len).sum();
    let enough = (MIN_EXCEEDING / false_alarms).ceil() as usize;
    let groups = (MAX_VALUES / draws.max(1)).min(MAX_GROUPS).max(enough);
    let mut random = Normals(fastrand::Rng::with_seed(seed), None);
    let independent = thresholds(groups, pattern, false_alarms, |hosts| {
        hosts.iter().map(|_| random.next()).collect()
    });
    // Cells with the same hosts have the same values, so that one of them is enough.
    let mut distinct = pattern.clone();
    distinct.cells.dedup();
    let mut effects = vec![0.0; pattern.hosts];
    let mut cell = 0;
    let together = thresholds(groups, &distinct, false_alarms, |hosts| {
        if cell % distinct.cells.len() == 0 {
            effects.fill_with(|| random.next());
        }
        cell += 1;
        hosts.iter().map(|host| effects[*host]).collect()
    });
    independent.larger(together)
}

/// The thresholds of so many groups; `draw` gives the values of the hosts of a cell.
fn thresholds(
    groups: usize,
    pattern: &Pattern,
    false_alarms: f64,
    mut draw: impl FnMut(&[usize]) -> Vec<f64>,
) -> Critical {
    let (mut of_any, mut of_one) = (Vec::with_capacity(groups), Vec::with_capacity(groups));
    for group in 0..groups {
        let host = group % pattern.hosts.max(1);
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        for hosts in &pattern.cells {
            let mut sorted = draw(hosts);
            let place = hosts.binary_search(&host).ok();
            values.push(place.map(|place| sorted[place]));
            sorted.sort_by(f64::total_cmp);
            columns.push(Column {
                sorted,
                min_scale: f64::MIN_POSITIVE,
            });
        }
        let (mut any, mut one) = (0.0, 0.0);
        for ((column, spread), value) in columns.iter().zip(spreads(&columns)).zip(values) {
            let z = |value: &f64| (value - spread.centre).abs() / spread.scale;
            let ends = [column.sorted.first(), column.sorted.last()];
            any = ends.into_iter().flatten().map(z).fold(any, f64::max);
            one = value.as_ref().map_or(one, |value| f64::max(one, z(value)));
        }
        of_any.push(any);
        of_one.push(one);
    }
    Critical {
        any: upper_quantile(of_any, false_alarms),
        named: upper_quantile(of_one, false_alarms),
    }
}

/// The quantile above which this share is, by a standard error higher so that the error of the simulation does not raise the rate.
fn upper_quantile(values: Vec<f64>, share: f64) -> f64 {
    let values = sorted(values);
    let above = values.len() as f64 * share;
    let above = (above - above.sqrt()).max(0.0) as usize;
    let place = values.len().saturating_sub(1 + above);
    values.get(place).copied().unwrap_or(f64::INFINITY)
}

/// Standard normal numbers (the polar method of G. Marsaglia).
struct Normals(fastrand::Rng, Option<f64>);

impl Normals {
    fn next(&mut self) -> f64 {
        if let Some(kept) = self.1.take() {
            return kept;
        }
        loop {
            let (a, b) = (2.0 * self.0.f64() - 1.0, 2.0 * self.0.f64() - 1.0);
            let square = a * a + b * b;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * square.ln() / square).sqrt();
                self.1 = Some(b * factor);
                return a * factor;
            }
        }
    }
}
