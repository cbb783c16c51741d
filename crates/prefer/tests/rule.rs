//! The rule against a node that shares its CPUs fairly: who leaves, how many, and who is confined again.

use std::collections::BTreeMap;
use std::time::Duration;

use nearfar_prefer::rule::{
    Decision, Look, NodeController, Place, Rule, RuleOptions, Sample, offer,
};
use proptest::prelude::*;

const LOOK: Duration = Duration::from_millis(100);

/// A node with some CPUs, tasks that each want a part of one, and others that stay whatever happens.
struct Node {
    cpus: u32,
    others: f64,
    /// By thread, what it wants, in CPUs.
    wants: BTreeMap<i32, f64>,
    controller: NodeController,
    now: Duration,
}

impl Node {
    fn new(cpus: u32, wants: &[f64]) -> Self {
        let mut controller = NodeController::new(RuleOptions::default());
        let wants: BTreeMap<i32, f64> = (1..).zip(wants.iter().copied()).collect();
        wants
            .keys()
            .for_each(|&tid| controller.put(tid, Place::Home));
        Self {
            cpus,
            others: 0.0,
            wants,
            controller,
            now: Duration::ZERO,
        }
    }

    fn out(&self) -> usize {
        self.wants
            .keys()
            .filter(|tid| self.controller.place(**tid) == Some(Place::Anywhere))
            .count()
    }

    /// What happened in a tenth of a second: those on the preferred node share it, those released find a CPU elsewhere.
    fn look(&mut self) -> Vec<(i32, Decision)> {
        let at_home = |tid: &i32| self.controller.place(*tid) == Some(Place::Home);
        let demand: f64 = self.others
            + self
                .wants
                .iter()
                .filter(|(tid, _)| at_home(tid))
                .map(|(_, wants)| wants)
                .sum::<f64>();
        let share = (f64::from(self.cpus) / demand).min(1.0);
        let sample = |(&tid, &wants): (&i32, &f64)| match at_home(&tid) {
            true => (
                tid,
                Sample {
                    ran: wants * share,
                    waited: wants * (1.0 - share),
                    away: false,
                },
            ),
            false => (
                tid,
                Sample {
                    ran: wants,
                    waited: 0.0,
                    away: true,
                },
            ),
        };
        let samples = self.wants.iter().map(sample).collect();
        let idle = (f64::from(self.cpus) - demand).max(0.0);
        let shares = (0..self.cpus).map(|cpu| (idle - f64::from(cpu)).clamp(0.0, 1.0));
        self.now += LOOK;
        self.controller.step(&Look {
            now: self.now,
            offer: Some(offer(shares)),
            samples,
        })
    }

    /// How many decisions there were.
    fn looks(&mut self, number: usize) -> usize {
        (0..number).map(|_| self.look().len()).sum()
    }
}

#[test]
fn exactly_the_surplus_leaves_and_stays_away() {
    let mut node = Node::new(4, &[1.0; 6]);
    node.looks(10);
    assert_eq!(node.out(), 2);
    assert_eq!(node.looks(1000), 0, "no flapping over constant inputs");
}

#[test]
fn a_hog_drives_one_out_and_its_end_brings_all_back() {
    let mut node = Node::new(4, &[1.0; 4]);
    assert_eq!(node.looks(100), 0, "a full node is no reason to leave it");
    node.others = 2.0;
    node.looks(20);
    assert_eq!(node.out(), 2);
    node.others = 0.0;
    node.looks(400);
    assert_eq!(node.out(), 0);
    assert_eq!(node.looks(1000), 0);
}

#[test]
fn who_waits_beside_an_idle_cpu_stays() {
    let mut controller = NodeController::new(RuleOptions::default());
    controller.put(1, Place::Home);
    for look in 1..100 {
        let samples = BTreeMap::from([(
            1,
            Sample {
                ran: 0.6,
                waited: 0.4,
                away: false,
            },
        )]);
        let look = Look {
            now: LOOK * look,
            offer: Some(0.6),
            samples,
        };
        assert_eq!(controller.step(&look), []);
    }
}

