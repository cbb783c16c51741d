//! How long a cache line takes from one CPU to another and back.
//!
//! ```text
//!  CPU 3   store 1 ───────────►  sees 1, stores 2            one round trip: two hand-overs of the line; each
//!  CPU 7   sees 2, stores 3  ◄───────────                     CPU spins until the other's number is there
//! ```
//!
//! How far two CPUs are apart is what they share: a core, a last-level cache, a node, or nothing of these. One pair
//! stands for each of them on each node, and one for each pair of nodes; or every pair of CPUs is measured. The line is
//! in memory of the first CPU's node.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nearfar_experiment::sampler::{self, Attempt, Turn};
use nearfar_experiment::{Recording, RunPlan};
use nearfar_loops::hand_over::{self, Trouble};
use nearfar_machine::{
    CpuId, CpuSet, Distance, Emulation, Machine, Nearness, Neighbourhood, NodeId,
};
use nearfar_proc::affinity;
use nearfar_runs::{Better, Cell, Metric};
use nearfar_statistics::Figures;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::conditions::{self, Ticks};
use crate::node_buffers::{Backing, Mapping};
use crate::options::{ProbeError, ProbeOptions};
use crate::sampling::{self, Amount, Measured, Samples};
use crate::warning::Warning;

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransferMatrix {
    /// One entry a pair of CPUs, by first CPU, then second; each pair once.
    pub pairs: Vec<TransferPair>,
    /// Pairs of CPUs that were not measured.
    pub skipped: Vec<SkippedTransfer>,
    /// Whether every pair of CPUs was to be measured, and not one for each nearness and pair of nodes.
    pub all_cpus: bool,
    /// How long the measurement took, in seconds.
    pub elapsed_s: f64,
    /// What was true of the measurement and makes it worth less.
    pub warnings: Vec<Warning>,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl TransferMatrix {
    /// The measurement between two CPUs, in either order.
    pub fn pair(&self, a: CpuId, b: CpuId) -> Option<&TransferPair> {
        self.pairs
            .iter()
            .find(|pair| (pair.first, pair.second) == (a.min(b), a.max(b)))
    }
}

/// Two CPUs that hand a line to each other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransferPair {
    /// The lower CPU; the line's memory is on its node.
    pub first: CpuId,
    /// The higher CPU.
    pub second: CpuId,
    pub first_node: Option<NodeId>,
    /// The node of the second.
    pub second_node: Option<NodeId>,
    pub nearness: Nearness,
    /// Nanoseconds from storing to seeing the answer: there and back.
    pub round_trip_ns: Figures,
    /// Round trips in one sample.
    pub round_trips: u64,
    /// The distance between their nodes, where the machine gives one.
    pub distance: Option<Distance>,
}

/// A pair of CPUs without a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SkippedTransfer {
    /// The lower CPU.
    pub first: CpuId,
    /// The higher CPU.
    pub second: CpuId,
    #[serde(alias = "because")]
    pub reason: String,
}

/// The metric of stored runs: nanoseconds of a round trip.
const METRIC: &str = "round_trip_ns";
/// Round trips of a trial: few, so that it fits into a moment in which both CPUs run.
const TRIAL_TRIPS: u64 = 200;
/// How long a trial may take.
const TRIAL_LIMIT: Duration = Duration::from_millis(20);
/// How often a pair is tried at most: on a busy host the CPUs of a guest run side by side now and then.
const MAX_TRIALS: u32 = 5;
/// A round trip that takes this long waited for the scheduler: the two did not run side by side.
const SIDE_BY_SIDE_NS: f64 = 50_000.0;
/// Fewest and most round trips in a sample.
const TRIPS: std::ops::RangeInclusive<u64> = 100..=20_000;
/// How long a sample takes at most, without the start of its thread: less than a scheduler's time slice.
const SAMPLE_TIME: Duration = Duration::from_millis(1);
/// After this time a sample is given up.
const SAMPLE_LIMIT: Duration = Duration::from_millis(10);

/// What the hand-overs need.
pub(crate) struct HandOvers<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a ProbeOptions,
    /// Where this process may run.
    pub(crate) allowed: &'a CpuSet,
    pub(crate) all_cpus: bool,
    pub(crate) deadline: Instant,
}

/// Lines to hand over, one on each node.
struct NodeLines {
    by_node: BTreeMap<Option<NodeId>, Mapping>,
}

