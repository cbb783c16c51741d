//! Is B better than A? The one comparison of samples: estimate, interval, test, correction, effect size and verdict.
//!
//! ```text
//! cell x metric: samples of A, samples of B, which direction is better
//!   │  all values above 0: logarithms, so that a shift is a ratio
//!   ├──► ranks        Mann-Whitney, or Wilcoxon's signed ranks where rounds pair them: p, Hodges-Lehmann estimate, interval
//!   ├──► ranks        the same against both margins: equivalent within x %
//!   ├──► dependence   samples that depend on their predecessors: wider, and said
//!   ├──► means        bootstrap interval of the means' change, for what ranks do not see
//!   ├──► needed       not significant: how many samples would tell
//!   └──► holm         all of them together: the chance of any false alarm is 5 %, that of any false equivalence too
//! ```
//!
//! Pure: knows nothing of what was measured. docs/compare.md has the methods' error rates, as simulated.

mod dependence;
mod holm;
mod means;
mod needed;
mod null;
mod order;
mod ranks;

use serde::{Deserialize, Serialize};

use crate::{CONFIDENCE, Interval, Summary};
use null::Nulls;
use ranks::Ranked;

/// The chance of any false alarm among all comparisons made at once, and that of any false equivalence.
pub const FALSE_ALARMS: f64 = 1.0 - CONFIDENCE;

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

/// The samples of one metric of one cell on two sides, in the order in which they were taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Question {
    /// Samples of the baseline.
    pub a: Vec<f64>,
    /// Samples of what is compared with it.
    pub b: Vec<f64>,
    /// How they belong together.
    pub design: Design,
    /// Which direction is better; `None` where nothing says so.
    pub better: Option<Better>,
}

/// What one side's samples are.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Side {
    /// How many there are.
    pub samples: usize,
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
    /// The change is significantly smaller than the margin, in either direction.
    Equivalent,
    /// Every sample of both sides is the same.
    Equal,
    /// Neither a difference nor its absence is significant.
    NotSignificant,
    /// Whatever the values are, there are too few for as many comparisons.
    TooFewSamples,
}

impl Verdict {
    /// Whether the sides differ by more than chance.
    pub fn is_significant(self) -> bool {
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
    /// B through A, or B less A: the Hodges-Lehmann estimate and the interval of the rank test.
    pub shift: Estimate,
    /// The same as a share of A: 0.05 is 5 % more. `None` for a difference from a baseline whose median is 0.
    pub change: Option<Estimate>,
    /// The mean of B through that of A, or less it, with a bootstrap interval; verdicts do not depend on it.
    pub mean: Estimate,
    /// The probability that a sample of B is better than one of A, ties counted half; where no direction is better, that it is
    /// larger. 0 to 1.
    pub superiority: f64,
    /// Two-sided p-value of the rank test.
    pub p: f64,
    /// The same corrected for all comparisons; `None` where this one could not have been significant by itself.
    pub p_adjusted: Option<f64>,
    /// Corrected p-value of equivalence within the margin; `None` where A's median is 0 on the scale of differences.
    pub p_equivalence: Option<f64>,
    /// What they say.
    pub verdict: Verdict,
    /// Samples of each side, or rounds, with which a change as large as the margin would be found in 9 of 10 experiments;
    /// `None` where the verdict is clear, or where it is beyond a million.
    pub samples_needed: Option<usize>,
    /// How many times as large the variance is as that of independent samples; above 1 where samples depend on their predecessors.
    pub variance_inflation: f64,
}

/// Answers all questions at once. `margin`: a change up to this share is equivalent, above 0 and below 1. A question without a
/// finite sample on either side has no answer.
pub fn compare(questions: &[Question], margin: f64) -> Vec<Option<Compared>> {
    let mut nulls = Nulls::default();
    let asked: Vec<Option<Asked<'_>>> = questions
        .iter()
        .map(|question| Asked::of(question, margin, &mut nulls))
        .collect();
    let of = |value: fn(&Asked<'_>) -> Option<f64>| -> Vec<Option<f64>> {
        asked
            .iter()
            .map(|asked| asked.as_ref().and_then(value))
            .collect()
    };
    // What cannot be significant by itself cannot be it among others, and does not count (Tarone 1990).
    let p = of(|asked| (asked.least_p <= FALSE_ALARMS).then_some(asked.p));
    let among = p.iter().flatten().count().max(1);
    let adjusted = holm::adjusted(&p);
    let equivalence = holm::adjusted(&of(|asked| asked.p_equivalence));
    asked
        .into_iter()
        .zip(adjusted.into_iter().zip(equivalence))
        .map(|(asked, adjusted)| asked.map(|asked| asked.answer(adjusted, among)))
        .collect()
}

/// The fewest samples of each side, or rounds, with which any of so many comparisons can be significant.
pub fn fewest_samples(design: Design, comparisons: usize) -> usize {
    needed::fewest(design, FALSE_ALARMS / comparisons.max(1) as f64)
}

/// A question with all that does not depend on the others.
struct Asked<'a> {
    question: &'a Question,
    values: [Vec<f64>; 2],
    scaled: [Vec<f64>; 2],
    sides: [Side; 2],
    scale: Scale,
    shift: Estimate,
    /// The margin as a shift, downwards and upwards; `None` where there is nothing it is a share of.
    margins: Option<[f64; 2]>,
    p: f64,
    least_p: f64,
    is_lower: bool,
    p_equivalence: Option<f64>,
    inflation: f64,
}

