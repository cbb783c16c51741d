//! Is B better than A? The one comparison of samples: estimate, interval, test, correction, effect size and verdict.
//!
//! ```text
//! cell x metric: samples of A, samples of B, which direction is better
//!   │  all values above 0: logarithms, so that a shift is a ratio
//!   ├──► ranks        Mann-Whitney, or Wilcoxon's signed ranks where rounds pair them: p, Hodges-Lehmann estimate, interval
//!   ├──► runs         several runs a side: wider by what differs from run to run; one run a side: Compared::within_runs
//!   ├──► dependence   samples that depend on their predecessors: wider, and said
//!   ├──► means        interval of the means' change, for what ranks do not see
//!   ├──► needed       not significant: how many samples would tell
//!   └──► holm         all of them together: the chance of any false alarm is 5 %
//! ```
//!
//! The verdict: an interval within the margin is equivalent unless the means contradict it, else a significant difference is better
//! or worse.
//!
//! Pure: knows nothing of what was measured. docs/compare.md has the methods' error rates, as simulated.
//!
//! # Dependence
//! Samples may depend on their predecessors: a machine that grows warm, a neighbour that stays busy for minutes. Such samples say less than as many independent ones. Their variance is inflated by (1 + r) / (1 - r), where r is the correlation of a
//! sample with the next one (an autoregressive process of order 1). Few samples estimate r poorly, and too small an estimate raises
//! false alarms: where sides are separate runs, r is taken one standard error larger. Where samples look independent nothing is
//! inflated, so that the exact distributions stay exact.
//!
//! # Samples that would tell
//! Asked is the number with which an experiment like this one finds a change as large as the margin in nine of ten cases, and shows in
//! as many that there is none when there is none. It depends on how the samples scatter and not on the difference that they happen to
//! have, which is mostly chance where it is not significant.
//!
//! Noether's formula (1987): n = (z + z')^2 / (6 (p - 1/2)^2) a side, where p is the probability that a sample of B is above one of A when
//! B is A shifted by the margin; of pairs (z + z')^2 / (3 (p - 1/2)^2), where p is that of a positive Walsh mean.

mod means;
mod ranks;
pub mod sequential;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::summary::{ranks, sorted};
use crate::{CONFIDENCE, Interval, Summary};
use means::{Between, ranked_runs};
use ranks::{Null, Nulls, Ranked, untied};

pub(crate) use means::student;

/// The chance of any false alarm among all comparisons made at once.
pub const FALSE_ALARMS: f64 = 1.0 - CONFIDENCE;

/// A change up to this share is equivalent unless something else is asked for: half of the 2 % that 64 samples find in noise of 2 %,
/// and more than what a boot changes of a memory latency.
pub const DEFAULT_MARGIN: f64 = 0.01;

/// Which direction of a metric is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Less is better: times, migrations.
    Lower,
    /// More is better: throughput.
    Higher,
}

/// How the samples of both sides belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// They do not.
    Independent,
    /// Each sample of B was taken in the same round as the one of A at its index.
    Paired,
}

/// In which terms a change is estimated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// B through A: every sample is above 0.
    Ratio,
    /// B less A, in the samples' unit.
    Difference,
}

impl Scale {
    /// The change where nothing changes.
    pub fn none(self) -> f64 {
        match self {
            Self::Ratio => 1.0,
            Self::Difference => 0.0,
        }
    }

    fn change(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Ratio => b / a,
            Self::Difference => b - a,
        }
    }

    /// A change, or a sample, as ranks are shifted: by the logarithm of a ratio.
    fn to_shift(self, value: f64) -> f64 {
        match self {
            Self::Ratio => value.ln(),
            Self::Difference => value,
        }
    }

    fn of_shift(self, shift: f64) -> f64 {
        match self {
            Self::Ratio => shift.exp(),
            Self::Difference => shift,
        }
    }
}

