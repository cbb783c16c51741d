//! The universal scalability law: how throughput grows with the number of tasks.
//!
//! ```text
//!                     lambda N
//! X(N) = ────────────────────────────────      lambda  throughput of one task
//!        1 + sigma (N-1) + kappa N (N-1)       sigma   share of the work that only one task can do at a time (a lock)
//!                                              kappa   what each pair of tasks costs (cache lines that go back and forth)
//! ```
//!
//! N. Gunther, Guerrilla Capacity Planning (2007), chapter 4. With kappa above 0 there is a peak, at sqrt((1 - sigma) / kappa).
//!
//! N / X(N) is linear in 1 / lambda, sigma / lambda and kappa / lambda. Least squares of relative errors, sigma and kappa not
//! below 0, over the means of the levels of N. Intervals: the samples of each level are drawn again 1000 times, their deviations
//! from the level's mean widened by sqrt(m / (m - 1)) for m samples.

use std::collections::BTreeSet;

use nalgebra::{Matrix3, Vector3};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::compare::student;
use crate::summary::sorted;
use crate::{CONFIDENCE, Interval};

/// The law has so many figures.
const FIGURES: usize = 3;
/// Levels of N that they take, one more than that to show an error.
pub const MIN_LEVELS: usize = FIGURES + 1;
const RESAMPLES: usize = 1000;
/// Of the order of drawing: the same samples have the same intervals.
const SEED: u64 = 0x5CA1E;
/// One more task that adds less than this share of what the first one does does not pay.
pub const MIN_GAIN: f64 = 0.1;

/// The figures of the law.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Law {
    /// In the unit of the throughput.
    pub lambda: f64,
    pub sigma: f64,
    pub kappa: f64,
}

/// What samples say of the law.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LawFit {
    pub law: Law,
    /// 95 % intervals; `None` where a level has fewer than two samples.
    pub intervals: Option<LawIntervals>,
    /// The number of tasks with the highest throughput; `None` where it grows without end.
    pub peak: Option<f64>,
    /// Up to this number of tasks, at most the largest measured, one more adds 10 % or more of what the first one does.
    pub pays_until: u32,
    /// The largest difference between the law and the mean of a level, as a share of that.
    pub largest_error: f64,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LawIntervals {
    pub lambda: Interval,
    pub sigma: Interval,
    pub kappa: Interval,
    /// The lower end of the peak; `None` where no peak is as likely.
    pub peak_low: Option<f64>,
    /// The upper end of the peak; `None` where it may be that there is none.
    pub peak_high: Option<f64>,
}

/// Why there is no fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CannotFit {
    #[error("{0} numbers of tasks are too few for the law: it takes {MIN_LEVELS} or more")]
    TooFewLevels(usize),
    #[error("a throughput is 0 or not finite")]
    NotPositive,
}

impl Law {
    /// The throughput of so many tasks.
    pub fn throughput(&self, tasks: f64) -> f64 {
        let others = tasks - 1.0;
        self.lambda * tasks / (1.0 + self.sigma * others + self.kappa * tasks * others)
    }

    /// The number of tasks with the highest throughput; `None` where it grows without end.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0).then(|| ((1.0 - self.sigma).max(0.0) / self.kappa).sqrt().max(1.0))
    }

    fn pays_until(&self, most: u32) -> u32 {
        let gain = |tasks: u32| {
            self.throughput(f64::from(tasks)) - self.throughput(f64::from(tasks) - 1.0)
        };
        let pays = |tasks: &u32| gain(*tasks) >= MIN_GAIN * self.lambda;
        (2..=most).take_while(pays).last().unwrap_or(1)
    }
}

/// The mean throughput of a number of tasks.
#[derive(Clone, Copy)]
struct Level {
    tasks: f64,
    mean: f64,
    samples: f64,
}

