//! The distribution of a rank statistic when both sides are the same.
//!
//! Exact where counting is cheap, given the ties that the samples have; the normal approximation with its continuity
//! correction above that, and where samples depend on their predecessors.

use std::collections::HashMap;
use std::rc::Rc;

use statrs::distribution::{ContinuousCDF as _, Normal};

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

#[cfg(test)]
mod tests {
    use super::*;

    fn untied(count: usize) -> Vec<usize> {
        (1..=count).map(|rank| 2 * rank).collect()
    }

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
}
