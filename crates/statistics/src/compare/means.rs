//! The change of the mean, with a bootstrap interval: what a few slow samples cost, which ranks do not see.
//!
//! Bias-corrected and accelerated (BCa; Efron 1987), the acceleration of several samples as in Davison and Hinkley, Bootstrap Methods
//! and their Application, 5.3.2. It draws samples as independent ones, so it is then widened: by the variance's inflation where samples
//! depend on their predecessors, and to Student's interval of the runs' means where a side has several runs (three runs are too few to
//! draw from). With few samples or heavy tails it holds the truth less often than it says (docs/compare.md).
//!
//! Several runs a side ([`Between`]): a run has effects of its own (where its memory lies, which CPUs it got, the boot), which all of its samples
//! share. The spread of the runs' medians (or means) holds them; that of the samples does not.
//!
//! Student's t of the runs' medians (or means) with a common variance. Ranks cannot serve few runs: of three a side they are never
//! significant. From [`MIN_RANKED_RUNS`] on they do, and see a change that some runs under another load hide from the variance: of
//! twelve runs a side with load for a quarter of the time, ranks find 5 % in four of five comparisons (the example
//! `disturbed_rates`).

use fastrand::Rng;
use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};

use super::ranks::Ranked;
use super::{Design, Estimate, POWER, Scale};
use crate::summary::sorted;
use crate::{CONFIDENCE, Interval};

/// Resamples; their 95 % interval moves by some 2 % of its width with the seed.
const RESAMPLES: usize = 2000;
/// As many of them are beyond each end of an interval at the least, unless that takes more than [`MOST_RESAMPLES`].
const BEYOND: f64 = 25.0;
const MOST_RESAMPLES: usize = 16 * RESAMPLES;
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
        let samples = it.map(end);
        let both = between.map_or(samples, |runs| samples.hull(runs.interval(confidence)));
        both.map(|it| scale.of_shift(it))
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
    let resamples = (2.0 * BEYOND / (1.0 - confidence)).ceil() as usize;
    let resamples = resamples.clamp(RESAMPLES, MOST_RESAMPLES);
    let drawn = (0..resamples).map(|_| resample((a, b), design, &mut random));
    let resampled = sorted(drawn.map(|(a, b)| of(a, b)));
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

/// A larger number of runs is not reported.
const MAX_RUNS: usize = 1000;

/// With as many runs a side their medians are compared by ranks: enough to be significant as one of 300 comparisons.
const MIN_RANKED_RUNS: usize = 8;

/// The medians of the runs of both sides as samples of ranks, where there are enough.
pub(super) fn ranked_runs([a, b]: &[Vec<f64>; 2]) -> Option<Ranked> {
    (a.len().min(b.len()) >= MIN_RANKED_RUNS).then(|| Ranked::independent(a, b))
}

/// The difference between the runs of two sides.
pub(super) struct Between {
    difference: f64,
    /// Standard deviation of a run's centre.
    deviation: f64,
    /// Standard error of the difference.
    error: f64,
    freedom: usize,
}

impl Between {
    /// Of the centres of the runs of both sides; `None` where each side is one run.
    pub fn of(sides: &[Vec<f64>; 2]) -> Option<Self> {
        let [a, b] = sides;
        let freedom = (a.len() + b.len()).checked_sub(2).filter(|&it| it > 0)?;
        let means = sides.each_ref().map(|side| mean(side));
        let squares = |(side, mean): (&Vec<f64>, f64)| -> f64 {
            side.iter().map(|centre| (centre - mean).powi(2)).sum()
        };
        let squares: f64 = sides.iter().zip(means).map(squares).sum();
        let deviation = (squares / freedom as f64).sqrt();
        let each = sides.iter().map(|side| 1.0 / side.len() as f64);
        Some(Self {
            difference: means[1] - means[0],
            deviation,
            error: deviation * each.sum::<f64>().sqrt(),
            freedom,
        })
    }

    /// The probability of as large a difference of runs between which nothing differs.
    pub fn two_sided(&self) -> f64 {
        let distance = self.difference.abs();
        match (distance > 0.0, self.error > 0.0) {
            (false, _) => 1.0,
            (true, false) => 0.0,
            (true, true) => 2.0 * student(self.freedom).cdf(-distance / self.error),
        }
    }

    /// The interval of the difference.
    pub fn interval(&self, confidence: f64) -> Interval {
        let reach = self.error * student(self.freedom).inverse_cdf((1.0 + confidence) / 2.0);
        Interval::around(self.difference, reach)
    }

    /// Runs of each side that would tell a shift of this size at this rate of false alarms, or show that there is none.
    pub fn needed(&self, shift: f64, false_alarms: f64) -> Option<usize> {
        let tells = |runs: &usize| {
            let student = student(2 * runs - 2);
            let quantile = |share| student.inverse_cdf(share);
            let difference = quantile(1.0 - false_alarms / 2.0) + quantile(POWER);
            let equivalence = quantile((1.0 + CONFIDENCE) / 2.0) + quantile((1.0 + POWER) / 2.0);
            let error = self.deviation * (2.0 / *runs as f64).sqrt();
            difference.max(equivalence) * error <= shift.abs()
        };
        (2..=MAX_RUNS).find(tells)
    }
}

/// Student's distribution; one degree of freedom or more.
pub(crate) fn student(freedom: usize) -> StudentsT {
    StudentsT::new(0.0, 1.0, freedom as f64).expect("a scale of 1 and a degree of freedom or more")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_a_worked_example() {
        // Student's two-sample t: 3.0 of 4 degrees of freedom has a two-sided p of 0.0399; the 97.5 % quantile is 2.776.
        let step = 1.5f64.sqrt();
        let between = Between::of(&[
            vec![-1.0, 0.0, 1.0],
            [1.0, 2.0, 3.0].map(|it| it * step).to_vec(),
        ]);
        let between = between.unwrap();
        let deviation = ((2.0 + 2.0 * 1.5) / 4.0f64).sqrt();
        let error = deviation * (2.0 / 3.0f64).sqrt();
        assert!((between.error - error).abs() < 1e-12);
        let interval = between.interval(0.95);
        assert!((interval.high - (2.0 * step + 2.776_445 * error)).abs() < 1e-5);
        let p = Between {
            difference: 3.0 * error,
            ..between
        }
        .two_sided();
        assert!((p - 0.039_942).abs() < 1e-5, "{p}");
    }

    #[test]
    fn many_runs_are_compared_by_ranks() {
        let side = |runs: usize| (0..runs).map(|it| it as f64).collect();
        assert!(ranked_runs(&[side(8), side(7)]).is_none());
        assert!(ranked_runs(&[side(8), side(8)]).is_some());
    }

    #[test]
    fn one_run_a_side_says_nothing_of_runs() {
        assert!(Between::of(&[vec![1.5], vec![1.5]]).is_none());
        let equal = Between::of(&[vec![1.5, 1.5], vec![1.5]]).unwrap();
        assert_eq!(
            (equal.two_sided(), equal.needed(0.01, 0.05)),
            (1.0, Some(2))
        );
    }
}
