//! Which policy is better in which scenario. Each step compares two cells within rounds: what drifts over the hours is the same for
//! both. Four questions are asked, each with a chance of any false alarm of 5 % among its steps (Holm):
//!
//! ```text
//! orders      stock ─► limit ─► limit_topology      in each scenario: is the published order there?
//! others      each of the three ─► another policy   in each scenario: does it beat all three?
//! distances   near ─► far                           of each policy and depth: what does far cost?
//! alone       stock ─► another policy               one thread, tags to spare: is anything worse?
//! ```

use std::collections::BTreeMap;

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Sample};
use nearfar_statistics::compare::{
    Better, Compared, DEFAULT_MARGIN, Design, Question, Verdict, compare,
};
use serde::{Deserialize, Serialize};

use super::OPERATIONS;
use super::scenario::{DISTANCE, POLICY, Scenario, policies, scenarios};

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
    /// Every step is better.
    Holds,
    /// A step is better, none is worse.
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
    let rounds = Rounds::of(samples);
    let (alone, with_others): (Vec<_>, Vec<_>) = scenarios.iter().partition(|it| it.is_alone());
    let asked = Asked {
        detail,
        rounds: &rounds,
    };
    Findings {
        orders: orders(&asked, &with_others),
        others: others(&asked, &with_others, &policies),
        distances: distances(&asked, &with_others, &policies),
        alone: alone_steps(&asked, &alone, &policies),
        scenarios,
    }
}

/// Operations per second by cell and round.
struct Rounds<'a>(BTreeMap<&'a Cell, BTreeMap<u32, f64>>);

impl<'a> Rounds<'a> {
    fn of(samples: &'a [Sample]) -> Self {
        let mut rounds: BTreeMap<&Cell, BTreeMap<u32, f64>> = BTreeMap::new();
        for sample in samples.iter().filter(|it| it.failed.is_none()) {
            if let Some(value) = sample.values.get(OPERATIONS) {
                let of_cell = rounds.entry(&sample.cell).or_default();
                of_cell.insert(sample.round, value.number());
            }
        }
        Self(rounds)
    }

    /// The rounds that both cells have.
    fn question(&self, a: &Cell, b: &Cell) -> Question {
        let both = self.0.get(a).zip(self.0.get(b));
        let pairs = both
            .into_iter()
            .flat_map(|(a, b)| a.iter().filter_map(|(round, a)| Some((*a, *b.get(round)?))));
        let (a, b) = pairs.unzip();
        Question {
            a: vec![a],
            b: vec![b],
            design: Design::Paired,
            better: Some(Better::Higher),
        }
    }
}

/// What questions are asked of.
struct Asked<'a> {
    detail: &'a Detail,
    rounds: &'a Rounds<'a>,
}

impl Asked<'_> {
    fn has(&self, cell: &Cell) -> bool {
        self.detail.plan.contains(cell)
    }

    /// Answers all steps whose cells the run has, corrected for their number; keeps groups together.
    fn answer<K>(&self, groups: Vec<(K, Vec<(Cell, Cell)>)>) -> Vec<(K, Vec<Step>)> {
        let all = groups.iter().flat_map(|(_, pairs)| pairs);
        let questions: Vec<Question> = all.map(|(a, b)| self.rounds.question(a, b)).collect();
        let mut answers = compare(&questions, DEFAULT_MARGIN).into_iter();
        let mut step = |(a, b)| {
            let compared = answers.next().flatten();
            let compared = compared.map_or_else(
                || Known::no("no round has a sample of both cells"),
                Known::Yes,
            );
            Step { a, b, compared }
        };
        let mut steps = |pairs: Vec<(Cell, Cell)>| pairs.into_iter().map(&mut step).collect();
        let groups = groups.into_iter();
        groups.map(|(key, pairs)| (key, steps(pairs))).collect()
    }
}

