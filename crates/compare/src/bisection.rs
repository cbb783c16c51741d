//! On which side of a change a commit is: a bisection by numbers that vary from run to run.
//!
//! ```text
//!  good ──────────┼────────── bad      the change, step 0: significant, and all of its interval beyond its own middle
//!        [──]  middle                  good: all of the interval against the good commit is before the middle
//!                 │  [────]            bad: all of it is beyond
//!            [────┼──]                 not known: more runs, in the end skipped
//! ```
//!
//! All answers of a bisection together are wrong with at most 5 %: half of that is the first step's, and of the rest step k has
//! 1 / (k (k + 1)), of which each look has its share ([`sequential`]). The commit that is found is then the one with which the number
//! crosses the middle.

use nearfar_statistics::Interval;
use nearfar_statistics::compare::{
    Compared, DEFAULT_MARGIN, Design, FALSE_ALARMS, Question, Verdict, compare_shares, sequential,
};
use serde::{Deserialize, Serialize};

/// Half of the change between the good and the bad commit.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Middle {
    value: f64,
    /// A share of the good commit's median; otherwise, where that is 0, a difference.
    is_share: bool,
}

/// What runs of the good commit and of another one say, taken in turns.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Judgement {
    pub compared: Compared,
    /// Whether the other commit has the change; `None` where that is not known.
    pub is_changed: Option<bool>,
}

impl Judgement {
    /// Judges the step: 0 the bad commit, without a middle, then each one that is tested. `None` of no runs.
    pub fn of(good: &[f64], other: &[f64], step: u32, middle: Option<Middle>) -> Option<Self> {
        let question = Question {
            a: vec![good.to_vec()],
            b: vec![other.to_vec()],
            design: Design::Independent,
            better: None,
        };
        let rounds = u32::try_from(good.len().min(other.len())).unwrap_or(u32::MAX);
        let share = sequential::share(rounds) * share_of(step);
        let compared = compare_shares([(&question, share)], DEFAULT_MARGIN).pop()??;
        let is_changed = match middle {
            None => is_change(&compared, share),
            Some(middle) => middle.is_crossed_by(&compared),
        };
        Some(Self {
            compared,
            is_changed,
        })
    }

    /// The middle of a change.
    pub fn middle(&self) -> Middle {
        let (value, _, is_share) = effect(&self.compared);
        Middle {
            value: value / 2.0,
            is_share,
        }
    }
}

impl Middle {
    /// Whether all of the interval is beyond it; `None` where only a part of it is.
    fn is_crossed_by(&self, compared: &Compared) -> Option<bool> {
        let (_, interval, is_share) = effect(compared);
        let interval = interval.filter(|_| is_share == self.is_share)?;
        let (low, high) = ends(interval, self.value);
        match self.value.abs() {
            middle if low > middle => Some(true),
            middle if high < middle => Some(false),
            _ => None,
        }
    }
}

/// The ends of an interval, nearer and farther in the direction of a value.
fn ends(interval: Interval, value: f64) -> (f64, f64) {
    match value < 0.0 {
        true => (-interval.high, -interval.low),
        false => (interval.low, interval.high),
    }
}

/// Whether there is a change whose middle is certainly before it.
fn is_change(compared: &Compared, share: f64) -> Option<bool> {
    if matches!(compared.verdict, Verdict::Equal | Verdict::Equivalent) {
        return Some(false);
    }
    let (value, interval, _) = effect(compared);
    let (low, _) = ends(interval?, value);
    (compared.p <= FALSE_ALARMS * share && low > value.abs() / 2.0).then_some(true)
}

/// The change with its interval, and whether it is a share of the good commit's median.
fn effect(compared: &Compared) -> (f64, Option<Interval>, bool) {
    let estimate = compared.change.unwrap_or(compared.shift);
    (
        estimate.value,
        estimate.confidence,
        compared.change.is_some(),
    )
}

