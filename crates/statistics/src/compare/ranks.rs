//! Rank tests of two sides and the shift between them that belongs to each: estimate, interval and test agree.
//!
//! ```text
//!              test                            estimate: half of the ... lie below     interval
//! independent  Mann-Whitney: U, the number     differences b - a                       differences of rank k and mn + 1 - k,
//!              of pairs with b above a         (Hodges and Lehmann 1963)               P(U < k) <= 2.5 % (Moses 1965)
//! paired       Wilcoxon signed rank: W+ of     Walsh means of the rounds' differences  the same by P(W+ < k) (Tukey 1949)
//!              the rounds' differences
//! ```
//!
//! The interval holds the shifts that the test does not reject, so it leaves out 0 where the test rejects. Neither assumes how the
//! samples are distributed. With ties the interval holds its confidence or more.

use std::rc::Rc;

use super::null::{Null, Nulls};
use super::order;
use crate::Interval;
use crate::rank::ranks_within;

/// Values that differ by less than this share of the largest are equal: a shift by a margin leaves rounding errors, which would
/// order what the clock could not.
const RESOLUTION: f64 = 1e-13;

/// A rank test of one metric of one cell.
pub(super) enum Ranked {
    Independent { a: Vec<f64>, b: Vec<f64> },
    Paired { differences: Vec<f64> },
}

impl Ranked {
    /// Of samples that have nothing to do with each other.
    pub fn independent(a: &[f64], b: &[f64]) -> Self {
        let sorted = |side: &[f64]| {
            let mut side = side.to_vec();
            side.sort_by(f64::total_cmp);
            side
        };
        Self::Independent {
            a: sorted(a),
            b: sorted(b),
        }
    }

    /// Of samples of which each one of B was taken in the round of the one of A at its index.
    pub fn paired(a: &[f64], b: &[f64]) -> Self {
        let mut differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
        differences.sort_by(f64::total_cmp);
        Self::Paired { differences }
    }

    /// The statistic and its distribution where B is A shifted by this. `inflation`: how many times the variance is what it is of
    /// independent samples.
    pub fn against(&self, shift: f64, inflation: f64, nulls: &mut Nulls) -> Outcome {
        match self {
            Self::Independent { a, b } => {
                let pooled: Vec<f64> = a
                    .iter()
                    .copied()
                    .chain(b.iter().map(|b| b - shift))
                    .collect();
                let doubled = doubled(&pooled, resolution(&pooled));
                Outcome {
                    sum: doubled[a.len()..].iter().sum(),
                    null: nulls.of_choice(&doubled, b.len(), inflation),
                }
            }
            Self::Paired { differences } => {
                // A round without a difference says nothing of its direction (Wilcoxon's own treatment).
                let shifted = differences.iter().map(|it| it - shift);
                let resolution = resolution(differences).max(RESOLUTION * shift.abs());
                let shifted: Vec<f64> = shifted.filter(|it| it.abs() > resolution).collect();
                let sizes: Vec<f64> = shifted.iter().map(|it| it.abs()).collect();
                let doubled = doubled(&sizes, resolution);
                let positive = doubled.iter().zip(&shifted).filter(|(_, it)| **it > 0.0);
                Outcome {
                    sum: positive.map(|(rank, _)| rank).sum(),
                    null: nulls.of_signs(&doubled, inflation),
                }
            }
        }
    }

    /// The shift of B that explains the samples best.
    pub fn estimate(&self) -> f64 {
        let all = self.sums();
        let low = self.sum_of_rank(all.div_ceil(2));
        let high = self.sum_of_rank(all / 2 + 1);
        low + (high - low) / 2.0
    }

    /// The shifts that a two-sided test at `1 - confidence` does not reject; `None` where there are too few samples for any to be.
    pub fn interval(&self, confidence: f64, inflation: f64, nulls: &mut Nulls) -> Option<Interval> {
        let miss = (1.0 - confidence) / 2.0;
        // Sums of doubled ranks; the critical number of pairs is half of what is above the least sum.
        let (null, least) = match self {
            Self::Independent { a, b } => {
                let count = b.len();
                let null = nulls.of_choice(&untied(a.len() + count), count, inflation);
                (null, count * (count + 1))
            }
            Self::Paired { differences } => {
                (nulls.of_signs(&untied(differences.len()), inflation), 0)
            }
        };
        let rejected = null.quantile(miss)?.checked_sub(least)? / 2;
        let all = self.sums();
        let rank = rejected + 1;
        (2 * rank <= all).then(|| Interval {
            low: self.sum_of_rank(rank),
            high: self.sum_of_rank(all + 1 - rank),
        })
    }

    /// How many differences or Walsh means there are.
    fn sums(&self) -> usize {
        match self {
            Self::Independent { a, b } => a.len() * b.len(),
            Self::Paired { differences } => differences.len() * (differences.len() + 1) / 2,
        }
    }

    fn sum_of_rank(&self, rank: usize) -> f64 {
        match self {
            Self::Independent { a, b } => order::difference(a, b, rank),
            Self::Paired { differences } => order::walsh_mean(differences, rank),
        }
    }
}

/// A statistic and its distribution where nothing differs.
pub(super) struct Outcome {
    sum: usize,
    null: Rc<Null>,
}

impl Outcome {
    /// The probability of a statistic at least as far from the middle.
    pub fn two_sided(&self) -> f64 {
        self.null.two_sided(self.sum)
    }

    /// The smallest that any samples with these ties can have.
    pub fn least_two_sided(&self) -> f64 {
        self.null.least_two_sided()
    }

    /// The probability of a B as low as this or lower.
    pub fn lower(&self) -> f64 {
        self.null.at_most(self.sum)
    }

    /// The probability of a B as high as this or higher.
    pub fn upper(&self) -> f64 {
        self.null.at_least(self.sum)
    }
}

/// Ranks times two: whole numbers also where ties share the mean of theirs.
fn doubled(values: &[f64], resolution: f64) -> Vec<usize> {
    let ranks = ranks_within(values, resolution);
    ranks
        .into_iter()
        .map(|rank| (2.0 * rank) as usize)
        .collect()
}

/// What is lost to rounding of values as large as these.
fn resolution(values: &[f64]) -> f64 {
    let largest = values
        .iter()
        .map(|value| value.abs())
        .fold(1e-300, f64::max);
    RESOLUTION * largest
}

fn untied(count: usize) -> Vec<usize> {
    (1..=count).map(|rank| 2 * rank).collect()
}