/// Measures on the calling thread and one more, whose affinity it leaves changed.
pub(crate) fn measure_on(
    hand_overs: HandOvers<'_>,
) -> Result<Measured<TransferMatrix>, ProbeError> {
    let HandOvers {
        machine,
        options,
        allowed,
        all_cpus,
        deadline,
    } = hand_overs;
    let start = Instant::now();
    let usable = allowed.intersection(&machine.cpu_states.online);
    let pairs = choose(machine, &usable, all_cpus, options);
    if pairs.is_empty() {
        let reason = format!(
            "a line is handed over between two CPUs, and this process may use {usable} there"
        );
        return Err(ProbeError::NothingToMeasure { reason });
    }
    let both = |pair: &CpuPair| [pair.first, pair.second];
    let cpus: CpuSet = pairs.iter().flat_map(both).collect();
    let ticks = Ticks::now();
    let mut run = HandOverRun::new(hand_overs, pairs);
    let amount = Amount {
        items: run.pairs.len(),
        max_samples: options.max_samples,
        deadline,
        is_spread: options.is_spread,
    };
    let samples = sampling::sample(&amount, &options.cancel, &mut run)?;
    let pairs = run.summaries(&samples);
    let mut warnings: Vec<Warning> = conditions::governor(machine).into_iter().collect();
    warnings.extend(Ticks::now().warnings_since(&ticks, cpus.iter()));
    let times = pairs
        .iter()
        .map(|pair| pair.round_trip_ns.samples.as_slice());
    warnings.extend(samples.warnings(times));
    let recording = run.recording(&samples, &warnings);
    run.skipped
        .sort_by_key(|skipped| (skipped.first, skipped.second));
    let answer = TransferMatrix {
        pairs,
        skipped: run.skipped,
        all_cpus,
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings,
        emulation: machine.origin.emulation.clone(),
    };
    Ok(Measured {
        answer,
        recordings: vec![recording],
    })
}

/// The source of samples: round trips of a line between two CPUs.
struct HandOverRun<'a> {
    hand_overs: HandOvers<'a>,
    lines: NodeLines,
    pairs: Vec<CpuPair>,
    /// Round trips in a sample of each pair, found by its trial.
    trips: Vec<u64>,
    /// The shortest time of the pair's trials so far, in nanoseconds a round trip.
    best_trial_ns: f64,
    skipped: Vec<SkippedTransfer>,
}

impl<'a> HandOverRun<'a> {
    fn new(hand_overs: HandOvers<'a>, pairs: Vec<CpuPair>) -> Self {
        Self {
            hand_overs,
            lines: NodeLines {
                by_node: BTreeMap::new(),
            },
            trips: vec![0; pairs.len()],
            pairs,
            best_trial_ns: f64::INFINITY,
            skipped: Vec::new(),
        }
    }

    /// A sample of the warm-up: whether the two CPUs run side by side, and how many round trips fit into a sample.
    fn trial(&mut self, turn: Turn) -> Result<Attempt<f64>, ProbeError> {
        let item = turn.slot.item;
        if turn.attempt == 1 {
            self.best_trial_ns = f64::INFINITY;
            // All pairs of a large machine may take longer than the budget; one is always measured.
            if turn.left == Some(Duration::ZERO) && self.trips.iter().any(|&trips| trips > 0) {
                return Ok(self.exclude(item, "the time budget was spent".to_owned()));
            }
        }
        let time = match self.hand_over(item, TRIAL_TRIPS, TRIAL_LIMIT) {
            Ok(time) => time,
            Err(Trouble::TooSlow(trips)) => TRIAL_LIMIT.as_nanos() as f64 / (trips + 1) as f64,
            Err(Trouble::Cannot(reason)) => return Ok(self.exclude(item, reason)),
            Err(Trouble::Cancelled) => return Ok(Attempt::Lost),
        };
        self.best_trial_ns = self.best_trial_ns.min(time);
        if self.best_trial_ns < SIDE_BY_SIDE_NS {
            let trips = (SAMPLE_TIME.as_nanos() as f64 / self.best_trial_ns.max(1.0)) as u64;
            self.trips[item] = trips.clamp(*TRIPS.start(), *TRIPS.end());
            return Ok(Attempt::Value(self.best_trial_ns));
        }
        Ok(match turn.attempt {
            ..MAX_TRIALS => Attempt::Retry,
            _ => self.exclude(item, not_side_by_side(self.best_trial_ns)),
        })
    }

    fn hand_over(&mut self, item: usize, trips: u64, limit: Duration) -> Result<f64, Trouble> {
        let (machine, options) = (self.hand_overs.machine, self.hand_overs.options);
        let pair = self.pairs[item];
        let several = machine.online_nodes().count() > 1;
        let line = self
            .lines
            .on(machine.node_of(pair.first), pair.first, several)?;
        let cpus = (pair.first, pair.second);
        hand_over::round_trips(line, cpus, trips, limit, &options.cancel)
    }

    fn exclude(&mut self, item: usize, reason: String) -> Attempt<f64> {
        let CpuPair { first, second, .. } = self.pairs[item];
        self.skipped.push(SkippedTransfer {
            first,
            second,
            reason,
        });
        Attempt::Exclude(vec![item])
    }