/// The samples of one metric of one cell on two sides: those of each run in the order in which they were taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Question {
    /// Runs of the baseline; one if the samples are paired.
    pub a: Vec<Vec<f64>>,
    /// Runs of what is compared with it; one if the samples are paired.
    pub b: Vec<Vec<f64>>,
    /// How they belong together.
    pub design: Design,
    /// Which direction is better; `None` where nothing says so.
    pub better: Option<Better>,
}

impl Question {
    /// The samples that both sides have of a round, in the order of the rounds.
    pub fn paired<Round: Ord>(
        a: &BTreeMap<Round, f64>,
        b: &BTreeMap<Round, f64>,
        better: Option<Better>,
    ) -> Self {
        let both = a.iter().filter_map(|(round, a)| Some((*a, *b.get(round)?)));
        let (a, b) = both.unzip();
        Self {
            a: vec![a],
            b: vec![b],
            design: Design::Paired,
            better,
        }
    }
}

/// What one side's samples are.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Side {
    /// How many there are.
    pub samples: usize,
    /// How many runs they are from.
    pub runs: usize,
    /// Their median.
    pub median: f64,
    /// Lower quartile.
    pub low: f64,
    /// Upper quartile.
    pub high: f64,
}

/// A change with its 95 % confidence interval, which speaks of this change alone.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The change.
    pub value: f64,
    /// Its interval; `None` where there are too few samples.
    pub confidence: Option<Interval>,
}

/// What the samples say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is significantly better.
    Better,
    /// B is significantly worse.
    Worse,
    /// B differs significantly, and nothing says which direction is better.
    Different,
    /// The interval of the change is within the margin; so is that of the means or, where the difference is
    /// not significant, some of it.
    Equivalent,
    /// Every sample of both sides is the same.
    Equal,
    /// Neither a difference nor its absence is significant.
    NotSignificant,
    /// Whatever the values are, there are too few for as many comparisons.
    TooFewSamples,
    /// Each side is one run, which cannot separate the change from what differs from run to run.
    OneRunASide,
}

impl Verdict {
    /// Whether it says that both sides differ, by more than the margin.
    pub fn is_difference(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Different)
    }
}

/// The answer to one question.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// The baseline's samples.
    pub a: Side,
    /// The other side's.
    pub b: Side,
    /// How they belong together.
    pub design: Design,
    /// The terms of `shift` and `mean`.
    pub scale: Scale,
    /// B through A, or B less A: the Hodges-Lehmann estimate and the interval of the rank test, with several runs widened to
    /// that of the runs' medians.
    pub shift: Estimate,
    /// The same as a share of A: 0.05 is 5 % more. `None` for a difference from a baseline whose median is 0.
    pub change: Option<Estimate>,
    /// The mean of B through that of A, or less it, with a bootstrap interval, widened as `shift`. It decides whether a shift
    /// within the margin is equivalent.
    pub mean: Estimate,
    /// The probability that a sample of B is better than one of A, ties counted half; where no direction is better, that it is
    /// larger. 0 to 1.
    pub superiority: f64,
    /// Two-sided p-value: of the rank test or, where there are several runs, of the test of their medians if that is larger.
    pub p: f64,
    /// The same corrected for all comparisons; `None` where this one could not have been significant by itself.
    pub p_adjusted: Option<f64>,
    /// Whether the sides differ by more than chance; also true of a difference that is smaller than the margin.
    pub is_significant: bool,
    /// What they say.
    pub verdict: Verdict,
    /// Samples of each side, or rounds, with which a change as large as the margin would be found in 9 of 10 experiments;
    /// `None` where the verdict is clear, where it is beyond a million, or where there are several runs.
    pub samples_needed: Option<usize>,
    /// The same as runs of each side; `None` where there is one run a side.
    pub runs_needed: Option<usize>,
    /// How many times as large the variance is as that of independent samples; above 1 where samples depend on their predecessors.
    pub variance_inflation: f64,
}