fn orders(asked: &Asked<'_>, scenarios: &[&Scenario]) -> Vec<Order> {
    let groups = scenarios.iter().filter_map(|scenario| {
        let there = PUBLISHED_ORDER.map(|policy| scenario.cell(policy));
        let there: Vec<Cell> = there.into_iter().filter(|it| asked.has(it)).collect();
        let pairs = there.windows(2).map(|it| (it[0].clone(), it[1].clone()));
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
        () if steps.iter().all(|step| step.is(Verdict::Better)) => OrderVerdict::Holds,
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
            let pairs: Vec<_> = published.map(|it| (it, other.clone())).collect();
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
                pairs.push((near, far));
            }
        }
    }
    of_one_group(asked, pairs)
}

fn alone_steps(asked: &Asked<'_>, alone: &[&Scenario], policies: &[String]) -> Vec<Step> {
    let mut pairs = Vec::new();
    for scenario in alone {
        let stock = scenario.cell(PUBLISHED_ORDER[0]);
        let others = policies.iter().map(|policy| scenario.cell(policy));
        let others = others.filter(|it| *it != stock && asked.has(it) && asked.has(&stock));
        pairs.extend(others.map(|other| (stock.clone(), other)));
    }
    of_one_group(asked, pairs)
}

fn of_one_group(asked: &Asked<'_>, pairs: Vec<(Cell, Cell)>) -> Vec<Step> {
    let answers = asked.answer(vec![((), pairs)]);
    answers.into_iter().flat_map(|(_, steps)| steps).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use nearfar_runs::{Metric, Values};
    use serde_json::{Value, json};

    use super::*;
    use crate::tags::DEPTH;

    pub(in crate::tags) fn detail(plan: Vec<Cell>) -> Detail {
        Detail {
            parameters: json!({"tags": 255}),
            factors: nearfar_runs::Factor::of_cells(&plan),
            plan,
            metrics: vec![Metric::real(OPERATIONS, "1/s", Better::Higher).primary()],
            seed: 1,
            warnings: Vec::new(),
            kernel_version: String::new(),
            kernel_command_line: String::new(),
            targets: Vec::new(),
        }
    }

    pub(in crate::tags) fn cell(policy: &str, distance: &str, depth: i64) -> Cell {
        let cell = Cell::new().with(POLICY, policy).with(DISTANCE, distance);
        cell.with(DEPTH, depth)
    }

    /// A run in which each cell has such a median; samples of a round share a drift, and have noise of 2 % of their own.
    pub(in crate::tags) fn run(cells: &[(Cell, f64)], rounds: u32) -> (Detail, Vec<Sample>) {
        let mut random = fastrand::Rng::with_seed(7);
        let mut samples = Vec::new();
        for round in 1..=rounds {
            let drift = 1.0 + 0.3 * random.f64();
            for (cell, median) in cells {
                let noise = 1.0 + 0.02 * (random.f64() - 0.5);
                let value = median * drift * noise;
                let values: Values = [(OPERATIONS.to_owned(), value.into())].into();
                samples.push(Sample {
                    number: samples.len() as u64 + 1,
                    round,
                    cell: cell.clone(),
                    started_at_s: 0.0,
                    took_s: 1.0,
                    values,
                    failed: None,
                    warnings: Vec::new(),
                    detail: Value::Null,
                });
            }
        }
        let plan = cells.iter().map(|(cell, _)| cell.clone()).collect();
        (detail(plan), samples)
    }

    fn of(cells: &[(Cell, f64)]) -> Findings {
        let (detail, samples) = run(cells, 12);
        findings(&detail, &samples)
    }

    fn three(distance: &str, depth: i64, medians: [f64; 3]) -> Vec<(Cell, f64)> {
        let cells = PUBLISHED_ORDER.map(|policy| cell(policy, distance, depth));
        cells.into_iter().zip(medians).collect()
    }

    #[test]
    fn planted_orders_are_found_in_spite_of_drift() {
        let planted = [
            ("near", 248, [1000.0, 1100.0, 1200.0], OrderVerdict::Holds),
            (
                "near",
                512,
                [900.0, 1000.0, 1000.0],
                OrderVerdict::HoldsInPart,
            ),
            (
                "far",
                248,
                [600.0, 800.0, 700.0],
                OrderVerdict::Contradicted,
            ),
            (
                "far",
                512,
                [400.0, 400.0, 400.0],
                OrderVerdict::NotSignificant,
            ),
        ];
        let cells = planted.map(|(distance, depth, medians, _)| three(distance, depth, medians));
        let found = of(&cells.concat());
        let verdicts = found.orders.iter().map(|order| order.verdict);
        let expected = planted.map(|(.., verdict)| verdict);
        assert_eq!(verdicts.collect::<Vec<_>>(), expected);
        let names: Vec<_> = found.orders.iter().map(|it| it.scenario.as_str()).collect();
        assert_eq!(names, ["near-low", "near-high", "far-low", "far-high"]);
    }

    #[test]
    fn a_policy_beats_all_three_only_if_it_is_better_than_each() {
        let mut cells = three("far", 512, [400.0, 600.0, 700.0]);
        cells.push((cell("auto", "far", 512), 900.0));
        cells.push((cell("coarse_llc", "far", 512), 700.0));
        cells.push((cell("bitmap", "far", 512), 650.0));
        let others = of(&cells).others;
        let found: Vec<_> = others
            .iter()
            .map(|it| (it.policy.as_str(), it.beats_all))
            .collect();
        assert_eq!(
            found,
            [("auto", true), ("coarse_llc", false), ("bitmap", false)]
        );
        let verdicts = |place: usize| others[place].steps.iter().map(Step::verdict);
        assert_eq!(verdicts(2).next_back(), Some(Some(Verdict::Worse)));
        assert_eq!(verdicts(1).next(), Some(Some(Verdict::Better)));
    }

    #[test]
    fn without_one_of_the_three_nothing_beats_all_three() {
        let cells = [
            (cell("stock", "far", 512), 400.0),
            (cell("limit", "far", 512), 500.0),
            (cell("auto", "far", 512), 900.0),
        ];
        let found = of(&cells);
        assert_eq!((found.orders.len(), found.orders[0].steps.len()), (1, 1));
        assert!(!found.others[0].beats_all);
    }

    #[test]
    fn far_is_compared_with_near_and_alone_with_stock() {
        let cells = [
            (cell("stock", "near", 512), 1000.0),
            (cell("stock", "far", 512), 500.0),
            (cell("auto", "far", 512), 500.0),
            (cell("stock", "alone", 248), 1000.0),
            (cell("auto", "alone", 248), 900.0),
        ];
        let found = of(&cells);
        let [far] = found.distances.as_slice() else {
            panic!("{:?}", found.distances);
        };
        let ratio = far.compared.get().unwrap().shift.value;
        assert!((0.49..0.51).contains(&ratio), "{ratio}");
        let [auto] = found.alone.as_slice() else {
            panic!("{:?}", found.alone);
        };
        assert_eq!(auto.policies(), ("stock".to_owned(), "auto".to_owned()));
        assert_eq!(auto.verdict(), Some(Verdict::Worse));
    }

    #[test]
    fn three_rounds_have_no_verdict_and_a_cell_without_samples_a_reason() {
        let (detail, mut samples) = run(&three("far", 512, [400.0, 600.0, 700.0]), 3);
        let found = findings(&detail, &samples);
        assert_eq!(found.orders[0].verdict, OrderVerdict::Unknown);
        samples.retain(|it| it.cell.text(POLICY) != "limit");
        let found = findings(&detail, &samples);
        let steps = &found.orders[0].steps;
        assert!(steps.iter().all(|step| step.compared.get().is_none()));
        assert!(findings(&detail, &[]).distances.is_empty());
    }
}