    fn recording(&self, samples: &Samples<f64>, warnings: &[Warning]) -> Recording {
        let (options, all_cpus) = (self.hand_overs.options, self.hand_overs.all_cpus);
        let pairs = sampling::count(self.pairs.len(), "pair of CPUs", "pairs of CPUs");
        let cell = |pair: &CpuPair| {
            Cell::new()
                .with("first_cpu", pair.first.0)
                .with("second_cpu", pair.second.0)
        };
        let parameters = json!({
            "all_cpus": all_cpus,
            "max_samples": options.max_samples,
            "budget_s": options.budget.as_secs_f64(),
        });
        let plan = RunPlan::of_cells(parameters, self.pairs.iter().map(cell).collect());
        let metrics = vec![Metric::real(METRIC, "ns", Better::Lower).primary()];
        let recording = Recording::new(
            "transfer",
            format!("cache line transfer, {pairs}"),
            plan,
            metrics,
        );
        samples.recorded(recording, warnings, |item, &nanoseconds| {
            let nearness = self.pairs[item].nearness;
            let detail = json!({"nearness": nearness, "round_trips": self.trips[item]});
            ([(METRIC.to_owned(), nanoseconds.into())].into(), detail)
        })
    }

    fn summaries(&mut self, samples: &Samples<f64>) -> Vec<TransferPair> {
        let machine = self.hand_overs.machine;
        let mut pairs = Vec::new();
        for (item, figures) in samples.figures(|&ns| ns).into_iter().enumerate() {
            if samples.outcome.excluded.contains(&item) {
                continue;
            }
            let Some(round_trip_ns) = figures else {
                let reason =
                    "no sample ended in time: the two CPUs did not run side by side for long";
                self.exclude(item, reason.to_owned());
                continue;
            };
            let pair = self.pairs[item];
            let (first_node, second_node) =
                (machine.node_of(pair.first), machine.node_of(pair.second));
            pairs.push(TransferPair {
                first: pair.first,
                second: pair.second,
                first_node,
                second_node,
                nearness: pair.nearness,
                round_trip_ns,
                round_trips: self.trips[item],
                distance: first_node
                    .zip(second_node)
                    .and_then(|(first, second)| machine.distance(first, second)),
            });
        }
        pairs
    }
}

impl sampler::Source for HandOverRun<'_> {
    /// Nanoseconds a round trip.
    type Value = f64;
    type Error = ProbeError;

    fn take(&mut self, turn: Turn) -> Result<Attempt<f64>, ProbeError> {
        if turn.slot.is_warm_up() {
            return self.trial(turn);
        }
        let item = turn.slot.item;
        match self.hand_over(item, self.trips[item], SAMPLE_LIMIT) {
            Ok(time) => Ok(Attempt::Value(time)),
            // It waited for the scheduler, which says nothing of the pair, or was cancelled.
            Err(_) => Ok(Attempt::Lost),
        }
    }
}

fn not_side_by_side(nanoseconds: f64) -> String {
    format!(
        "the two CPUs do not run side by side: a round trip took {:.1} ms or more, as when one waits until the other is \
         taken off its processor (a guest with more CPUs than its host lends it)",
        nanoseconds / 1e6
    )
}

impl NodeLines {
    /// A line in memory of this node: bound there where several nodes are, or touched first by a CPU of it.
    fn on(
        &mut self,
        node: Option<NodeId>,
        cpu: CpuId,
        several: bool,
    ) -> Result<&AtomicU64, Trouble> {
        let page = match self.by_node.entry(node) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let bytes = rustix::param::page_size();
                let page = Mapping::new(bytes, Backing::Base);
                let mut page =
                    page.map_err(|error| Trouble::Cannot(format!("cannot map a page: {error}")))?;
                // Where a line's memory is matters less than who had it last: a refusal needs no mention.
                let _ = affinity::pin(cpu);
                let _ = node.filter(|_| several).map(|node| page.bind(node));
                page.touch(0..bytes);
                place.insert(page)
            }
        };
        Ok(page.first_word())
    }
}

/// Two CPUs, the lower first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct CpuPair {
    first: CpuId,
    second: CpuId,
    nearness: Nearness,
}