fn share_of(step: u32) -> f64 {
    match f64::from(step) {
        0.0 => 0.5,
        step => 0.5 / (step * (step + 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMITS: usize = 16;
    const MOST: u32 = 80;

    /// Of a normal distribution, nearly: the sum of twelve uniform numbers.
    fn normal(random: &mut fastrand::Rng) -> f64 {
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    /// Judges a step until it is known, with noise of 1 %; and how many rounds that took.
    fn judged(
        medians: [f64; 2],
        step: u32,
        middle: Option<Middle>,
        random: &mut fastrand::Rng,
    ) -> (Judgement, u32) {
        let mut sides = [Vec::new(), Vec::new()];
        for round in 1.. {
            for (side, median) in sides.iter_mut().zip(medians) {
                side.push(median * (1.0 + 0.01 * normal(random)));
            }
            if sequential::is_look(round) {
                let found = Judgement::of(&sides[0], &sides[1], step, middle).unwrap();
                if found.is_changed.is_some() || round == MOST {
                    return (found, round);
                }
            }
        }
        unreachable!("a step ends");
    }

    /// The first commit with a change, which the one of this number brings; and the rounds of all steps. Commits that are not known are
    /// counted as the one after them.
    fn found(change: f64, brings: usize, random: &mut fastrand::Rng) -> (Option<usize>, u32) {
        let of = |commit: usize| if commit >= brings { 1.0 + change } else { 1.0 };
        let (first, mut rounds) = judged([1.0, of(COMMITS)], 0, None, random);
        if first.is_changed != Some(true) {
            return (None, rounds);
        }
        let (mut good, mut bad) = (0, COMMITS);
        let mut step = 0;
        while bad - good > 1 {
            step += 1;
            let tested = usize::midpoint(good, bad);
            let (judgement, took) = judged([1.0, of(tested)], step, Some(first.middle()), random);
            rounds += took;
            match judgement.is_changed {
                Some(true) | None => bad = tested,
                Some(false) => good = tested,
            }
        }
        (Some(bad), rounds)
    }

    #[test]
    fn a_change_of_3_percent_among_16_commits_is_found_and_none_where_there_is_none() {
        check_bisections(20);
    }

    /// In the slow tier.
    #[test]
    fn in_19_of_20_bisections_the_answer_is_right() {
        check_bisections(200);
    }

    fn check_bisections(number: usize) {
        let mut random = fastrand::Rng::with_seed(34);
        for change in [0.03, -0.03] {
            let (mut right, mut rounds) = (0, 0);
            for _ in 0..number {
                let brings = random.usize(1..=COMMITS);
                let (found, took) = found(change, brings, &mut random);
                right += usize::from(found == Some(brings));
                rounds += took;
            }
            println!("{change}: {right} of {number} right, {rounds} rounds");
            assert!(right * 20 >= number * 19, "{change}: {right}");
        }
        let none = (0..number).filter(|_| found(0.0, 1, &mut random).0.is_none());
        let none = none.count();
        println!("{none} of {number} without a change");
        assert!(none * 20 >= number * 19, "{none}");
    }

    #[test]
    fn numbers_without_noise_are_judged_at_the_first_look() {
        let first = Judgement::of(&[0.0; 10], &[1.0; 10], 0, None).unwrap();
        assert_eq!(first.is_changed, Some(true));
        let of = |other: f64| {
            let judgement = Judgement::of(&[0.0; 10], &[other; 10], 3, Some(first.middle()));
            judgement.unwrap().is_changed
        };
        assert_eq!(
            [0.0, 0.4, 0.6, 1.0].map(of),
            [Some(false), Some(false), Some(true), Some(true)]
        );
        let equal = Judgement::of(&[2.0; 10], &[2.0; 10], 0, None).unwrap();
        assert_eq!(equal.is_changed, Some(false));
    }

    #[test]
    fn all_steps_have_no_more_than_all_false_alarms() {
        let all: f64 = (0..10_000).map(share_of).sum();
        assert!(all < 1.0 && all > 0.99, "{all}");
    }
}
