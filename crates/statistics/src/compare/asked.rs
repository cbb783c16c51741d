//! One question with all that does not depend on the others, and its answer among them.

use super::null::Nulls;
use super::ranks::Ranked;
use super::runs::{Between, ranked_runs};
use super::{
    Better, Compared, Design, Estimate, FALSE_ALARMS, Question, Scale, Side, Verdict, dependence,
    means, needed,
};
use crate::{CONFIDENCE, Interval, Summary};

pub(super) struct Asked<'a> {
    question: &'a Question,
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
    pub fn of(question: &'a Question, margin: f64, nulls: &mut Nulls) -> Option<Self> {
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
                (
                    Ranked::independent(a, b),
                    dependence::inflation(&series, &dependence::OF_RUNS),
                )
            }
            Design::Paired => {
                let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
                (
                    Ranked::paired(a, b),
                    dependence::inflation(&[&differences], &dependence::OF_PAIRS),
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
                let interval = ranked.interval(CONFIDENCE, 1.0, nulls);
                (outcome.two_sided(), outcome.least_two_sided(), interval)
            }
            None => {
                let interval = between.as_ref().map(|it| it.interval(CONFIDENCE));
                let p = between.as_ref().map_or(0.0, Between::two_sided);
                (p, 0.0, interval)
            }
        };
        let confidence = ranked.interval(CONFIDENCE, inflation, nulls);
        let mean = means::change(
            (&values[0], &values[1]),
            question.design,
            scale,
            (inflation, of_means.as_ref()),
            CONFIDENCE,
        );
        Some(Self {
            question,
            mean,
            p: outcome.two_sided().max(of_runs.0),
            least_p: outcome.least_two_sided().max(of_runs.1),
            is_lower: outcome.lower() < outcome.upper(),
            shift: Estimate {
                value: ranked.estimate(),
                confidence: confidence.map(|it| of_runs.2.map_or(it, |runs| it.hull(runs))),
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

    /// The p-value, where this question could be significant by itself.
    pub fn counted_p(&self) -> Option<f64> {
        (self.least_p <= FALSE_ALARMS).then_some(self.p)
    }

    /// The answer as one of `among` questions.
    pub fn answer(self, p_adjusted: Option<f64>, among: usize) -> Compared {
        let is_significant = p_adjusted.is_some_and(|p| p <= FALSE_ALARMS);
        let verdict = self.verdict(is_significant, among);
        let [a, b] = &self.values;
        let design = self.question.design;
        let undecided = matches!(verdict, Verdict::NotSignificant | Verdict::TooFewSamples);
        let (samples_needed, runs_needed) = match self.margins.filter(|_| undecided) {
            Some([_, margin]) => self.needed(margin, FALSE_ALARMS / among as f64),
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
            None => (
                needed::samples((a, b), design, margin, false_alarms, self.inflation),
                None,
            ),
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
            _ if !is_significant && self.least_p * among as f64 > FALSE_ALARMS => {
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
        let shift = |it| self.scale.to_shift(it);
        let value = self.mean.value;
        self.mean.confidence.map_or(
            Interval {
                low: shift(value),
                high: shift(value),
            },
            |it| Interval {
                low: shift(it.low),
                high: shift(it.high),
            },
        )
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
    let ranks = crate::rank::ranks(&pooled);
    let count = b.len() as f64;
    let wins = ranks[a.len()..].iter().sum::<f64>() - count * (count + 1.0) / 2.0;
    let larger = wins / (a.len() as f64 * count);
    match better {
        Some(Better::Lower) => 1.0 - larger,
        Some(Better::Higher) | None => larger,
    }
}