impl Compared {
    /// The same where each side is a run of its own: the intervals hold within these two runs, and nothing beyond them is shown. Equal
    /// samples stay equal.
    pub fn within_runs(self) -> Self {
        Self {
            verdict: match self.verdict {
                Verdict::Equal => Verdict::Equal,
                _ => Verdict::OneRunASide,
            },
            p_adjusted: None,
            is_significant: false,
            samples_needed: None,
            runs_needed: None,
            ..self
        }
    }

    /// How many independent samples those of both sides count as, where they follow their predecessors.
    pub fn effective_samples(&self) -> [f64; 2] {
        [self.a, self.b].map(|side| side.samples as f64 / self.variance_inflation)
    }

    /// The change of B's median as a share of A's, as the medians are printed; `None` where A's is 0.
    pub fn change_of_medians(&self) -> Option<f64> {
        let (a, b) = (self.a.median, self.b.median);
        (a != 0.0).then(|| (b - a) / a.abs())
    }

    /// The change of the mean as a share of A, as `change`.
    pub fn mean_change(&self) -> Option<f64> {
        let base = self.a.median.abs();
        match self.scale {
            Scale::Ratio => Some(self.mean.value - 1.0),
            Scale::Difference => (base > 0.0).then(|| self.mean.value / base),
        }
    }

    /// Whether the means differ by more than chance.
    pub fn has_other_means(&self) -> bool {
        let none = self.scale.none();
        let confidence = self.mean.confidence;
        confidence.is_some_and(|it| it.low > none || it.high < none)
    }
}

/// Answers all questions at once. `margin`: a change up to this share is equivalent, above 0 and below 1. A question without a
/// finite sample on either side has no answer.
pub fn compare(questions: &[Question], margin: f64) -> Vec<Option<Compared>> {
    compare_shares(questions.iter().map(|question| (question, 1.0)), margin)
}

/// The same, with the share of the false alarms that each question may take: 1 where the number of its samples was decided before they
/// were seen, else [`sequential::share`]. Its intervals leave as much less out.
pub fn compare_shares<'a>(
    questions: impl IntoIterator<Item = (&'a Question, f64)>,
    margin: f64,
) -> Vec<Option<Compared>> {
    let mut nulls = Nulls::default();
    let asked: Vec<Option<Asked<'_>>> = questions
        .into_iter()
        .map(|(question, share)| Asked::of(question, share, margin, &mut nulls))
        .collect();
    // What cannot be significant by itself cannot be it among others, and does not count (Tarone 1990).
    let of = |asked: &Option<Asked<'_>>| asked.as_ref().and_then(Asked::counted_p);
    let p: Vec<Option<f64>> = asked.iter().map(of).collect();
    let among = p.iter().flatten().count().max(1);
    asked
        .into_iter()
        .zip(holm_adjusted(&p))
        .map(|(asked, adjusted)| asked.map(|asked| asked.answer(adjusted, among)))
        .collect()
}

/// The fewest samples of each side, or rounds, with which any of so many comparisons can be significant.
pub fn fewest_samples(design: Design, comparisons: usize) -> usize {
    fewest_that_tell(design, FALSE_ALARMS / comparisons.max(1) as f64)
}

impl Side {
    /// `None` of no samples.
    fn of(values: &[f64], runs: usize) -> Option<Self> {
        let summary = Summary::of(values)?;
        Some(Self {
            samples: values.len(),
            runs,
            median: summary.median,
            low: summary.low,
            high: summary.high,
        })
    }
}

impl Estimate {
    /// By a function that keeps the order.
    fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self {
            value: of(self.value),
            confidence: self.confidence.map(|it| it.map(of)),
        }
    }
}

struct Asked<'a> {
    question: &'a Question,
    /// Of the false alarms.
    share: f64,
    values: [Vec<f64>; 2],
    scaled: [Vec<f64>; 2],
    sides: [Side; 2],
    scale: Scale,
    /// The shift on that scale, as logarithm of a ratio.
    shift: Estimate,
    mean: Estimate,
    /// The margin as such a shift, downwards and upwards; `None` where there is nothing it is a share of.
    margins: Option<[f64; 2]>,
    p: f64,
    least_p: f64,
    is_lower: bool,
    inflation: f64,
    between: Option<Between>,
}