/// Fits the law to the throughputs of each number of tasks. `is_paired`: samples at the same place were taken in the same round, so
/// that they share what the machine did then.
///
/// # Errors
/// When there are too few numbers of tasks, or a throughput is not above 0.
pub fn fit(samples: &[(u32, Vec<f64>)], is_paired: bool) -> Result<LawFit, CannotFit> {
    let levels: Vec<&(u32, Vec<f64>)> = samples.iter().filter(|it| !it.1.is_empty()).collect();
    if levels.len() < MIN_LEVELS {
        return Err(CannotFit::TooFewLevels(levels.len()));
    }
    if levels
        .iter()
        .any(|(_, all)| all.iter().any(|it| !it.is_finite() || *it <= 0.0))
    {
        return Err(CannotFit::NotPositive);
    }
    let means: Vec<Level> = levels
        .iter()
        .map(|(tasks, all)| level(*tasks, all))
        .collect();
    let law = of_means(&means);
    let most = levels.iter().map(|it| it.0).max().unwrap_or(1);
    let error = |it: &Level| (law.throughput(it.tasks) / it.mean - 1.0).abs();
    Ok(LawFit {
        law,
        intervals: intervals(&levels, &means, is_paired),
        peak: law.peak(),
        pays_until: law.pays_until(most),
        largest_error: means.iter().map(error).fold(0.0, f64::max),
    })
}

/// The law of figures that have no samples, one for each number of tasks, such as published ones. Three determine it, so it says
/// nothing of its own error. `None` for fewer, and where one is not above 0.
pub fn of_figures(figures: &[(u32, f64)]) -> Option<Law> {
    let is_possible = |figure: f64| figure.is_finite() && figure > 0.0;
    let tasks: BTreeSet<u32> = figures.iter().map(|it| it.0).collect();
    let are_possible = figures.iter().all(|it| is_possible(it.1));
    (tasks.len() >= FIGURES && are_possible).then(|| {
        let levels = figures
            .iter()
            .map(|(tasks, figure)| level(*tasks, &[*figure]));
        of_means(&levels.collect::<Vec<_>>())
    })
}

fn level(tasks: u32, samples: &[f64]) -> Level {
    let count = samples.len() as f64;
    Level {
        tasks: tasks.into(),
        mean: samples.iter().sum::<f64>() / count,
        samples: count,
    }
}

/// The best of the four fits in which sigma and kappa are free or 0.
fn of_means(levels: &[Level]) -> Law {
    let subsets = [[false, false], [true, false], [false, true], [true, true]];
    let laws = subsets.into_iter().filter_map(|free| solve(levels, free));
    let best = laws.min_by(|a, b| error(levels, a).total_cmp(&error(levels, b)));
    // With positive throughputs the fit without sigma and kappa exists.
    best.unwrap_or(Law {
        lambda: 0.0,
        sigma: 0.0,
        kappa: 0.0,
    })
}

/// The sum of squares that [`solve`] makes small, relative to N / X.
fn error(levels: &[Level], law: &Law) -> f64 {
    let of = |it: &Level| it.samples * (it.mean / law.throughput(it.tasks) - 1.0).powi(2);
    levels.iter().map(of).sum()
}

/// `None` where a figure would be below 0.
fn solve(levels: &[Level], [sigma, kappa]: [bool; 2]) -> Option<Law> {
    let most = levels.iter().map(|it| it.tasks).fold(1.0, f64::max);
    let is_free = [true, sigma, kappa];
    let scale = [1.0, 1.0 / most, 1.0 / (most * most)];
    let (mut left, mut right) = (Matrix3::zeros(), Vector3::zeros());
    for it in levels {
        let (n, each) = (it.tasks, it.mean / it.tasks);
        let columns = [each, (n - 1.0) * each, n * (n - 1.0) * each];
        for i in (0..3).filter(|i| is_free[*i]) {
            right[i] += it.samples * columns[i] * scale[i];
            for j in (0..3).filter(|j| is_free[*j]) {
                left[(i, j)] += it.samples * columns[i] * scale[i] * columns[j] * scale[j];
            }
        }
    }
    for i in (0..3).filter(|i| !is_free[*i]) {
        left[(i, i)] = 1.0;
    }
    // Throughputs of any size: the matrix would seem singular where they are small.
    let size = left[(0, 0)];
    for i in (0..3).filter(|i| is_free[*i]) {
        right[i] /= size;
        for j in (0..3).filter(|j| is_free[*j]) {
            left[(i, j)] /= size;
        }
    }
    let solved = left.lu().solve(&right)?;
    let [base, alone, pairs] = [0, 1, 2].map(|i| solved[i] * scale[i]);
    let is_possible = base > 0.0 && alone >= 0.0 && pairs >= 0.0;
    is_possible.then(|| Law {
        lambda: 1.0 / base,
        sigma: alone / base,
        kappa: pairs / base,
    })
}

