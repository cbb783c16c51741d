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

mod asked;
mod dependence;
mod holm;
mod means;
mod needed;
mod null;
mod order;
mod ranks;
mod runs;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CONFIDENCE, Interval, Summary};
use asked::Asked;
use null::Nulls;
pub(crate) use runs::student;

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
    let mut nulls = Nulls::default();
    let asked: Vec<Option<Asked<'_>>> = questions
        .iter()
        .map(|question| Asked::of(question, margin, &mut nulls))
        .collect();
    // What cannot be significant by itself cannot be it among others, and does not count (Tarone 1990).
    let of = |asked: &Option<Asked<'_>>| asked.as_ref().and_then(Asked::counted_p);
    let p: Vec<Option<f64>> = asked.iter().map(of).collect();
    let among = p.iter().flatten().count().max(1);
    asked
        .into_iter()
        .zip(holm::adjusted(&p))
        .map(|(asked, adjusted)| asked.map(|asked| asked.answer(adjusted, among)))
        .collect()
}

/// The fewest samples of each side, or rounds, with which any of so many comparisons can be significant.
pub fn fewest_samples(design: Design, comparisons: usize) -> usize {
    needed::fewest(design, FALSE_ALARMS / comparisons.max(1) as f64)
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
            confidence: self.confidence.map(|it| Interval {
                low: of(it.low),
                high: of(it.high),
            }),
        }
    }
}