impl<'a> Asked<'a> {
    /// `None` where a side has no finite sample.
    fn of(question: &'a Question, share: f64, margin: f64, nulls: &mut Nulls) -> Option<Self> {
        let confidence = 1.0 - FALSE_ALARMS * share;
        let runs = finite(question);
        let values = runs.each_ref().map(|side| side.concat());
        let sides = [
            Side::of(&values[0], runs[0].len())?,
            Side::of(&values[1], runs[1].len())?,
        ];
        let is_positive = values.iter().flatten().all(|&value| value > 0.0);
        let (scale, margins) = match is_positive {
            true => (
                Scale::Ratio,
                Some([(1.0 - margin).ln(), (1.0 + margin).ln()]),
            ),
            false => {
                let size = margin * sides[0].median.abs();
                (Scale::Difference, (size > 0.0).then_some([-size, size]))
            }
        };
        let of_means = Between::of(&centres(&runs, |run| scale.to_shift(means::mean(run))));
        let shifted = |run: Vec<f64>| run.into_iter().map(|it| scale.to_shift(it)).collect();
        let runs = runs.map(|side| side.into_iter().map(shifted).collect::<Vec<Vec<f64>>>());
        let scaled = runs.each_ref().map(|side: &Vec<Vec<f64>>| side.concat());
        let [a, b] = &scaled;
        let (ranked, inflation) = match question.design {
            Design::Independent => {
                let series: Vec<&[f64]> = runs.iter().flatten().map(Vec::as_slice).collect();
                (Ranked::independent(a, b), inflation_of(&series, &OF_RUNS))
            }
            Design::Paired => {
                let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
                (
                    Ranked::paired(a, b),
                    inflation_of(&[&differences], &OF_PAIRS),
                )
            }
        };
        let medians = centres(&runs, median);
        let between = Between::of(&medians);
        let outcome = ranked.against(0.0, inflation, nulls);
        // The p-value of the runs, the least that it could be, and their interval.
        let of_runs = match ranked_runs(&medians) {
            Some(ranked) => {
                let outcome = ranked.against(0.0, 1.0, nulls);
                let interval = ranked.interval(confidence, 1.0, nulls);
                (outcome.two_sided(), outcome.least_two_sided(), interval)
            }
            None => {
                let interval = between.as_ref().map(|it| it.interval(confidence));
                let p = between.as_ref().map_or(0.0, Between::two_sided);
                (p, 0.0, interval)
            }
        };
        let interval = ranked.interval(confidence, inflation, nulls);
        let mean = means::change(
            (&values[0], &values[1]),
            question.design,
            scale,
            (inflation, of_means.as_ref()),
            confidence,
        );
        Some(Self {
            question,
            share,
            mean,
            p: outcome.two_sided().max(of_runs.0),
            least_p: outcome.least_two_sided().max(of_runs.1),
            is_lower: outcome.lower() < outcome.upper(),
            shift: Estimate {
                value: ranked.estimate(),
                confidence: interval.map(|it| of_runs.2.map_or(it, |runs| it.hull(runs))),
            },
            values,
            scaled,
            sides,
            scale,
            margins,
            inflation,
            between,
        })
    }

    /// The p-value by its share, where this question could be significant by itself.
    fn counted_p(&self) -> Option<f64> {
        (self.least_p <= FALSE_ALARMS * self.share).then_some(self.p / self.share)
    }