impl<'a> Asked<'a> {
    fn of(question: &'a Question, margin: f64, nulls: &mut Nulls) -> Option<Self> {
        let values = finite(question);
        let sides = [Side::of(&values[0])?, Side::of(&values[1])?];
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
        let scaled = values.clone().map(|side| match scale {
            Scale::Ratio => side.into_iter().map(f64::ln).collect(),
            Scale::Difference => side,
        });
        let [a, b] = &scaled;
        let (ranked, inflation) = match question.design {
            Design::Independent => (Ranked::independent(a, b), dependence::inflation(&[a, b])),
            Design::Paired => {
                let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
                (Ranked::paired(a, b), dependence::inflation(&[&differences]))
            }
        };
        let outcome = ranked.against(0.0, inflation, nulls);
        let p_equivalence = margins.map(|[low, high]| {
            let above_low = ranked.against(low, inflation, nulls).upper();
            above_low.max(ranked.against(high, inflation, nulls).lower())
        });
        let of = |shift: f64| match scale {
            Scale::Ratio => shift.exp(),
            Scale::Difference => shift,
        };
        let confidence = ranked.interval(CONFIDENCE, inflation, nulls);
        let shift = Estimate {
            value: of(ranked.estimate()),
            confidence: confidence.map(|it| Interval {
                low: of(it.low),
                high: of(it.high),
            }),
        };
        Some(Self {
            question,
            p: outcome.two_sided(),
            least_p: outcome.least_two_sided(),
            is_lower: outcome.lower() < outcome.upper(),
            values,
            scaled,
            sides,
            scale,
            shift,
            margins,
            p_equivalence,
            inflation,
        })
    }

    fn answer(self, adjusted: (Option<f64>, Option<f64>), among: usize) -> Compared {
        let (p_adjusted, p_equivalence) = adjusted;
        let verdict = self.verdict(p_adjusted, p_equivalence, among);
        let design = self.question.design;
        let [a, b] = &self.values;
        let (mean, confidence) = means::change((a, b), design, self.scale, CONFIDENCE);
        let undecided = matches!(verdict, Verdict::NotSignificant | Verdict::TooFewSamples);
        let margin = self.margins.filter(|_| undecided).map(|[_, high]| high);
        let samples_needed = margin.and_then(|margin| {
            let [a, b] = &self.scaled;
            let false_alarms = FALSE_ALARMS / among as f64;
            needed::samples((a, b), design, margin, false_alarms, self.inflation)
        });
        Compared {
            a: self.sides[0],
            b: self.sides[1],
            design,
            scale: self.scale,
            shift: self.shift,
            change: self.change(),
            mean: Estimate {
                value: mean,
                confidence,
            },
            superiority: superiority(a, b, self.question.better),
            p: self.p,
            p_adjusted,
            p_equivalence,
            verdict,
            samples_needed,
            variance_inflation: self.inflation,
        }
    }

    fn verdict(
        &self,
        p_adjusted: Option<f64>,
        p_equivalence: Option<f64>,
        among: usize,
    ) -> Verdict {
        let is_passed = |p: Option<f64>| p.is_some_and(|p| p <= FALSE_ALARMS);
        let first = self.values[0][0];
        if self.values.iter().flatten().all(|&value| value == first) {
            return Verdict::Equal;
        }
        if is_passed(p_adjusted) {
            return match self.question.better {
                None => Verdict::Different,
                Some(better) if self.is_lower == (better == Better::Lower) => Verdict::Better,
                Some(_) => Verdict::Worse,
            };
        }
        match () {
            () if is_passed(p_equivalence) => Verdict::Equivalent,
            () if self.least_p * among as f64 > FALSE_ALARMS => Verdict::TooFewSamples,
            () => Verdict::NotSignificant,
        }
    }

    /// The shift as a share of A.
    fn change(&self) -> Option<Estimate> {
        let base = self.sides[0].median.abs();
        let of = |shift: f64| match self.scale {
            Scale::Ratio => shift - 1.0,
            Scale::Difference => shift / base,
        };
        let has_base = self.scale == Scale::Ratio || base > 0.0;
        has_base.then(|| Estimate {
            value: of(self.shift.value),
            confidence: self.shift.confidence.map(|it| Interval {
                low: of(it.low),
                high: of(it.high),
            }),
        })
    }
}

impl Side {
    fn of(values: &[f64]) -> Option<Self> {
        let summary = Summary::of(values)?;
        Some(Self {
            samples: values.len(),
            median: summary.median,
            low: summary.low,
            high: summary.high,
        })
    }
}

/// The samples without those that are not finite; of pairs both go.
fn finite(question: &Question) -> [Vec<f64>; 2] {
    let (a, b) = (&question.a, &question.b);
    match question.design {
        Design::Independent => [a, b].map(|side| {
            let finite = side.iter().copied().filter(|value| value.is_finite());
            finite.collect()
        }),
        Design::Paired => {
            let pairs = a.iter().copied().zip(b.iter().copied());
            let (a, b) = pairs
                .filter(|(a, b)| a.is_finite() && b.is_finite())
                .unzip();
            [a, b]
        }
    }
}

/// The share of all pairs of samples in which B's is better, ties counted half.
fn superiority(a: &[f64], b: &[f64], better: Option<Better>) -> f64 {
    let pooled: Vec<f64> = a.iter().chain(b).copied().collect();
    let ranks = crate::rank::ranks(&pooled);
    let count = b.len() as f64;
    let wins = ranks[a.len()..].iter().sum::<f64>() - count * (count + 1.0) / 2.0;
    let larger = wins / (a.len() as f64 * count);
    match better {
        Some(Better::Lower) => 1.0 - larger,
        Some(Better::Higher) | None => larger,
    }
}
