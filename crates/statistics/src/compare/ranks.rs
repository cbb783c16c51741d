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
//!
//! The distribution of a statistic when both sides are the same ([`Null`]) is exact where counting is cheap, given the ties that the
//! samples have; the normal approximation with its continuity correction above that, and where samples depend on their predecessors.
//!
//! Differences and means are not listed to find one of given rank: of 1000 samples a side there are a million differences, and halving
//! the range of its value takes 64 passes over both lists.

use std::collections::HashMap;
use std::rc::Rc;

use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::Interval;
use crate::summary::{ranks_within, sorted};

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
        let [a, b] = [a, b].map(|side| sorted(side.iter().copied()));
        Self::Independent { a, b }
    }

    /// Of samples of which each one of B was taken in the round of the one of A at its index.
    pub fn paired(a: &[f64], b: &[f64]) -> Self {
        let differences = sorted(a.iter().zip(b).map(|(a, b)| b - a));
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
            Self::Independent { a, b } => difference_of_rank(a, b, rank),
            Self::Paired { differences } => walsh_mean_of_rank(differences, rank),
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

pub(super) fn untied(count: usize) -> Vec<usize> {
    (1..=count).map(|rank| 2 * rank).collect()
}

/// Additions that an exact distribution may take: some 3 ms.
const MAX_EXACT_OPERATIONS: usize = 3_000_000;

/// Distributions of samples without ties, which depend on nothing but how many there are: the cells of a run share theirs.
#[derive(Default)]
pub(super) struct Nulls {
    choices: HashMap<(usize, usize), Rc<Null>>,
    signs: HashMap<usize, Rc<Null>>,
}

impl Nulls {
    /// As [`Null::of_choice`].
    pub fn of_choice(&mut self, doubled: &[usize], chosen: usize, inflation: f64) -> Rc<Null> {
        let make = || Rc::new(Null::of_choice(doubled, chosen, inflation));
        if inflation > 1.0 || !is_untied(doubled) {
            return make();
        }
        let kept = self.choices.entry((doubled.len(), chosen));
        Rc::clone(kept.or_insert_with(make))
    }

    /// As [`Null::of_signs`].
    pub fn of_signs(&mut self, doubled: &[usize], inflation: f64) -> Rc<Null> {
        let make = || Rc::new(Null::of_signs(doubled, inflation));
        if inflation > 1.0 || !is_untied(doubled) {
            return make();
        }
        Rc::clone(self.signs.entry(doubled.len()).or_insert_with(make))
    }
}

/// Whether these are the doubled ranks of different values, in any order.
fn is_untied(doubled: &[usize]) -> bool {
    let mut sorted = doubled.to_vec();
    sorted.sort_unstable();
    sorted
        .into_iter()
        .eq((1..=doubled.len()).map(|rank| 2 * rank))
}

/// How a doubled rank sum is distributed when nothing differs.
#[derive(Clone, Debug)]
pub(super) enum Null {
    /// `below[s]` is the probability of a sum of at most `least + s`, `above[s]` that of at least as much.
    Exact {
        least: usize,
        below: Vec<f64>,
        above: Vec<f64>,
    },
    /// About normal; steps of two, since the ranks are doubled.
    Normal { mean: f64, deviation: f64 },
}

impl Null {
    /// Of the sum of `chosen` of these doubled ranks, each choice as likely (Mann and Whitney).
    pub fn of_choice(doubled: &[usize], chosen: usize, inflation: f64) -> Self {
        let count = doubled.len();
        // The smaller side has the shorter table; its complement has the other's distribution.
        let fewer = chosen.min(count - chosen);
        let most: usize = {
            let mut sorted = doubled.to_vec();
            sorted.sort_unstable();
            sorted.iter().rev().take(fewer).sum()
        };
        if inflation > 1.0 || count * fewer * most > MAX_EXACT_OPERATIONS {
            return Self::normal_choice(doubled, chosen, inflation);
        }
        let width = most + 1;
        let mut ways = vec![0.0f64; (fewer + 1) * width];
        ways[0] = 1.0;
        for (seen, &rank) in doubled.iter().enumerate() {
            for number in (1..=fewer.min(seen + 1)).rev() {
                let (before, at) = ways.split_at_mut(number * width);
                let before = &before[(number - 1) * width..];
                // Up to here sums of fewer ranks can have come.
                for (to, from) in at[rank.min(width)..width].iter_mut().zip(before) {
                    *to += from;
                }
            }
        }
        let ways = &ways[fewer * width..];
        if fewer == chosen {
            return Self::cumulated(0, ways);
        }
        let all: usize = doubled.iter().sum();
        let mirrored: Vec<f64> = ways.iter().rev().copied().collect();
        Self::cumulated(all - most, &mirrored)
    }

    /// Of the sum of those doubled ranks whose sign is positive, each sign as likely as the other (Wilcoxon).
    pub fn of_signs(doubled: &[usize], inflation: f64) -> Self {
        let all: usize = doubled.iter().sum();
        if inflation > 1.0 || doubled.len() * all > MAX_EXACT_OPERATIONS {
            let mean = all as f64 / 2.0;
            let squares: f64 = doubled.iter().map(|&rank| (rank as f64).powi(2)).sum();
            let deviation = (squares / 4.0 * inflation).sqrt();
            return Self::Normal { mean, deviation };
        }
        let mut ways = vec![0.0f64; all + 1];
        ways[0] = 1.0;
        let mut reached = 0;
        for &rank in doubled {
            reached += rank;
            for sum in (rank..=reached).rev() {
                // Halved at each rank, so that no number of ranks overflows.
                ways[sum] = (ways[sum] + ways[sum - rank]) / 2.0;
            }
            ways[..rank].iter_mut().for_each(|ways| *ways /= 2.0);
        }
        Self::cumulated(0, &ways)
    }

    fn normal_choice(doubled: &[usize], chosen: usize, inflation: f64) -> Self {
        let (count, chosen) = (doubled.len() as f64, chosen as f64);
        let middle = doubled.iter().sum::<usize>() as f64 / count;
        let squares: f64 = doubled
            .iter()
            .map(|&rank| (rank as f64 - middle).powi(2))
            .sum();
        // Sampling without replacement; ties have made the squares smaller already.
        let variance = chosen * (count - chosen) / (count * (count - 1.0)) * squares;
        Self::Normal {
            mean: chosen * middle,
            deviation: (variance * inflation).sqrt(),
        }
    }

    fn cumulated(least: usize, ways: &[f64]) -> Self {
        let all: f64 = ways.iter().sum();
        let running = |sum: &mut f64, ways: &f64| {
            *sum += ways;
            Some((*sum / all).min(1.0))
        };
        // Both added up from their own end: a difference from 1 would lose the small probabilities.
        let mut above: Vec<f64> = ways.iter().rev().scan(0.0, running).collect();
        above.reverse();
        Self::Exact {
            least,
            below: ways.iter().scan(0.0, running).collect(),
            above,
        }
    }

    /// The probability of a sum of at most this.
    pub fn at_most(&self, sum: usize) -> f64 {
        match self {
            Self::Exact { least, below, .. } => match sum.checked_sub(*least) {
                None => 0.0,
                Some(at) => below.get(at).copied().unwrap_or(1.0),
            },
            Self::Normal { deviation, .. } if *deviation <= 0.0 => 1.0,
            Self::Normal { mean, deviation } => cdf((sum as f64 + 1.0 - mean) / deviation),
        }
    }

    /// The probability of a sum of at least this.
    pub fn at_least(&self, sum: usize) -> f64 {
        match self {
            Self::Exact { least, above, .. } => match sum.checked_sub(*least) {
                None => 1.0,
                Some(at) => above.get(at).copied().unwrap_or(0.0),
            },
            Self::Normal { deviation, .. } if *deviation <= 0.0 => 1.0,
            Self::Normal { mean, deviation } => cdf((mean - sum as f64 + 1.0) / deviation),
        }
    }

    /// The probability of a sum as far from the middle as this on either side: twice the smaller tail.
    pub fn two_sided(&self, sum: usize) -> f64 {
        (2.0 * self.at_most(sum).min(self.at_least(sum))).min(1.0)
    }

    /// The smallest two-sided probability that any samples with these ties can have; 0 for the approximation.
    pub fn least_two_sided(&self) -> f64 {
        match self {
            Self::Normal { deviation, .. } => f64::from(u8::from(*deviation <= 0.0)),
            Self::Exact { below, above, .. } => {
                let lowest = below.iter().copied().find(|&it| it > 0.0);
                let highest = above.iter().rev().copied().find(|&it| it > 0.0);
                (2.0 * lowest.unwrap_or(1.0).min(highest.unwrap_or(1.0))).min(1.0)
            }
        }
    }

    /// The largest sum that at most this share of all sums does not exceed; `None` where even the least sum is too likely.
    pub fn quantile(&self, share: f64) -> Option<usize> {
        match self {
            Self::Exact { least, below, .. } => {
                let beyond = below.partition_point(|&below| below <= share);
                beyond.checked_sub(1).map(|at| least + at)
            }
            Self::Normal { mean, deviation } => {
                let normal = Normal::standard().inverse_cdf(share);
                let sum = (mean + normal * deviation - 1.0).floor();
                (sum >= 0.0).then_some(sum as usize)
            }
        }
    }
}

fn cdf(deviations: f64) -> f64 {
    Normal::standard().cdf(deviations)
}

/// The `rank`-th smallest (from 1) of all differences `b - a`. Both lists are sorted and not empty.
fn difference_of_rank(a: &[f64], b: &[f64], rank: usize) -> f64 {
    by_halving(rank, |value| {
        // For each b, from the smallest on, the number of a that are large enough grows smaller.
        let mut first = 0;
        b.iter()
            .map(|b| {
                while first < a.len() && b - a[first] > value {
                    first += 1;
                }
                a.len() - first
            })
            .sum()
    })
}

/// The `rank`-th smallest (from 1) of the means of all pairs of one sorted list, each value paired with itself too (Walsh).
fn walsh_mean_of_rank(values: &[f64], rank: usize) -> f64 {
    by_halving(rank, |value| {
        let mut end = values.len();
        values
            .iter()
            .enumerate()
            .map(|(index, low)| {
                while end > 0 && (low + values[end - 1]) / 2.0 > value {
                    end -= 1;
                }
                end.saturating_sub(index)
            })
            .sum()
    })
}

/// The least value of which `count` (how many are at most that) reaches `rank`.
fn by_halving(rank: usize, count: impl Fn(f64) -> usize) -> f64 {
    let (mut below, mut reached) = (order_key(f64::NEG_INFINITY), order_key(f64::INFINITY));
    while reached - below > 1 {
        let middle = below + (reached - below) / 2;
        match count(of_order_key(middle)) >= rank {
            true => reached = middle,
            false => below = middle,
        }
    }
    of_order_key(reached)
}

/// A number whose order is that of the values.
fn order_key(value: f64) -> u64 {
    let bits = value.to_bits();
    match bits >> 63 {
        0 => bits | 1 << 63,
        _ => !bits,
    }
}

fn of_order_key(key: u64) -> f64 {
    f64::from_bits(match key >> 63 {
        1 => key & !(1 << 63),
        _ => !key,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn choices_are_counted_as_published() {
        // Mann and Whitney 1947, table I: three and five samples, U <= 2 in 4 of 56 orders.
        let null = Null::of_choice(&untied(8), 3, 1.0);
        let at = |u: usize| null.at_most(12 + 2 * u);
        assert!((at(0) - 1.0 / 56.0).abs() < 1e-12 && (at(2) - 4.0 / 56.0).abs() < 1e-12);
        // Of the five: the ranks that remain.
        let other = Null::of_choice(&untied(8), 5, 1.0);
        assert!((other.at_most(30) - 1.0 / 56.0).abs() < 1e-12);
        assert_eq!(other.at_most(29), 0.0);
        assert_eq!(other.quantile(0.05), Some(33), "2 of 56 up to U = 1");
    }

    #[test]
    fn signs_are_counted_as_published() {
        // Wilcoxon: of eight pairs W <= 3 in 5 of 256 signs, the critical value of the two-sided test at 5 %.
        let null = Null::of_signs(&untied(8), 1.0);
        assert!((null.at_most(6) - 5.0 / 256.0).abs() < 1e-12);
        assert_eq!(
            null.quantile(0.025),
            Some(7),
            "W = 3, doubled ranks below 8"
        );
        assert!((null.least_two_sided() - 2.0 / 256.0).abs() < 1e-12);
    }

    #[test]
    fn the_approximation_continues_the_exact_distribution() {
        let ranks = untied(44);
        let exact = Null::of_choice(&ranks, 22, 1.0);
        let normal = Null::normal_choice(&ranks, 22, 1.0);
        assert!(matches!(exact, Null::Exact { .. }));
        for sum in (700..1300).step_by(50) {
            let (exact, normal) = (exact.two_sided(sum), normal.two_sided(sum));
            assert!((exact - normal).abs() < 5e-3, "{sum}: {exact} {normal}");
        }
    }

    proptest! {
        #[test]
        fn ranks_are_those_of_the_sorted_list(
            a in prop::collection::vec(-9i32..9, 1..12),
            b in prop::collection::vec(-9i32..9, 1..12),
        ) {
            let (a, b) = [a, b].map(|side| sorted(side.into_iter().map(|it| f64::from(it) / 8.0))).into();
            let differences = sorted(b.iter().flat_map(|b| a.iter().map(move |a| b - a)));
            for (index, expected) in differences.iter().enumerate() {
                prop_assert_eq!(difference_of_rank(&a, &b, index + 1), *expected);
            }
            let means = (0..a.len()).flat_map(|low| a[low..].iter().map(move |high| (low, high)));
            let means = sorted(means.map(|(low, high)| (a[low] + high) / 2.0));
            for (index, expected) in means.iter().enumerate() {
                prop_assert_eq!(walsh_mean_of_rank(&a, index + 1), *expected);
            }
        }
    }
}
