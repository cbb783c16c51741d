//! What samples say together: the median, where the middle half lies, how sure the median is, what stands apart.
//!
//! ```text
//!        low   [ median ]   high                  outlier
//!  ───────┼──────[──┼──]─────┼────────────────────────·──►      low, high: quartiles
//!             confidence: 95 %                                  outlier: beyond three times high - low
//! ```

use serde::{Deserialize, Serialize};

use crate::CONFIDENCE;

/// A sample this many interquartile ranges beyond a quartile stands apart (Tukey's "far out").
const FAR_OUT: f64 = 3.0;
/// A share of the median that sets no sample apart: samples of simulated time are equal but for the last digit of the clock.
const NOT_APART: f64 = 1e-3;

/// From one figure to another.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// As far as this to both sides.
    pub(crate) fn around(middle: f64, reach: f64) -> Self {
        Self {
            low: middle - reach,
            high: middle + reach,
        }
    }

    /// By a function that keeps the order.
    pub(crate) fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self {
            low: of(self.low),
            high: of(self.high),
        }
    }

    /// From the lower of both lower ends to the higher of both upper ends.
    pub(crate) fn hull(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
        }
    }
}

/// Where some samples lie.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Summary {
    /// Lower quartile.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Upper quartile.
    pub high: f64,
    /// The 95 % confidence interval of the median; `None` below six samples, which cannot give one.
    pub confidence: Option<Interval>,
    /// How many samples lie more than three interquartile ranges and a thousandth of the median (the larger of the two) beyond the quartiles.
    pub outliers: usize,
}

impl Summary {
    /// Sums up samples; `None` when there are none. What is not a finite number is left out.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let finite = samples.iter().copied().filter(|sample| sample.is_finite());
        let sorted = sorted(finite);
        let quantile = |share: f64| {
            let place = share * (sorted.len().checked_sub(1)? as f64);
            let (below, above) = (
                *sorted.get(place.floor() as usize)?,
                *sorted.get(place.ceil() as usize)?,
            );
            // Written so that equal neighbours yield themselves, without a rounding error.
            Some(below + (above - below) * place.fract())
        };
        let (low, median, high) = (quantile(0.25)?, quantile(0.5)?, quantile(0.75)?);
        let confidence = confidence_rank(sorted.len()).and_then(|rank| {
            Some(Interval {
                low: *sorted.get(rank - 1)?,
                high: *sorted.get(sorted.len().checked_sub(rank)?)?,
            })
        });
        let fence = (FAR_OUT * (high - low)).max(NOT_APART * median.abs());
        let outliers = sorted
            .iter()
            .filter(|&&sample| sample < low - fence || sample > high + fence)
            .count();
        Some(Self {
            low,
            median,
            high,
            confidence,
            outliers,
        })
    }

    /// The same for samples of blocks: the median is that of the blocks' medians, and the interval is theirs; quartiles and outliers
    /// are those of all samples.
    pub fn of_blocks(samples: &[(Option<u32>, f64)]) -> Option<Self> {
        let values: Vec<f64> = samples.iter().map(|it| it.1).collect();
        let blocks = Self::of(&block_medians(samples.iter().copied()))?;
        Some(Self {
            median: blocks.median,
            confidence: blocks.confidence,
            ..Self::of(&values)?
        })
    }
}

/// In ascending order.
pub(crate) fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Samples that were taken in blocks with time between them, by block: what disturbs the machine for a while changes all samples of a
/// block, so that the median of a block counts as one. Each sample without a block counts by itself.
pub fn block_medians(samples: impl IntoIterator<Item = (Option<u32>, f64)>) -> Vec<f64> {
    let mut blocks: Vec<(Option<u32>, Vec<f64>)> = Vec::new();
    for (block, value) in samples {
        match blocks.last_mut() {
            Some((last, values)) if block.is_some() && *last == block => values.push(value),
            _ => blocks.push((block, vec![value])),
        }
    }
    let medians = blocks.iter().filter_map(|(_, values)| Summary::of(values));
    medians.map(|it| it.median).collect()
}

/// Samples of one thing in the unit that the name of the field gives, and what they say together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// In the order they were taken.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Their lower quartile.
    pub low: f64,
    /// Their upper quartile.
    pub high: f64,
    /// The 95 % confidence interval of the median; `None` where there are too few samples for one.
    pub confidence: Option<Interval>,
    /// How many samples lie far from the others.
    pub outliers: usize,
}