#[test]
fn the_one_that_waits_most_leaves_first() {
    let mut controller = NodeController::new(RuleOptions::default());
    (1..=3).for_each(|tid| controller.put(tid, Place::Home));
    let decisions: Vec<_> = (1..=2)
        .flat_map(|look| {
            let waited = [(1, 0.3), (2, 0.6), (3, 0.3)];
            let samples = waited.map(|(tid, waited)| {
                (
                    tid,
                    Sample {
                        ran: 1.0 - waited,
                        waited,
                        away: false,
                    },
                )
            });
            controller.step(&Look {
                now: LOOK * look,
                offer: Some(0.0),
                samples: samples.into(),
            })
        })
        .collect();
    assert_eq!(decisions, [(2, Decision::Widen)]);
}

#[test]
fn one_burst_is_no_reason_to_leave() {
    let mut rule = Rule::new(RuleOptions::default(), Place::Home);
    for look in 1..100 {
        let waiting = if look % 2 == 0 { 0.9 } else { 0.1 };
        assert_eq!(rule.step(LOOK * look, waiting, false), None);
    }
}

#[test]
fn who_has_to_leave_again_at_once_pauses_for_longer_each_time() {
    let mut rule = Rule::new(RuleOptions::default(), Place::Home);
    // A node that seems to have room only while the task is away.
    let mut returns = Vec::new();
    for look in 1..6000 {
        let released = rule.place() == Place::Anywhere;
        if rule.step(LOOK * look, if released { 0.0 } else { 0.9 }, released)
            == Some(Decision::Narrow)
        {
            returns.push(LOOK * look);
        }
    }
    let pauses: Vec<u64> = returns
        .windows(2)
        .map(|two| (two[1] - two[0]).as_secs())
        .collect();
    assert_eq!(pauses[..5], [4, 8, 16, 32, 32]);
}

proptest! {
    #[test]
    fn whatever_is_wanted_the_decisions_end_and_only_surplus_is_out(
        cpus in 1_u32..32,
        wants in prop::collection::vec(0.05_f64..1.0, 1..64),
        others in 0.0_f64..16.0,
    ) {
        let mut node = Node::new(cpus, &wants);
        node.others = others;
        node.looks(600);
        let settled = node.out();
        prop_assert_eq!(node.looks(600), 0, "constant inputs, {} out", settled);
        // None is out for which the node had a whole idle CPU all the time.
        let at_home: f64 =
            node.wants.iter().filter(|(tid, _)| node.controller.place(**tid) == Some(Place::Home)).map(|(_, wants)| wants).sum();
        let idle = f64::from(cpus) - at_home - others;
        prop_assert!(settled == 0 || idle < 2.0, "{settled} out with {idle} idle CPUs");
    }

    #[test]
    fn all_come_back_when_there_is_room(
        cpus in 1_u32..32,
        tasks in 1_usize..32,
        others in 0.0_f64..64.0,
        busy in 1_usize..200,
    ) {
        let tasks = tasks.min(cpus as usize);
        let mut node = Node::new(cpus, &vec![1.0; tasks]);
        node.others = others;
        node.looks(busy);
        node.others = 0.0;
        // The longest pause, and one after the other.
        node.looks(400 + 10 * tasks);
        prop_assert_eq!(node.out(), 0);
        prop_assert_eq!(node.looks(300), 0);
    }

    #[test]
    fn never_more_leave_at_once_than_are_too_many(cpus in 1_u32..16, tasks in 1_usize..64) {
        let mut node = Node::new(cpus, &vec![1.0; tasks]);
        node.looks(300);
        let surplus = tasks.saturating_sub(cpus as usize);
        prop_assert!(node.out() <= surplus, "{} of {tasks} out of {cpus}", node.out());
    }
}
