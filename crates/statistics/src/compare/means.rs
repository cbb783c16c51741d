//! The change of the mean, with a bootstrap interval: what a few slow samples cost, which ranks do not see.
//!
//! Bias-corrected and accelerated (BCa; Efron 1987), the acceleration of several samples as in Davison and Hinkley, Bootstrap Methods
//! and their Application, 5.3.2. It draws samples as independent ones, so it is then widened: by the variance's inflation where samples
//! depend on their predecessors, and to Student's interval of the runs' means where a side has several runs (three runs are too few to
//! draw from). With few samples or heavy tails it holds the truth less often than it says (docs/compare.md).

use fastrand::Rng;
use statrs::distribution::{ContinuousCDF as _, Normal};

use super::runs::Between;
use super::{Design, Estimate, Scale};
use crate::Interval;

/// Resamples; their interval moves by some 2 % of its width with the seed.
const RESAMPLES: usize = 2000;
/// Fewer samples have no interval worth the name.
const MIN_SAMPLES: usize = 8;
/// Equal samples have equal intervals.
const SEED: u64 = 0x6e66;

/// The mean of B through that of A, or the difference of both, with its interval. `between`: the runs' means on the scale of shifts.
pub(super) fn change(
    (a, b): (&[f64], &[f64]),
    design: Design,
    scale: Scale,
    (inflation, between): (f64, Option<&Between>),
    confidence: f64,
) -> Estimate {
    let value = scale.change(mean(a), mean(b));
    let of_samples = of_samples((a, b), design, scale, confidence);
    let widened = of_samples.map(|it| {
        let value = scale.to_shift(value);
        let end = |end| value + (scale.to_shift(end) - value) * inflation.sqrt();
        let samples = Interval {
            low: end(it.low),
            high: end(it.high),
        };
        let both = between.map_or(samples, |runs| samples.hull(runs.interval(confidence)));
        Interval {
            low: scale.of_shift(both.low),
            high: scale.of_shift(both.high),
        }
    });
    Estimate {
        value,
        confidence: widened,
    }
}

/// The interval of samples that are all independent.
fn of_samples(
    (a, b): (&[f64], &[f64]),
    design: Design,
    scale: Scale,
    confidence: f64,
) -> Option<Interval> {
    if a.len().min(b.len()) < MIN_SAMPLES {
        return None;
    }
    let of = |a: f64, b: f64| scale.change(a, b);
    let value = of(mean(a), mean(b));
    let mut random = Rng::with_seed(SEED);
    let mut resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| resample((a, b), design, &mut random))
        .map(|(a, b)| of(a, b))
        .collect();
    resampled.sort_by(f64::total_cmp);
    let jackknife = match design {
        Design::Independent => vec![
            without_each(a, |a| of(a, mean(b))),
            without_each(b, |b| of(mean(a), b)),
        ],
        Design::Paired => {
            let (of_a, of_b) = (without_each(a, |a| a), without_each(b, |b| b));
            vec![of_a.into_iter().zip(of_b).map(|(a, b)| of(a, b)).collect()]
        }
    };
    bca(value, &resampled, &jackknife, confidence)
}

/// Of one value or more.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The means of both sides, drawn again; pairs stay together.
fn resample((a, b): (&[f64], &[f64]), design: Design, random: &mut Rng) -> (f64, f64) {
    let mut of = |values: &[f64]| {
        let drawn = (0..values.len()).map(|_| values[random.usize(..values.len())]);
        drawn.sum::<f64>() / values.len() as f64
    };
    if design == Design::Independent {
        return (of(a), of(b));
    }
    let (mut of_a, mut of_b) = (0.0, 0.0);
    for _ in 0..a.len() {
        let round = random.usize(..a.len());
        of_a += a[round];
        of_b += b[round];
    }
    (of_a / a.len() as f64, of_b / a.len() as f64)
}

/// A figure of the mean without one sample, for each sample.
fn without_each(values: &[f64], of: impl Fn(f64) -> f64) -> Vec<f64> {
    let sum: f64 = values.iter().sum();
    let rest = values.len() as f64 - 1.0;
    values.iter().map(|it| of((sum - it) / rest)).collect()
}

/// The interval; `None` where the samples have no spread to draw from. `resampled` is sorted.
fn bca(value: f64, resampled: &[f64], jackknife: &[Vec<f64>], confidence: f64) -> Option<Interval> {
    let normal = Normal::standard();
    let below = resampled.partition_point(|it| *it < value);
    let up_to = resampled.partition_point(|it| *it <= value);
    let bias = normal.inverse_cdf((below + up_to) as f64 / (2 * resampled.len()) as f64);
    let (mut cubes, mut squares) = (0.0, 0.0);
    for side in jackknife {
        let (count, middle) = (side.len() as f64, mean(side));
        let influences = side.iter().map(|it| (count - 1.0) * (middle - it) / count);
        influences.for_each(|it| {
            squares += it * it;
            cubes += it * it * it;
        });
    }
    let acceleration = cubes / (6.0 * squares.powf(1.5));
    let end = |deviations: f64| {
        let moved = bias + deviations;
        let share = normal.cdf(bias + moved / (1.0 - acceleration * moved));
        let place = share * (resampled.len() - 1) as f64;
        place
            .is_finite()
            .then(|| resampled[(place.round() as usize).min(resampled.len() - 1)])
    };
    let reach = normal.inverse_cdf(1.0 - (1.0 - confidence) / 2.0);
    let (low, high) = (end(-reach)?, end(reach)?);
    (low.is_finite() && high.is_finite()).then_some(Interval { low, high })
}