impl Figures {
    /// Sums samples up; `None` when there is none.
    pub fn of(samples: Vec<f64>) -> Option<Self> {
        let blocks: Vec<_> = samples.iter().map(|&sample| (None, sample)).collect();
        Self::of_blocks(&blocks)
    }

    /// As [`Summary::of_blocks`].
    pub fn of_blocks(samples: &[(Option<u32>, f64)]) -> Option<Self> {
        let Summary {
            low,
            median,
            high,
            confidence,
            outliers,
        } = Summary::of_blocks(samples)?;
        Some(Self {
            samples: samples.iter().map(|it| it.1).collect(),
            median,
            low,
            high,
            confidence,
            outliers,
        })
    }
}

/// The rank r for which the r-th lowest and the r-th highest of `count` samples enclose the median of what they were
/// drawn from with at least 95 % confidence, without assuming how it is distributed; `None` where none does.
///
/// A sample is below the true median with probability 1/2, so the number of samples below is binomial; the interval
/// misses when fewer than r are below, or fewer than r above (Conover, Practical Nonparametric Statistics, 3.2).
fn confidence_rank(count: usize) -> Option<usize> {
    // Beyond this 2^-count leaves the range of a float, and the normal approximation is exact to a rank.
    const EXACT_UP_TO: usize = 1000;
    let miss = (1.0 - CONFIDENCE) / 2.0;
    if count > EXACT_UP_TO {
        let deviations = 1.959_964;
        return Some(((count as f64 - deviations * (count as f64).sqrt()) / 2.0).floor() as usize);
    }
    let (mut ways, mut below, mut rank) = (0.5f64.powi(count as i32), 0.0, 0);
    for successes in 0..count {
        below += ways;
        if below > miss {
            break;
        }
        rank = successes + 1;
        ways *= (count - successes) as f64 / (successes + 1) as f64;
    }
    (rank > 0).then_some(rank)
}

/// What the published tables give of the runs of a cell.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Moments {
    /// How many samples.
    pub count: usize,
    /// Arithmetic mean, in the samples' unit.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// The smallest.
    pub min: f64,
    /// Standard deviation of what the samples were drawn from (divisor n - 1); `None` for a single sample.
    pub stdev: Option<f64>,
}

impl Moments {
    /// Sums samples up; `None` when there are none. What is not a finite number is left out.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let finite = || samples.iter().copied().filter(|sample| sample.is_finite());
        let count = finite().count();
        let first = finite().next()?;
        // Around the first sample, so that a large common part takes no digits from the rest.
        let mean = first + finite().map(|sample| sample - first).sum::<f64>() / count as f64;
        let squares: f64 = finite().map(|sample| (sample - mean).powi(2)).sum();
        Some(Self {
            count,
            mean,
            max: finite().fold(first, f64::max),
            min: finite().fold(first, f64::min),
            stdev: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
        })
    }
}

/// Spearman's rank correlation of pairs, from -1 (opposite order) to 1 (same order); equal values share the mean of their
/// ranks. `None` where the columns differ in length, hold fewer than two pairs or something that is not a number, or where
/// one of them is the same all along, so that it has no order.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    let unordered = |values: &[f64]| values.iter().any(|value| value.is_nan());
    if a.len() != b.len() || unordered(a) || unordered(b) {
        return None;
    }
    // With shared ranks the short formula (1 - 6 sum d^2 / ...) is wrong; Pearson's of the ranks is right with and without.
    let (a, b) = (ranks(a), ranks(b));
    let middle = (a.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (a - middle) * (b - middle))
            .sum::<f64>()
    };
    let spread = product(&a, &a) * product(&b, &b);
    (spread > 0.0).then(|| (product(&a, &b) / spread.sqrt()).clamp(-1.0, 1.0))
}

/// The rank of each value from 1 on; equal ones share the mean of theirs.
pub(crate) fn ranks(values: &[f64]) -> Vec<f64> {
    ranks_within(values, 0.0)
}