    /// The answer as one of `among` questions.
    fn answer(self, p_adjusted: Option<f64>, among: usize) -> Compared {
        let is_significant = p_adjusted.is_some_and(|p| p <= FALSE_ALARMS);
        let verdict = self.verdict(is_significant, among);
        let [a, b] = &self.values;
        let design = self.question.design;
        let undecided = matches!(verdict, Verdict::NotSignificant | Verdict::TooFewSamples);
        let (samples_needed, runs_needed) = match self.margins.filter(|_| undecided) {
            Some([_, margin]) => self.needed(margin, FALSE_ALARMS * self.share / among as f64),
            None => (None, None),
        };
        let shift = self.shift.map(|it| self.scale.of_shift(it));
        Compared {
            a: self.sides[0],
            b: self.sides[1],
            design,
            scale: self.scale,
            shift,
            change: self.change(shift),
            mean: self.mean,
            superiority: superiority(a, b, self.question.better),
            p: self.p,
            p_adjusted,
            is_significant,
            verdict,
            samples_needed,
            runs_needed,
            variance_inflation: self.inflation,
        }
    }

    /// Samples or runs of each side that would tell.
    fn needed(&self, margin: f64, false_alarms: f64) -> (Option<usize>, Option<usize>) {
        let [a, b] = &self.scaled;
        let design = self.question.design;
        match &self.between {
            Some(between) => (None, between.needed(margin, false_alarms)),
            None => {
                let of = |share: f64| {
                    let false_alarms = false_alarms * share / self.share;
                    samples_that_tell((a, b), design, margin, false_alarms, self.inflation)
                };
                let mut share = self.share;
                let mut needed = of(share);
                // So many are known at a later look, which has a smaller share.
                while share < 1.0
                    && let Some(rounds) = needed.and_then(|it| u32::try_from(it).ok())
                    && sequential::share(rounds) < share
                {
                    share = sequential::share(rounds);
                    needed = of(share);
                }
                (needed, None)
            }
        }
    }

    fn verdict(&self, is_significant: bool, among: usize) -> Verdict {
        let first = self.values[0][0];
        if self.values.iter().flatten().all(|&value| value == first) {
            return Verdict::Equal;
        }
        // A shift within the margin says nothing of a quarter of the samples that became ten times as slow: the means have to agree.
        let means = self.means();
        let are_other_means = means.low > 0.0 || means.high < 0.0;
        let is_small = self.shift.confidence.is_some_and(|it| self.is_small(it));
        if is_small && (self.is_small(means) || !is_significant && !self.is_beyond(means)) {
            return Verdict::Equivalent;
        }
        let is_lower = match is_small && are_other_means {
            true => means.high < 0.0,
            false => self.is_lower,
        };
        match self.question.better {
            _ if !is_significant && self.least_p * among as f64 > FALSE_ALARMS * self.share => {
                Verdict::TooFewSamples
            }
            _ if !is_significant => Verdict::NotSignificant,
            None => Verdict::Different,
            Some(better) if is_lower == (better == Better::Lower) => Verdict::Better,
            Some(_) => Verdict::Worse,
        }
    }

    /// Whether all of an interval of shifts is within the margin.
    fn is_small(&self, interval: Interval) -> bool {
        self.margins.is_some_and(|margins| {
            // An end on the margin is not within it, also where both are rounded.
            let [low, high] = margins.map(|it| it * (1.0 - 1e-9));
            low < interval.low && interval.high < high
        })
    }

    /// Whether none of an interval of shifts is within the margin.
    fn is_beyond(&self, interval: Interval) -> bool {
        let margins = self.margins;
        margins.is_some_and(|[low, high]| interval.low > high || interval.high < low)
    }

    /// The interval of the means as shifts; where it is not known, only their change.
    fn means(&self) -> Interval {
        let mean = self.mean;
        let interval = mean.confidence.unwrap_or(Interval::around(mean.value, 0.0));
        interval.map(|it| self.scale.to_shift(it))
    }

    /// The shift as a share of A.
    fn change(&self, shift: Estimate) -> Option<Estimate> {
        let base = self.sides[0].median.abs();
        match self.scale {
            Scale::Ratio => Some(shift.map(|ratio| ratio - 1.0)),
            Scale::Difference => (base > 0.0).then(|| shift.map(|difference| difference / base)),
        }
    }
}