/// How much wider an interval of so many rounds is than one of very many.
fn of_few(rounds: usize) -> f64 {
    let share = (1.0 + CONFIDENCE) / 2.0;
    let normal = Normal::standard().inverse_cdf(share);
    student(rounds - 1).inverse_cdf(share) / normal
}

/// A bootstrap. Of pairs it draws whole rounds: a drift of the machine moves all levels together, which widens lambda's interval and not
/// those of the other two. Rounds are few, so their spread is widened as Student's distribution is against the normal one.
fn intervals(
    levels: &[&(u32, Vec<f64>)],
    means: &[Level],
    is_paired: bool,
) -> Option<LawIntervals> {
    if levels.iter().any(|it| it.1.len() < 2) {
        return None;
    }
    let rounds = levels.first()?.1.len();
    let is_paired = is_paired && levels.iter().all(|it| it.1.len() == rounds);
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut draw =
        |count: usize| -> Vec<usize> { (0..count).map(|_| random.usize(..count)).collect() };
    let few = match is_paired {
        true => of_few(rounds),
        false => 1.0,
    };
    let mean_of = |samples: &[f64], level: &Level, drawn: &[usize]| {
        let widened = few * (level.samples / (level.samples - 1.0)).sqrt();
        let sum: f64 = drawn.iter().map(|place| samples[*place] - level.mean).sum();
        let mean = level.mean + widened * sum / level.samples;
        Level {
            mean: mean.max(level.mean * 1e-3),
            ..*level
        }
    };
    let mut laws = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let common = is_paired.then(|| draw(rounds));
        let of_level = |((_, samples), level): (&(u32, Vec<f64>), &Level)| match &common {
            Some(drawn) => mean_of(samples, level, drawn),
            None => mean_of(samples, level, &draw(samples.len())),
        };
        let means: Vec<Level> = levels.iter().copied().zip(means).map(of_level).collect();
        laws.push(of_means(&means));
    }
    let of = |of: fn(&Law) -> f64| {
        let values = sorted(laws.iter().map(of));
        let at = |share: f64| values[(share * (RESAMPLES - 1) as f64).round() as usize];
        Interval {
            low: at((1.0 - CONFIDENCE) / 2.0),
            high: at((1.0 + CONFIDENCE) / 2.0),
        }
    };
    let peak = of(|law| law.peak().unwrap_or(f64::INFINITY));
    Some(LawIntervals {
        lambda: of(|law| law.lambda),
        sigma: of(|law| law.sigma),
        kappa: of(|law| law.kappa),
        peak_low: Some(peak.low).filter(|it| it.is_finite()),
        peak_high: Some(peak.high).filter(|it| it.is_finite()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEVELS: [u32; 6] = [1, 2, 4, 8, 16, 32];

    fn exact(law: &Law) -> Vec<(u32, Vec<f64>)> {
        let of = |tasks: u32| (tasks, vec![law.throughput(tasks.into()); 3]);
        LEVELS.map(of).into()
    }

    proptest! {
        #[test]
        fn a_law_without_noise_is_found(lambda in 1e-3..1e9, sigma in 0.0..0.9, kappa in 0.0..0.1) {
            let law = Law { lambda, sigma, kappa };
            let found = fit(&exact(&law), false).unwrap();
            prop_assert!((found.law.lambda / lambda - 1.0).abs() < 1e-6, "{found:?}");
            prop_assert!((found.law.sigma - sigma).abs() < 1e-5, "{found:?}");
            prop_assert!((found.law.kappa - kappa).abs() < 1e-5, "{found:?}");
            prop_assert!(found.largest_error < 1e-6, "{found:?}");
        }

        #[test]
        fn any_throughputs_are_fitted_without_negative_figures(values in prop::collection::vec(1e-6..1e12, 6)) {
            let samples: Vec<_> = LEVELS.into_iter().zip(values).map(|(n, x)| (n, vec![x, x])).collect();
            let LawFit { law, .. } = fit(&samples, false).unwrap();
            prop_assert!(law.lambda > 0.0 && law.sigma >= 0.0 && law.kappa >= 0.0, "{law:?}");
        }
    }

    #[test]
    fn the_peak_and_the_last_task_that_pays() {
        let law = Law {
            lambda: 100.0,
            sigma: 0.1,
            kappa: 0.009,
        };
        let found = fit(&exact(&law), false).unwrap();
        assert!((found.peak.unwrap() - 10.0).abs() < 1e-3, "{found:?}");
        // From the definition: 100 N / (1 + 0.1 (N-1) + 0.009 N (N-1)), 10 or more from one task to the next.
        assert_eq!(
            found.pays_until,
            7,
            "{:?}",
            (1..9).map(|n| law.throughput(n.into())).collect::<Vec<_>>()
        );
        let linear = fit(
            &exact(&Law {
                lambda: 1.0,
                sigma: 0.0,
                kappa: 0.0,
            }),
            false,
        )
        .unwrap();
        assert_eq!(
            (
                linear.pays_until,
                linear.law.peak().is_none_or(|it| it > 1e3)
            ),
            (32, true)
        );
    }

    #[test]
    fn too_few_levels_and_no_throughput_are_refused() {
        let law = Law {
            lambda: 1.0,
            sigma: 0.0,
            kappa: 0.0,
        };
        assert_eq!(
            fit(&exact(&law)[..3], false),
            Err(CannotFit::TooFewLevels(3))
        );
        let mut samples = exact(&law);
        samples[0].1[0] = 0.0;
        assert_eq!(fit(&samples, false), Err(CannotFit::NotPositive));
    }

    /// Of 300 experiments the 95 % intervals hold the truth in at least 89 %, and not in all: with 3 % noise of each sample's own,
    /// and with 3 % that the samples of a round share and 1 % of their own.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        for (common, own, is_paired) in [(0.0, 0.03, false), (0.0, 0.03, true), (0.03, 0.01, true)]
        {
            let held = held(common, own, is_paired);
            let is_enough =
                |count: &usize| (0.89..0.995).contains(&(*count as f64 / EXPERIMENTS as f64));
            assert!(
                held.iter().all(is_enough),
                "{held:?} of {EXPERIMENTS}, common {common}, paired {is_paired}"
            );
        }
    }

    /// Without whole rounds the interval of lambda is too short where rounds differ.
    #[test]
    fn a_drift_of_the_machine_is_seen_only_in_whole_rounds() {
        let [lambda, _, _] = held(0.03, 0.01, false);
        assert!((lambda as f64) < 0.87 * EXPERIMENTS as f64, "{lambda}");
    }

    const EXPERIMENTS: usize = 300;

    /// How often the intervals of lambda, sigma and kappa hold the truth.
    fn held(common: f64, own: f64, is_paired: bool) -> [usize; 3] {
        let law = Law {
            lambda: 1000.0,
            sigma: 0.05,
            kappa: 0.002,
        };
        let mut random = fastrand::Rng::with_seed(7);
        // The sum of twelve is near enough to a normal distribution.
        let mut noise = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let mut held = [0; 3];
        for _ in 0..EXPERIMENTS {
            let rounds: Vec<f64> = (0..8).map(|_| 1.0 + common * noise()).collect();
            let mut of = |tasks: u32| {
                let x = law.throughput(tasks.into());
                let sample = |round: &f64| x * round * (1.0 + own * noise());
                (tasks, rounds.iter().map(sample).collect())
            };
            let samples: Vec<(u32, Vec<f64>)> = LEVELS.map(&mut of).into();
            let found = fit(&samples, is_paired).unwrap().intervals.unwrap();
            let holds = |it: Interval, value: f64| it.low <= value && value <= it.high;
            let all = [
                (found.lambda, law.lambda),
                (found.sigma, law.sigma),
                (found.kappa, law.kappa),
            ];
            for (count, (interval, truth)) in held.iter_mut().zip(all) {
                *count += usize::from(holds(interval, truth));
            }
        }
        held
    }
}
