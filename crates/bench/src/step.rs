//! Comparisons of two sides of a run, asked together and answered within rounds: what drifts over the hours is the same for both sides.

use std::collections::BTreeMap;

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Metric, Sample};
use nearfar_statistics::compare::{Compared, Question, Verdict, compare_shares, sequential};
use serde::{Deserialize, Serialize};

/// Two sides: B against A.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step<S = Cell> {
    /// What they are compared by; empty where the experiment compares by one metric.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metric: String,
    /// The factor in which they differ; empty where the sides say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub factor: String,
    pub a: S,
    pub b: S,
    pub compared: Known<Compared>,
}

impl<S> Step<S> {
    /// Without an answer.
    pub(crate) fn new(a: S, b: S) -> Self {
        Self {
            metric: String::new(),
            factor: String::new(),
            a,
            b,
            compared: Known::no("no round has a sample of both cells"),
        }
    }

    pub fn verdict(&self) -> Option<Verdict> {
        self.compared.get().map(|compared| compared.verdict)
    }

    /// Whether this is the verdict.
    pub fn is(&self, verdict: Verdict) -> bool {
        self.verdict() == Some(verdict)
    }
}

/// Answers steps, all of which together have a chance of any false alarm of 5 % (Holm), each with its share of it. Changes up to the
/// margin, a share, are equivalent.
pub(crate) fn answer<'s, S: 's>(
    steps: impl IntoIterator<Item = &'s mut Step<S>>,
    margin: f64,
    question: impl Fn(&Step<S>) -> (Question, f64),
) {
    let mut steps: Vec<&mut Step<S>> = steps.into_iter().collect();
    let questions: Vec<(Question, f64)> = steps.iter().map(|step| question(step)).collect();
    let shares = questions.iter().map(|(question, share)| (question, *share));
    for (step, answer) in steps.iter_mut().zip(compare_shares(shares, margin)) {
        if let Some(compared) = answer {
            step.compared = Known::Yes(compared);
        }
    }
}

/// Steps between cells of a run that differ in one of these factors only: from its first level to each other one.
pub(crate) fn by_factor<'f>(
    detail: &Detail,
    factors: impl IntoIterator<Item = &'f str>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for name in factors {
        let declared = detail.factors.iter().find(|it| it.name == name);
        let Some((first, others)) = declared.and_then(|it| it.levels.split_first()) else {
            continue;
        };
        for level in others {
            let cells = detail.plan.iter();
            for b in cells.filter(|it| it.level(name) == Some(level)) {
                let a = b.clone().with(name, first.clone());
                if detail.plan.contains(&a) {
                    let factor = name.to_owned();
                    steps.push(Step {
                        factor,
                        ..Step::new(a, b.clone())
                    });
                }
            }
        }
    }
    steps
}

/// The metrics that cells of a run are compared by, with their samples.
pub(crate) struct Measured<'a> {
    metrics: Vec<(&'a Metric, Rounds<'a>)>,
    is_until_clear: bool,
}

impl<'a> Measured<'a> {
    /// Those of the names that the run has.
    pub(crate) fn of(detail: &'a Detail, samples: &'a [Sample], names: &[&str]) -> Self {
        let metrics = names.iter().filter_map(|name| {
            let metric = detail.metrics.iter().find(|it| it.name == *name)?;
            Some((metric, Rounds::of(samples, name)))
        });
        Self {
            metrics: metrics.collect(),
            is_until_clear: detail.is_until_clear(),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.metrics.iter().map(|(metric, _)| metric.name.as_str())
    }

    /// [`answer`], each step by the metric that it names.
    pub(crate) fn answer<'s>(&self, steps: impl IntoIterator<Item = &'s mut Step>, margin: f64) {
        answer(steps, margin, |step| {
            let mut metrics = self.metrics.iter();
            let found = metrics.find(|(metric, _)| metric.name == step.metric);
            let none = BTreeMap::new();
            let of = |cell| found.map_or(&none, |(_, rounds)| rounds.of_cell(cell));
            let better = found.map(|(metric, _)| metric.better);
            let question = Question::paired(of(&step.a), of(&step.b), better);
            (question, self.share(step))
        });
    }

    /// Whether further samples of the second side are not needed, as one of so many steps that are answered.
    pub(crate) fn is_clear(&self, step: &Step, steps: usize) -> bool {
        let compared = step.compared.get();
        compared.is_some_and(|it| sequential::is_clear(it, self.share(step), steps))
    }

    /// The share of the false alarms that a step may take.
    fn share(&self, step: &Step) -> f64 {
        let mut metrics = self.metrics.iter();
        let rounds = metrics.find(|(metric, _)| metric.name == step.metric);
        let rounds = rounds.map(|(_, rounds)| rounds.of_cell(&step.b));
        let last = rounds.and_then(|it| it.keys().last());
        match self.is_until_clear {
            true => sequential::share(last.copied().unwrap_or(0)),
            false => 1.0,
        }
    }
}

/// The samples of one metric by cell and round.
pub(crate) struct Rounds<'a>(BTreeMap<&'a Cell, BTreeMap<u32, f64>>);

impl<'a> Rounds<'a> {
    /// The samples that did not fail and have the metric.
    pub(crate) fn of(samples: &'a [Sample], metric: &str) -> Self {
        let mut rounds: BTreeMap<&Cell, BTreeMap<u32, f64>> = BTreeMap::new();
        for sample in samples.iter().filter(|it| it.failed.is_none()) {
            if let Some(value) = sample.values.get(metric) {
                let of_cell = rounds.entry(&sample.cell).or_default();
                of_cell.insert(sample.round, value.number());
            }
        }
        Self(rounds)
    }

    /// Empty for a cell without a sample.
    pub(crate) fn of_cell(&self, cell: &Cell) -> &BTreeMap<u32, f64> {
        static NONE: BTreeMap<u32, f64> = BTreeMap::new();
        self.0.get(cell).unwrap_or(&NONE)
    }
}
