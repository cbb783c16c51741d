//! One run: a trial of each pair, rounds in random order, samples summed up.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, CpuSet, Machine, NodeId};

use super::hand_over::{self, Trouble};
use super::pairs::{self, Pair};
use super::{SkippedTransfer, TransferMatrix, TransferPair};
use crate::conditions::{self, Ticks};
use crate::mapping::{Backing, Mapping};
use crate::options::{ProbeError, ProbeOptions};
use crate::random::{Random, SEED};
use crate::warning::{Warning, outliers};
use nearfar_proc::affinity;
use nearfar_statistics::Figures;

/// Round trips of a trial: few, so that it fits into a moment in which both CPUs run.
const TRIAL_TRIPS: u64 = 200;
/// How long a trial may take.
const TRIAL_LIMIT: Duration = Duration::from_millis(20);
/// How often a pair is tried: on a busy host the CPUs of a guest run side by side now and then.
const TRIALS: usize = 5;
/// A round trip that takes this long waited for the scheduler: the two did not run side by side.
const SIDE_BY_SIDE_NS: f64 = 50_000.0;
/// Fewest and most round trips in a sample.
const TRIPS: std::ops::RangeInclusive<u64> = 100..=20_000;
/// How long a sample takes at most, beside the thread that is started for it: less than a scheduler's time slice.
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
struct Lines {
    by_node: BTreeMap<Option<NodeId>, Mapping>,
}

/// What one pair has so far.
struct Taken {
    pair: Pair,
    trips: u64,
    samples: Vec<f64>,
}

/// Measures on the calling thread and one more, whose affinity it leaves changed.
pub(crate) fn measure_on(hand_overs: HandOvers<'_>) -> Result<TransferMatrix, ProbeError> {
    let HandOvers {
        machine,
        options,
        allowed,
        all_cpus,
        ..
    } = hand_overs;
    let start = Instant::now();
    let usable = allowed.intersection(&machine.cpu_states.online);
    let pairs = pairs::choose(machine, &usable, all_cpus, options);
    if pairs.is_empty() {
        let because = format!(
            "a line is handed over between two CPUs, and this process may use {usable} there"
        );
        return Err(ProbeError::NothingToMeasure { because });
    }
    let cpus: CpuSet = pairs
        .iter()
        .flat_map(|pair| [pair.first, pair.second])
        .collect();
    let ticks = Ticks::now();
    let mut run = Run {
        hand_overs,
        lines: Lines {
            by_node: BTreeMap::new(),
        },
        skipped: Vec::new(),
    };
    let mut taken = run.try_out(pairs)?;
    run.sample(&mut taken)?;
    let pairs = run.sum_up(taken);
    let mut warnings: Vec<Warning> = conditions::governor(machine).into_iter().collect();
    warnings.extend(Ticks::now().doubts_since(&ticks, cpus.iter()));
    warnings.extend(outliers(pairs.iter().map(|pair| {
        (
            pair.round_trip_ns.outliers,
            pair.round_trip_ns.samples.len(),
        )
    })));
    let wanted = options.most_samples.max(1);
    let fewest = pairs
        .iter()
        .map(|pair| pair.round_trip_ns.samples.len())
        .min()
        .unwrap_or(wanted);
    if fewest < wanted.min(5) {
        warnings.push(Warning::CutShort {
            samples: fewest,
            wanted,
        });
    }
    run.skipped
        .sort_by_key(|skipped| (skipped.first, skipped.second));
    Ok(TransferMatrix {
        pairs,
        skipped: run.skipped,
        all_cpus,
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings,
        emulation: machine.origin.emulation.clone(),
    })
}

