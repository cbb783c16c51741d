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

use nearfar_runs::{Cell, Detail, Sample};
use nearfar_statistics::compare::{DEFAULT_MARGIN, Verdict};
use serde::{Deserialize, Serialize};

use super::{CPU_PER_OPERATION, DISTANCE, OPERATIONS, POLICY, Scenario, policies, scenarios};
use crate::step::{Measured, Step};

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

/// The policies of both cells.
pub fn policies_of(step: &Step) -> (String, String) {
    (step.a.text(POLICY), step.b.text(POLICY))
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[Sample]) -> Findings {
    let scenarios = scenarios(detail);
    let policies = policies(detail);
    let (alone, with_others): (Vec<_>, Vec<_>) = scenarios.iter().partition(|it| it.is_alone());
    let asked = Asked {
        detail,
        measured: Measured::of(detail, samples, &[OPERATIONS, CPU_PER_OPERATION]),
    };
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
    measured: Measured<'a>,
}

/// Two cells that are compared by a metric, not yet answered.
fn by(metric: &str, a: Cell, b: Cell) -> Step {
    Step {
        metric: metric.to_owned(),
        ..Step::new(a, b)
    }
}

impl Asked<'_> {
    fn has(&self, cell: &Cell) -> bool {
        self.detail.plan.contains(cell)
    }

    /// Answers all steps, corrected for their number.
    fn answer<'s>(&self, steps: impl IntoIterator<Item = &'s mut Step>) {
        self.measured.answer(steps, DEFAULT_MARGIN);
    }
}

fn orders(asked: &Asked<'_>, scenarios: &[&Scenario]) -> Vec<Order> {
    let orders = scenarios.iter().filter_map(|scenario| {
        let there = PUBLISHED_ORDER.map(|policy| scenario.cell(policy));
        let there: Vec<Cell> = there.into_iter().filter(|it| asked.has(it)).collect();
        let pairs = there.windows(2);
        let steps = pairs.map(|it| by(OPERATIONS, it[0].clone(), it[1].clone()));
        let steps: Vec<Step> = steps.collect();
        (!steps.is_empty()).then(|| Order {
            scenario: scenario.name.clone(),
            verdict: OrderVerdict::Unknown,
            steps,
        })
    });
    let mut orders: Vec<Order> = orders.collect();
    asked.answer(orders.iter_mut().flat_map(|it| &mut it.steps));
    for order in &mut orders {
        order.verdict = order_verdict(&order.steps);
    }
    orders
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
    let mut others = Vec::new();
    for scenario in scenarios {
        for policy in policies.iter().filter(|it| !is_published(it)) {
            let other = scenario.cell(policy);
            let published = PUBLISHED_ORDER.map(|policy| scenario.cell(policy));
            let published = published.into_iter().filter(|it| asked.has(it));
            let steps = published.map(|it| by(OPERATIONS, it, other.clone()));
            let steps: Vec<Step> = steps.collect();
            if asked.has(&other) && !steps.is_empty() {
                others.push(Other {
                    scenario: scenario.name.clone(),
                    policy: policy.clone(),
                    beats_all: false,
                    steps,
                });
            }
        }
    }
    asked.answer(others.iter_mut().flat_map(|it| &mut it.steps));
    for other in &mut others {
        let is_better = |step: &Step| step.is(Verdict::Better);
        other.beats_all =
            other.steps.len() == PUBLISHED_ORDER.len() && other.steps.iter().all(is_better);
    }
    others
}

fn is_published(policy: &str) -> bool {
    PUBLISHED_ORDER.contains(&policy)
}

fn distances(asked: &Asked<'_>, scenarios: &[&Scenario], policies: &[String]) -> Vec<Step> {
    let mut steps = Vec::new();
    for scenario in scenarios {
        for policy in policies {
            let far = scenario.cell(policy);
            let near = far.clone().with(DISTANCE, "near");
            if far.text(DISTANCE) == "far" && asked.has(&far) && asked.has(&near) {
                steps.push(by(OPERATIONS, near, far));
            }
        }
    }
    asked.answer(&mut steps);
    steps
}

fn alone_steps(asked: &Asked<'_>, alone: &[&Scenario], policies: &[String]) -> Vec<Step> {
    let mut steps = Vec::new();
    let further = asked.measured.names().filter(|it| *it != OPERATIONS);
    for metric in [OPERATIONS].into_iter().chain(further) {
        for scenario in alone {
            let stock = scenario.cell(PUBLISHED_ORDER[0]);
            let others = policies.iter().map(|policy| scenario.cell(policy));
            let others = others.filter(|it| *it != stock && asked.has(it) && asked.has(&stock));
            steps.extend(others.map(|b| by(metric, stock.clone(), b)));
        }
    }
    asked.answer(&mut steps);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::tests::{policy_cell as cell, run};

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
        let [operations, cpu] = found.alone.as_slice() else {
            panic!("{:?}", found.alone);
        };
        for (step, metric) in [(operations, OPERATIONS), (cpu, CPU_PER_OPERATION)] {
            assert_eq!(policies_of(step), ("stock".to_owned(), "auto".to_owned()));
            assert_eq!(
                (step.metric.as_str(), step.verdict()),
                (metric, Some(Verdict::Worse))
            );
        }
        assert!(cpu.compared.get().unwrap().shift.value > 1.05);
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
