//! How many samples would tell.
//!
//! Asked is the number with which an experiment like this one finds a change as large as the margin in nine of ten cases, and shows in
//! as many that there is none when there is none. It depends on how the samples scatter and not on the difference that they happen to
//! have, which is mostly chance where it is not significant.
//!
//! Noether's formula (1987): n = (z + z')^2 / (6 (p - 1/2)^2) a side, where p is the probability that a sample of B is above one of A when
//! B is A shifted by the margin; of pairs (z + z')^2 / (3 (p - 1/2)^2), where p is that of a positive Walsh mean.

use statrs::distribution::{ContinuousCDF as _, Normal};

use super::Design;
use super::null::Null;
use crate::CONFIDENCE;

/// How often the change is to be found.
pub(super) const POWER: f64 = 0.9;
/// A larger number of samples is not reported.
const MAX_NEEDED: f64 = 1e6;
/// Values from which pairs are made; of more some are left out.
const MAX_VALUES: usize = 300;

/// The number of samples of each side, or of rounds, that would tell a shift of this size at this rate of false alarms.
/// `None` where the samples cannot say, or where it is beyond a million.
pub(super) fn samples(
    (a, b): (&[f64], &[f64]),
    design: Design,
    shift: f64,
    false_alarms: f64,
    inflation: f64,
) -> Option<usize> {
    let (residuals, factor) = match design {
        Design::Independent => {
            let both = [centred(a)?, centred(b)?].concat();
            (thinned(both), 6.0)
        }
        Design::Paired => {
            let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
            (thinned(centred(&differences)?), 3.0)
        }
    };
    let above = probability_above(&residuals, design, shift.abs());
    let quantile = |share| Normal::standard().inverse_cdf(share);
    // The test of the difference, and the interval within both margins.
    let difference = quantile(1.0 - false_alarms / 2.0) + quantile(POWER);
    let equivalence = quantile((1.0 + CONFIDENCE) / 2.0) + quantile((1.0 + POWER) / 2.0);
    let deviations = difference.max(equivalence);
    let needed = inflation * deviations.powi(2) / (factor * (above - 0.5).powi(2));
    (needed <= MAX_NEEDED).then(|| (needed.ceil() as usize).max(fewest(design, false_alarms)))
}

/// The fewest samples of each side, or rounds, with which any difference at all is significant.
pub(super) fn fewest(design: Design, false_alarms: f64) -> usize {
    let is_enough = |count: &usize| {
        let untied = |count: usize| (1..=count).map(|rank| 2 * rank).collect::<Vec<_>>();
        let null = match design {
            Design::Independent => Null::of_choice(&untied(2 * count), *count, 1.0),
            Design::Paired => Null::of_signs(&untied(*count), 1.0),
        };
        null.least_two_sided() <= false_alarms
    };
    (1..64).find(is_enough).unwrap_or(64)
}

/// Deviations from the median, as wide as those from the unknown one.
fn centred(values: &[f64]) -> Option<Vec<f64>> {
    let middle = crate::Summary::of(values)?.median;
    let count = values.len() as f64;
    let wider = (values.len() > 1).then(|| (count / (count - 1.0)).sqrt())?;
    Some(values.iter().map(|it| (it - middle) * wider).collect())
}

/// Evenly chosen values where there are many.
fn thinned(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    let step = values.len().div_ceil(MAX_VALUES).max(1);
    values.into_iter().step_by(step).collect()
}

/// The probability that the difference of two residuals (or their mean, of pairs) is above `-shift`. Each pair counts smoothly,
/// so that a few samples do not jump from never to always.
fn probability_above(residuals: &[f64], design: Design, shift: f64) -> f64 {
    let normal = Normal::standard();
    let count = residuals.len() as f64;
    let quartiles = crate::Summary::of(residuals);
    let spread = quartiles.map_or(0.0, |it| (it.high - it.low) / 1.349);
    // Half of what Silverman's rule of thumb gives: there are far more pairs than residuals.
    let width = (0.45 * spread * count.powf(-0.2)).max(f64::MIN_POSITIVE);
    let (mut sum, mut pairs) = (0.0, 0);
    for (index, one) in residuals.iter().enumerate() {
        for other in &residuals[index + 1..] {
            // Both orders of the two: the residuals of both sides are taken for alike.
            let both = match design {
                Design::Independent => [one - other, other - one],
                Design::Paired => [(one + other) / 2.0, -(one + other) / 2.0],
            };
            for between in both {
                sum += normal.cdf((between + shift) / width);
                pairs += 1;
            }
        }
    }
    match pairs {
        0 => 1.0,
        pairs => sum / f64::from(pairs),
    }
}