/// Of each run of both sides; no run is empty.
fn centres(sides: &[Vec<Vec<f64>>; 2], centre: impl Fn(&[f64]) -> f64) -> [Vec<f64>; 2] {
    sides
        .each_ref()
        .map(|runs| runs.iter().map(|run| centre(run)).collect())
}

fn median(run: &[f64]) -> f64 {
    Summary::of(run).map_or(f64::NAN, |it| it.median)
}

/// The runs of both sides without samples that are not finite and runs without samples; of pairs both go.
fn finite(question: &Question) -> [Vec<Vec<f64>>; 2] {
    let (a, b) = (&question.a, &question.b);
    match question.design {
        Design::Independent => [a, b].map(|side| {
            let finite = |run: &Vec<f64>| run.iter().copied().filter(|it| it.is_finite()).collect();
            let runs = side.iter().map(finite);
            runs.filter(|run: &Vec<f64>| !run.is_empty()).collect()
        }),
        Design::Paired => {
            let pairs = a.concat().into_iter().zip(b.concat());
            let (a, b) = pairs
                .filter(|(a, b)| a.is_finite() && b.is_finite())
                .unzip();
            [vec![a], vec![b]]
        }
    }
}

/// The share of all pairs of samples in which B's is better, ties counted half.
fn superiority(a: &[f64], b: &[f64], better: Option<Better>) -> f64 {
    let pooled: Vec<f64> = a.iter().chain(b).copied().collect();
    let ranks = ranks(&pooled);
    let count = b.len() as f64;
    let wins = ranks[a.len()..].iter().sum::<f64>() - count * (count + 1.0) / 2.0;
    let larger = wins / (a.len() as f64 * count);
    match better {
        Some(Better::Lower) => 1.0 - larger,
        Some(Better::Higher) | None => larger,
    }
}

/// Fewer pairs of neighbours than this say nothing of their correlation.
const MIN_NEIGHBOURS: usize = 12;
/// A correlation above this is not told from a trend.
const MAX_CORRELATION: f64 = 0.95;

/// How cautious an estimate is, in standard errors of the correlation.
struct Caution {
    /// By which it has to exceed that of independent samples.
    min_excess: f64,
    /// Which are added.
    added: f64,
}

/// Rounds have taken off what both sides share: a correlation that 5 % of independent samples exceed.
const OF_PAIRS: Caution = Caution {
    min_excess: 1.645,
    added: 0.0,
};
/// Whatever lasts longer than a sample differs between separate runs: a correlation that 30 % of independent samples exceed.
const OF_RUNS: Caution = Caution {
    min_excess: 0.5,
    added: 1.0,
};

/// How many times as large the variance of a mean is as that of as many independent samples; 1 where no dependence is found. Each
/// series is in the order in which it was measured.
fn inflation_of(series: &[&[f64]], caution: &Caution) -> f64 {
    let (mut products, mut squares, mut neighbours, mut bias) = (0.0, 0.0, 0, 0.0);
    for series in series.iter().filter(|series| series.len() > 2) {
        // Ranks, so that a single outlier does not decide.
        let ranks = ranks(series);
        let middle = (ranks.len() as f64 + 1.0) / 2.0;
        let around: Vec<f64> = ranks.into_iter().map(|rank| rank - middle).collect();
        let own: f64 = around.iter().map(|it| it * it).sum();
        products += around.windows(2).map(|two| two[0] * two[1]).sum::<f64>();
        squares += own;
        neighbours += around.len() - 1;
        // The mean was taken off the same samples, which makes neighbours look opposed.
        bias += own / around.len() as f64;
    }
    if neighbours < MIN_NEIGHBOURS || squares <= 0.0 {
        return 1.0;
    }
    let excess = (products + bias) / squares;
    let error = 1.0 / (neighbours as f64).sqrt();
    if excess < caution.min_excess * error {
        return 1.0;
    }
    // The estimate is too small by some four times itself through the number of samples (Kendall 1954).
    let correlation = excess * (1.0 + 3.0 / neighbours as f64) + caution.added * error;
    let correlation = correlation.min(MAX_CORRELATION);
    (1.0 + correlation) / (1.0 - correlation)
}