/// The same where values that differ from their neighbour by no more than this are equal.
pub(crate) fn ranks_within(values: &[f64], resolution: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    // Compared as numbers: 0 and -0 are equal.
    let is_equal = |&a: &usize, &b: &usize| {
        values[a] == values[b] || (values[a] - values[b]).abs() <= resolution
    };
    for equal in order.chunk_by(is_equal) {
        let shared = before as f64 + (equal.len() as f64 + 1.0) / 2.0;
        equal.iter().for_each(|&index| ranks[index] = shared);
        before += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quartiles(samples: &[f64]) -> (f64, f64, f64) {
        let summary = Summary::of(samples).unwrap();
        (summary.low, summary.median, summary.high)
    }

    #[test]
    fn no_samples_have_no_median() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn quartiles_lie_between_samples() {
        assert_eq!(quartiles(&[7.0]), (7.0, 7.0, 7.0));
        assert_eq!(quartiles(&[4.0, 1.0, 3.0, 2.0]), (1.75, 2.5, 3.25));
        assert_eq!(quartiles(&[5.0, 1.0, 3.0, 2.0, 4.0]), (2.0, 3.0, 4.0));
    }

    #[test]
    fn ranks_are_those_of_the_published_tables() {
        // Table A3 of Conover, and the sign test's critical values.
        let ranks = [5, 6, 8, 9, 10, 15, 20, 25, 30, 41, 50].map(confidence_rank);
        let published = [0, 1, 1, 2, 2, 4, 6, 8, 10, 14, 18].map(|rank| (rank > 0).then_some(rank));
        assert_eq!(ranks, published);
    }

    #[test]
    fn the_approximation_continues_the_exact_ranks() {
        let (exact, approximate) = (
            confidence_rank(1000).unwrap(),
            confidence_rank(1001).unwrap(),
        );
        assert!(exact.abs_diff(approximate) <= 1, "{exact}, {approximate}");
    }

    #[test]
    fn what_stands_apart_is_counted() {
        let mut samples: Vec<f64> = (0..20)
            .map(|sample| 100.0 + f64::from(sample % 5))
            .collect();
        assert_eq!(Summary::of(&samples).unwrap().outliers, 0);
        samples.extend([500.0, 1.0]);
        assert_eq!(Summary::of(&samples).unwrap().outliers, 2);
    }

    #[test]
    fn equal_samples_make_no_outlier_of_the_clocks_last_digit() {
        let mut samples = vec![102.42; 18];
        samples.extend([102.41, 102.43]);
        assert_eq!(Summary::of(&samples).unwrap().outliers, 0);
        samples.push(103.0);
        assert_eq!(Summary::of(&samples).unwrap().outliers, 1);
    }

    /// Repeated drawing from a known distribution has to find its median inside at least about 95 times in 100.
    #[test]
    fn intervals_cover_the_median_as_often_as_they_say() {
        let mut seed = 7u64;
        let mut random = || {
            // A linear congruential generator (Knuth's MMIX); its upper bits are good enough for this.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 44) as f64
        };
        for count in [7, 12, 41] {
            let covered = (0..2000).filter(|_| {
                let samples: Vec<f64> = (0..count).map(|_| random().powi(3)).collect();
                let median = f64::from(1 << 19).powi(3);
                Summary::of(&samples)
                    .unwrap()
                    .confidence
                    .is_some_and(|c| c.low <= median && median <= c.high)
            });
            let covered = covered.count();
            assert!(covered > 1870, "{covered} of 2000 with {count} samples");
        }
    }

    proptest! {
        #[test]
        fn a_summary_is_ordered_and_within_the_samples(samples in prop::collection::vec(0.0..1e9f64, 1..50)) {
            let summary = Summary::of(&samples).unwrap();
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(0.0, f64::max);
            prop_assert!(least <= summary.low && summary.low <= summary.median);
            prop_assert!(summary.median <= summary.high && summary.high <= most);
            prop_assert_eq!(summary.confidence.is_some(), samples.len() >= 6);
            if let Some(Interval { low, high }) = summary.confidence {
                prop_assert!(least <= low && low <= summary.median && summary.median <= high && high <= most);
            }
        }

        #[test]
        fn the_order_of_samples_does_not_matter(mut samples in prop::collection::vec(0.0..1e9f64, 1..50)) {
            let before = Summary::of(&samples);
            samples.reverse();
            prop_assert_eq!(before, Summary::of(&samples));
        }
    }
}