struct Run<'a> {
    hand_overs: HandOvers<'a>,
    lines: Lines,
    skipped: Vec<SkippedTransfer>,
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.hand_overs.deadline
    }

    /// Each pair once, to see whether its CPUs run side by side and how many round trips fit into a sample.
    fn try_out(&mut self, mut pairs: Vec<Pair>) -> Result<Vec<Taken>, ProbeError> {
        Random::new(SEED).shuffle(&mut pairs);
        let mut taken = Vec::new();
        for pair in pairs {
            if self.is_over() && !taken.is_empty() {
                self.skip(pair, "the time budget was over".to_owned());
                continue;
            }
            match self.try_pair(pair)? {
                Ok(time) => {
                    let trips = (SAMPLE_TIME.as_nanos() as f64 / time.max(1.0)) as u64;
                    let trips = trips.clamp(*TRIPS.start(), *TRIPS.end());
                    taken.push(Taken {
                        pair,
                        trips,
                        samples: Vec::new(),
                    });
                }
                Err(because) => self.skip(pair, because),
            }
        }
        Ok(taken)
    }

    /// The time of a round trip as far as a trial tells, or why there is none.
    fn try_pair(&mut self, pair: Pair) -> Result<Result<f64, String>, ProbeError> {
        let mut best = f64::INFINITY;
        for _ in 0..TRIALS {
            match self.hand_over(pair, TRIAL_TRIPS, TRIAL_LIMIT) {
                Ok(time) => best = best.min(time),
                Err(Trouble::TooSlow(trips)) => {
                    best = best.min(TRIAL_LIMIT.as_nanos() as f64 / (trips + 1) as f64)
                }
                Err(Trouble::Cannot(because)) => return Ok(Err(because)),
                Err(Trouble::Cancelled) => return Err(ProbeError::Cancelled),
            }
            if best < SIDE_BY_SIDE_NS {
                return Ok(Ok(best));
            }
        }
        Ok(Err(not_side_by_side(best)))
    }

    /// Rounds until every pair has enough samples or the time is over.
    fn sample(&mut self, taken: &mut [Taken]) -> Result<(), ProbeError> {
        let mut random = Random::new(SEED);
        for round in 0..self.hand_overs.options.most_samples.max(1) {
            random.shuffle(taken);
            for taken in &mut *taken {
                if round > 0 && self.is_over() {
                    return Ok(());
                }
                // A sample that takes far longer than it should is lost, and says nothing of the pair.
                match self.hand_over(taken.pair, taken.trips, SAMPLE_LIMIT) {
                    Ok(time) => taken.samples.push(time),
                    Err(Trouble::Cancelled) => return Err(ProbeError::Cancelled),
                    Err(Trouble::TooSlow(_) | Trouble::Cannot(_)) => {}
                }
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, pair: Pair, trips: u64, limit: Duration) -> Result<f64, Trouble> {
        let HandOvers {
            machine, options, ..
        } = self.hand_overs;
        let several = machine.online_nodes().count() > 1;
        let line = self
            .lines
            .on(machine.node_of(pair.first), pair.first, several)?;
        hand_over::round_trips(
            line,
            (pair.first, pair.second),
            trips,
            limit,
            &options.cancel,
        )
    }

    fn skip(&mut self, pair: Pair, because: String) {
        self.skipped.push(SkippedTransfer {
            first: pair.first,
            second: pair.second,
            because,
        });
    }

    fn sum_up(&mut self, mut taken: Vec<Taken>) -> Vec<TransferPair> {
        taken.sort_by_key(|taken| taken.pair);
        let machine = self.hand_overs.machine;
        let mut pairs = Vec::new();
        for Taken {
            pair,
            trips,
            samples,
        } in taken
        {
            let Some(round_trip_ns) = Figures::of(samples) else {
                self.skip(
                    pair,
                    "no sample ended in time: the two CPUs did not run side by side for long"
                        .to_owned(),
                );
                continue;
            };
            let (first_node, second_node) =
                (machine.node_of(pair.first), machine.node_of(pair.second));
            pairs.push(TransferPair {
                first: pair.first,
                second: pair.second,
                first_node,
                second_node,
                nearness: pair.nearness,
                round_trip_ns,
                round_trips: trips,
                distance: first_node
                    .zip(second_node)
                    .and_then(|(first, second)| machine.distance(first, second)),
            });
        }
        pairs
    }
}

fn not_side_by_side(nanoseconds: f64) -> String {
    format!(
        "the two CPUs do not run side by side: a round trip took {:.1} ms or more, as when one waits until the other is \
         taken off its processor (a guest with more CPUs than its host lends it)",
        nanoseconds / 1e6
    )
}

impl Lines {
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