/// The pairs to measure among `usable` CPUs: all of them, or one for each nearness of each node and one for each pair of
/// nodes. With `from` and `to` one CPU is on a node of each.
fn choose(
    machine: &Machine,
    usable: &CpuSet,
    all_cpus: bool,
    options: &ProbeOptions,
) -> Vec<CpuPair> {
    let neighbourhood = Neighbourhood::of(machine);
    let cpus: Vec<CpuId> = usable.iter().collect();
    let wanted = |node: Option<NodeId>, nodes: &Option<nearfar_machine::NodeSet>| {
        nodes
            .as_ref()
            .is_none_or(|nodes| node.is_some_and(|node| nodes.contains(node)))
    };
    let among = |a: CpuId, b: CpuId| {
        let (a, b) = (machine.node_of(a), machine.node_of(b));
        (wanted(a, &options.from) && wanted(b, &options.to))
            || (wanted(b, &options.from) && wanted(a, &options.to))
    };
    let all = cpus
        .iter()
        .enumerate()
        .flat_map(|(index, &first)| cpus[index + 1..].iter().map(move |&second| (first, second)));
    let all = all.filter(|&(first, second)| among(first, second));
    let all = all.map(|(first, second)| CpuPair {
        first,
        second,
        nearness: neighbourhood.nearness(first, second),
    });
    if all_cpus {
        return all.collect();
    }
    // The last of each kind stands for it: interrupts gather on low CPUs.
    let mut chosen = BTreeMap::new();
    for pair in all {
        chosen.insert(
            (
                machine.node_of(pair.first),
                machine.node_of(pair.second),
                pair.nearness,
            ),
            pair,
        );
    }
    let mut chosen: Vec<CpuPair> = chosen.into_values().collect();
    chosen.sort();
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nearfar_machine::{Cache, CacheKind, Cpu, Known, Node, NodeSet, Origin, SourceKind};
    use proptest::prelude::*;

    use super::*;

    /// Nodes of 8 CPUs: cores of two threads, caches of four CPUs.
    fn machine(nodes: u32) -> Machine {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        for cpu in 0..nodes * 8 {
            let core = Some(CpuId(cpu & !1));
            machine.cpus.push(Cpu {
                core,
                ..Cpu::new(CpuId(cpu), Some(NodeId(cpu / 8)))
            });
        }
        for first in (0..nodes * 8).step_by(4) {
            let cpus = CpuSet::range(CpuId(first), CpuId(first + 3));
            let size_bytes = Known::Yes(1 << 20);
            machine.caches.push(Cache {
                level: 3,
                kind: CacheKind::Unified,
                cpus,
                size_bytes,
                line_bytes: None,
                ways: None,
            });
        }
        for node in 0..nodes {
            machine.nodes.push(Node::new(
                NodeId(node),
                CpuSet::range(CpuId(node * 8), CpuId(node * 8 + 7)),
            ));
        }
        machine
    }

    fn pairs(machine: &Machine, all_cpus: bool, options: &ProbeOptions) -> Vec<CpuPair> {
        let usable = machine.cpus.iter().map(|cpu| cpu.id).collect();
        choose(machine, &usable, all_cpus, options)
    }

    #[test]
    fn each_nearness_of_a_node_and_each_pair_of_nodes_has_one_pair() {
        let chosen = pairs(&machine(2), false, &ProbeOptions::default());
        let found = |nearness| {
            chosen
                .iter()
                .filter(|pair| pair.nearness == nearness)
                .count()
        };
        assert_eq!(
            [
                Nearness::Core,
                Nearness::Cache,
                Nearness::Node,
                Nearness::Nodes
            ]
            .map(found),
            [2, 2, 2, 1]
        );
        assert!(chosen.contains(&CpuPair {
            first: CpuId(6),
            second: CpuId(7),
            nearness: Nearness::Core
        }));
        assert!(chosen.contains(&CpuPair {
            first: CpuId(7),
            second: CpuId(15),
            nearness: Nearness::Nodes
        }));
    }

    #[test]
    fn nodes_that_were_asked_for_have_one_cpu_each() {
        let set = |list: &str| Some(NodeSet::parse_list(list).unwrap());
        let options = ProbeOptions {
            from: set("0"),
            to: set("2"),
            ..ProbeOptions::default()
        };
        let chosen = pairs(&machine(3), true, &options);
        assert_eq!(chosen.len(), 64);
        assert!(
            chosen
                .iter()
                .all(|pair| pair.first.0 < 8 && pair.second.0 >= 16)
        );
    }

    proptest! {
        #[test]
        fn all_pairs_are_there_once_and_those_chosen_are_among_them(nodes in 1u32..4) {
            let machine = machine(nodes);
            let all = pairs(&machine, true, &ProbeOptions::default());
            prop_assert_eq!(all.len() as u32, nodes * 8 * (nodes * 8 - 1) / 2);
            prop_assert_eq!(all.iter().map(|pair| (pair.first, pair.second)).collect::<BTreeSet<_>>().len(), all.len());
            prop_assert!(all.iter().all(|pair| pair.first < pair.second));
            let chosen = pairs(&machine, false, &ProbeOptions::default());
            prop_assert!(chosen.iter().all(|pair| all.contains(pair)));
        }
    }
}
