//! Which policy is better in which scenario. Each step compares two cells within rounds: what drifts over the hours is the same for
//! both. Four questions are asked, each with a chance of any false alarm of 5 % among its steps (Holm):
//!
//! ```text
//! orders      stock ─► limit ─► limit_topology      in each scenario: is the published order there?
//! others      each of the three ─► another policy   in each scenario: does it beat all three?
//! distances   near ─► far                           of each policy and depth: what does far cost?
//! alone       stock ─► another policy               one thread, tags to spare: is anything worse?
//! ```
//!
//! All are judged by operations per second; alone also by CPU time per operation, since the device paces one worker.

use std::collections::BTreeMap;

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Metric, Sample};
use nearfar_statistics::compare::{Compared, DEFAULT_MARGIN, Question, Verdict, compare};
use serde::{Deserialize, Serialize};

use super::scenario::{DISTANCE, POLICY, Scenario, policies, scenarios};
use super::{CPU_PER_OPERATION, OPERATIONS};
use crate::rounds::Rounds;

/// The published policies, in the order in which they are claimed to become better.
pub const PUBLISHED_ORDER: [&str; 3] = ["stock", "limit", "limit_topology"];

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    pub scenarios: Vec<Scenario>,
    /// Whether the published order is there, a scenario each.
    pub orders: Vec<Order>,
    /// Whether the other policies beat the published three, a scenario and policy each.
    pub others: Vec<Other>,
    /// Near (A) and far (B), a policy and a scenario each.
    pub distances: Vec<Step>,
    /// Stock (A) and each other policy (B) where one thread has tags to spare.
    pub alone: Vec<Step>,
}

/// The published policies in one scenario.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Order {
    pub scenario: String,
    pub verdict: OrderVerdict,
    /// From each policy to the next.
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderVerdict {
    /// Every step is better, and there is a step from each policy to the next.
    Holds,
    /// A step is better, none is worse; not every step is better, or one is missing.
    HoldsInPart,
    /// A step is worse.
    Contradicted,
    /// No step is better or worse.
    NotSignificant,
    /// A step has no verdict, and none is worse.
    Unknown,
}

/// A policy that was not published, against those that were.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Other {
    pub scenario: String,
    pub policy: String,
    /// Whether it is better than each of them.
    pub beats_all: bool,
    pub steps: Vec<Step>,
}

/// Two cells: B against A.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// What they are compared by.
    pub metric: String,
    pub a: Cell,
    pub b: Cell,
    pub compared: Known<Compared>,
}

impl Step {
    pub fn verdict(&self) -> Option<Verdict> {
        self.compared.get().map(|compared| compared.verdict)
    }

    /// The policies of both cells.
    pub fn policies(&self) -> (String, String) {
        (self.a.text(POLICY), self.b.text(POLICY))
    }

    fn is(&self, verdict: Verdict) -> bool {
        self.verdict() == Some(verdict)
    }
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[Sample]) -> Findings {
    let scenarios = scenarios(detail);
    let policies = policies(detail);
    let (alone, with_others): (Vec<_>, Vec<_>) = scenarios.iter().partition(|it| it.is_alone());
    let asked = Asked::of(detail, samples);
    Findings {
        orders: orders(&asked, &with_others),
        others: others(&asked, &with_others, &policies),
        distances: distances(&asked, &with_others, &policies),
        alone: alone_steps(&asked, &alone, &policies),
        scenarios,
    }
}

/// What questions are asked of.
struct Asked<'a> {
    detail: &'a Detail,
    /// The metrics that cells are compared by, of those that the run has.
    metrics: Vec<(&'a Metric, Rounds<'a>)>,
}

/// Two cells that are compared by a metric.
struct Pair {
    metric: &'static str,
    a: Cell,
    b: Cell,
}

impl Pair {
    fn by_operations(a: Cell, b: Cell) -> Self {
        let metric = OPERATIONS;
        Self { metric, a, b }
    }
}

impl<'a> Asked<'a> {
    fn of(detail: &'a Detail, samples: &'a [Sample]) -> Self {
        let metrics = detail.metrics.iter();
        let metrics = metrics.filter(|it| [OPERATIONS, CPU_PER_OPERATION].contains(&&*it.name));
        let metrics = metrics.map(|it| (it, Rounds::of(samples, &it.name)));
        Self {
            detail,
            metrics: metrics.collect(),
        }
    }

    fn has(&self, cell: &Cell) -> bool {
        self.detail.plan.contains(cell)
    }

    fn metric(&self, name: &str) -> Option<&(&'a Metric, Rounds<'a>)> {
        self.metrics.iter().find(|(metric, _)| metric.name == name)
    }

    /// The rounds that both cells have.
    fn question(&self, pair: &Pair) -> Question {
        let metric = self.metric(pair.metric);
        let of = |cell| metric.and_then(|(_, rounds)| rounds.of_cell(cell));
        let none = BTreeMap::new();
        let [a, b] = [&pair.a, &pair.b].map(|cell| of(cell).unwrap_or(&none));
        Question::paired(a, b, metric.map(|(metric, _)| metric.better))
    }

