//! What the samples of one host in one cell say: their median, and how far it may be off.

use statrs::distribution::{ContinuousCDF as _, Normal};

/// Logarithms that differ by less are equal: rounding errors of a scale factor are smaller, timer ticks larger, and of 10,000 values
/// that are not rounded hardly any two are as close.
pub(super) const EQUAL: f64 = 1e-12;

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
        let mut logs: Vec<f64> = samples
            .iter()
            .filter(is_valid)
            .map(|sample| sample.ln())
            .collect();
        logs.sort_by(f64::total_cmp);
        let log_median = median(&logs)?;
        Some(Self {
            log_median,
            standard_error: standard_error(&logs),
            samples: logs.len(),
            step: step(&logs),
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

fn step(sorted: &[f64]) -> Option<f64> {
    let gaps = || sorted.windows(2).map(|pair| pair[1] - pair[0]);
    let has_ties = gaps().any(|gap| gap < EQUAL);
    gaps()
        .filter(|gap| has_ties && *gap >= EQUAL)
        .min_by(f64::total_cmp)
}