/// Adjusted p-values: those at most `a` are rejected when the chance of any false rejection among all is to be at most `a`, however the
/// questions depend on each other. A question without a p-value does not count.
fn holm_adjusted(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut asked: Vec<(usize, f64)> = values
        .iter()
        .enumerate()
        .filter_map(|(index, value)| value.map(|value| (index, value)))
        .collect();
    asked.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let mut adjusted = vec![None; values.len()];
    let mut largest = 0.0f64;
    for (step, (index, value)) in asked.iter().enumerate() {
        largest = largest.max(value * (asked.len() - step) as f64);
        adjusted[*index] = Some(largest.min(1.0));
    }
    adjusted
}

/// How often the change is to be found.
const POWER: f64 = 0.9;
/// A larger number of samples is not reported.
const MAX_NEEDED: f64 = 1e6;
/// Values from which pairs are made; of more some are left out.
const MAX_VALUES: usize = 300;

/// The number of samples of each side, or of rounds, that would tell a shift of this size at this rate of false alarms.
/// `None` where the samples cannot say, or where it is beyond a million.
fn samples_that_tell(
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
    (needed <= MAX_NEEDED)
        .then(|| (needed.ceil() as usize).max(fewest_that_tell(design, false_alarms)))
}

/// The fewest samples of each side, or rounds, with which any difference at all is significant.
fn fewest_that_tell(design: Design, false_alarms: f64) -> usize {
    let is_enough = |count: &usize| {
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
    let middle = Summary::of(values)?.median;
    let count = values.len() as f64;
    let wider = (values.len() > 1).then(|| (count / (count - 1.0)).sqrt())?;
    Some(values.iter().map(|it| (it - middle) * wider).collect())
}

/// Evenly chosen values where there are many.
fn thinned(values: Vec<f64>) -> Vec<f64> {
    let step = values.len().div_ceil(MAX_VALUES).max(1);
    sorted(values).into_iter().step_by(step).collect()
}

/// The probability that the difference of two residuals (or their mean, of pairs) is above `-shift`. Each pair counts smoothly,
/// so that a few samples do not jump from never to always.
fn probability_above(residuals: &[f64], design: Design, shift: f64) -> f64 {
    let normal = Normal::standard();
    let count = residuals.len() as f64;
    let quartiles = Summary::of(residuals);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_inflates_and_alternation_does_not() {
        let rising: Vec<f64> = (0..20).map(f64::from).collect();
        assert!(inflation_of(&[&rising], &OF_PAIRS) > 5.0);
        let alternating: Vec<f64> = (0..20).map(|it| f64::from(it % 2)).collect();
        assert_eq!(inflation_of(&[&alternating], &OF_RUNS), 1.0);
        assert_eq!(
            inflation_of(&[&[1.0, 2.0, 3.0], &[]], &OF_RUNS),
            1.0,
            "too few to say"
        );
        assert_eq!(inflation_of(&[&[1.0; 30]], &OF_RUNS), 1.0);
    }

    #[test]
    fn steps_are_those_of_a_worked_example() {
        // 0.01 x 4, 0.03 x 2 after 0.02 x 3, 0.03 is not below its predecessor's 0.06.
        let found = holm_adjusted(&[Some(0.02), Some(0.01), None, Some(0.04), Some(0.03)]);
        let expected = [0.06, 0.04, f64::NAN, 0.06, 0.06];
        for (found, expected) in found.into_iter().zip(expected) {
            match found {
                Some(found) => assert!((found - expected).abs() < 1e-12, "{found}"),
                None => assert!(expected.is_nan()),
            }
        }
    }
}