    /// Answers all steps whose cells the run has, corrected for their number; keeps groups together.
    fn answer<K>(&self, groups: Vec<(K, Vec<Pair>)>) -> Vec<(K, Vec<Step>)> {
        let all = groups.iter().flat_map(|(_, pairs)| pairs);
        let questions: Vec<Question> = all.map(|pair| self.question(pair)).collect();
        let mut answers = compare(&questions, DEFAULT_MARGIN).into_iter();
        let mut step = |Pair { metric, a, b }| {
            let compared = answers.next().flatten();
            let compared = compared.map_or_else(
                || Known::no("no round has a sample of both cells"),
                Known::Yes,
            );
            Step {
                metric: metric.to_owned(),
                a,
                b,
                compared,
            }
        };
        let mut steps = |pairs: Vec<Pair>| pairs.into_iter().map(&mut step).collect();
        let groups = groups.into_iter();
        groups.map(|(key, pairs)| (key, steps(pairs))).collect()
    }
}

fn orders(asked: &Asked<'_>, scenarios: &[&Scenario]) -> Vec<Order> {
    let groups = scenarios.iter().filter_map(|scenario| {
        let there = PUBLISHED_ORDER.map(|policy| scenario.cell(policy));
        let there: Vec<Cell> = there.into_iter().filter(|it| asked.has(it)).collect();
        let pairs = there.windows(2);
        let pairs = pairs.map(|it| Pair::by_operations(it[0].clone(), it[1].clone()));
        let pairs: Vec<_> = pairs.collect();
        (!pairs.is_empty()).then(|| (scenario.name.clone(), pairs))
    });
    let answers = asked.answer(groups.collect());
    let order = |(scenario, steps): (String, Vec<Step>)| Order {
        scenario,
        verdict: order_verdict(&steps),
        steps,
    };
    answers.into_iter().map(order).collect()
}

fn order_verdict(steps: &[Step]) -> OrderVerdict {
    let any = |verdict| steps.iter().any(|step| step.is(verdict));
    let is_unknown = |step: &Step| matches!(step.verdict(), None | Some(Verdict::TooFewSamples));
    match () {
        () if any(Verdict::Worse) => OrderVerdict::Contradicted,
        () if steps.iter().any(is_unknown) => OrderVerdict::Unknown,
        () if steps.len() + 1 == PUBLISHED_ORDER.len()
            && steps.iter().all(|step| step.is(Verdict::Better)) =>
        {
            OrderVerdict::Holds
        }
        () if any(Verdict::Better) => OrderVerdict::HoldsInPart,
        () => OrderVerdict::NotSignificant,
    }
}

fn others(asked: &Asked<'_>, scenarios: &[&Scenario], policies: &[String]) -> Vec<Other> {
    let mut groups = Vec::new();
    for scenario in scenarios {
        for policy in policies.iter().filter(|it| !is_published(it)) {
            let other = scenario.cell(policy);
            let published = PUBLISHED_ORDER.map(|policy| scenario.cell(policy));
            let published = published.into_iter().filter(|it| asked.has(it));
            let pairs = published.map(|it| Pair::by_operations(it, other.clone()));
            let pairs: Vec<Pair> = pairs.collect();
            if asked.has(&other) && !pairs.is_empty() {
                groups.push(((scenario.name.clone(), policy.clone()), pairs));
            }
        }
    }
    let other = |((scenario, policy), steps): ((String, String), Vec<Step>)| Other {
        scenario,
        policy,
        beats_all: steps.len() == PUBLISHED_ORDER.len()
            && steps.iter().all(|step| step.is(Verdict::Better)),
        steps,
    };
    asked.answer(groups).into_iter().map(other).collect()
}

fn is_published(policy: &str) -> bool {
    PUBLISHED_ORDER.contains(&policy)
}

fn distances(asked: &Asked<'_>, scenarios: &[&Scenario], policies: &[String]) -> Vec<Step> {
    let mut pairs = Vec::new();
    for scenario in scenarios {
        for policy in policies {
            let far = scenario.cell(policy);
            let near = far.clone().with(DISTANCE, "near");
            if far.text(DISTANCE) == "far" && asked.has(&far) && asked.has(&near) {
                pairs.push(Pair::by_operations(near, far));
            }
        }
    }
    of_one_group(asked, pairs)
}

fn alone_steps(asked: &Asked<'_>, alone: &[&Scenario], policies: &[String]) -> Vec<Step> {
    let mut pairs = Vec::new();
    for metric in [OPERATIONS, CPU_PER_OPERATION] {
        if metric != OPERATIONS && asked.metric(metric).is_none() {
            continue;
        }
        for scenario in alone {
            let stock = scenario.cell(PUBLISHED_ORDER[0]);
            let others = policies.iter().map(|policy| scenario.cell(policy));
            let others = others.filter(|it| *it != stock && asked.has(it) && asked.has(&stock));
            pairs.extend(others.map(|b| Pair {
                metric,
                a: stock.clone(),
                b,
            }));
        }
    }
    of_one_group(asked, pairs)
}

fn of_one_group(asked: &Asked<'_>, pairs: Vec<Pair>) -> Vec<Step> {
    let answers = asked.answer(vec![((), pairs)]);
    answers.into_iter().flat_map(|(_, steps)| steps).collect()
}

#[cfg(test)]
mod tests;
