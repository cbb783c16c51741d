//! The one loop that takes samples, for quick measurements as well as for the frame of experiments.
//!
//! ```text
//!          round 0 (warm-up)   round 1            round 2 ...
//! items    C  A  B             B  A  C            A  C  B        every item once a round
//!          │                   └──── kept ───────────┘
//!          └─ not kept; Source::warmed_up() then sets how long a sample takes
//!
//! before each sample: cancelled? ─ budget spent? ─ already taken? ─ Source::take() ─► value, lost, retry or exclude
//! ```
//!
//! Interleaving in rounds spreads what disturbs the machine for a while over all items. The loop knows neither what is
//! measured nor which clock runs: both are passed in, so that tests need no time.
//!
//! The warm-up and round 1 are completed whatever the budget says: an item without a sample has no figure at all.
//! The seed and the round's number decide the order of a round, so that a continued run finds the same one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use fastrand::Rng;
use nearfar_statistics::Summary;
use serde::{Deserialize, Serialize};

/// Where samples come from.
pub trait Source {
    /// What one sample is.
    type Value;
    /// What ends the sampling at once.
    type Error;

    /// A round takes these samples, in this order.
    fn begin(&mut self, slots: &[Slot]) {
        let _ = slots;
    }

    /// Whether the sample is there already, so that it is taken also when the sampling was cancelled.
    fn has(&mut self, slot: Slot) -> bool {
        let _ = slot;
        false
    }

    /// Makes one attempt at a sample. In the warm-up the value is not kept.
    ///
    /// # Errors
    /// What makes further attempts pointless, for all items.
    fn take(&mut self, turn: Turn) -> Result<Attempt<Self::Value>, Self::Error>;

    /// The warm-up is over. It took `took` for `items` items; `left` is the rest of the budget, if there is one.
    fn warmed_up(&mut self, took: Duration, items: usize, left: Option<Duration>) {
        let _ = (took, items, left);
    }

    /// All samples of a kept round are there, or lost. The items that need no more; samples that they have are kept.
    ///
    /// # Errors
    /// As [`Self::take`].
    fn settled(&mut self, round: u32) -> Result<Vec<usize>, Self::Error> {
        let _ = round;
        Ok(Vec::new())
    }

    /// A sample is about to be taken, or the last one was.
    fn progress(&mut self, progress: &SamplingProgress<'_>) {
        let _ = progress;
    }
}

/// One attempt that a [`Source`] is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Which sample.
    pub slot: Slot,
    /// Which attempt at it, from 1.
    pub attempt: u32,
    /// What is left of the time budget; `None` without one.
    pub left: Option<Duration>,
}

/// What one attempt gave.
#[derive(Clone, PartialEq, Debug)]
pub enum Attempt<V> {
    /// A sample.
    Value(V),
    /// No sample. The item stays, its next sample is that of the next round.
    Lost,
    /// No sample yet: the same slot again, at once.
    Retry,
    /// These items are not measured any more; samples that they have are kept.
    Exclude(Vec<usize>),
}

/// How far the sampling is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingProgress<'a> {
    /// The sample that comes next; `None` after the last one.
    pub next: Option<Slot>,
    /// How many samples of each item are still to be taken.
    pub missing: &'a [u32],
}

/// Takes the samples of a plan. A set `cancel` ends it before the next attempt.
///
/// # Errors
/// What the source gives as one; samples taken until then are the source's to keep.
pub fn sample<S: Source>(
    plan: &Plan,
    clock: &impl Clock,
    cancel: &AtomicBool,
    source: &mut S,
) -> Result<SamplingOutcome<S::Value>, S::Error> {
    let mut sampling = Sampling {
        plan,
        clock,
        cancel,
        missing: plan.missing(),
        excluded: vec![false; plan.items],
        longest_round: Duration::ZERO,
        outcome: SamplingOutcome::new(plan),
    };
    let end = sampling.rounds(source)?;
    let missing = &sampling.missing;
    source.progress(&SamplingProgress {
        next: None,
        missing,
    });
    let (excluded, mut outcome) = (sampling.excluded, sampling.outcome);
    outcome.end = end;
    outcome.excluded = (0..plan.items).filter(|&item| excluded[item]).collect();
    Ok(outcome)
}

struct Sampling<'a, C, V> {
    plan: &'a Plan,
    clock: &'a C,
    cancel: &'a AtomicBool,
    missing: Vec<u32>,
    excluded: Vec<bool>,
    longest_round: Duration,
    outcome: SamplingOutcome<V>,
}

impl<C: Clock, V> Sampling<'_, C, V> {
    fn rounds<S: Source<Value = V>>(&mut self, source: &mut S) -> Result<End, S::Error> {
        let first = if self.plan.warm_up { 0 } else { 1 };
        let mut first_began = Duration::ZERO;
        for round in first..=self.plan.rounds {
            if round <= 1 {
                first_began = self.clock.now();
            }
            let spread = self.plan.spread;
            if let Some(begins) =
                spread.and_then(|it| it.begins(round, self.plan.rounds, first_began))
            {
                self.clock.wait(begins, self.cancel);
            }
            let began = self.clock.now();
            if round > 1 && self.plan.budget.forbids_round(began, self.longest_round) {
                return Ok(End::BudgetSpent);
            }
            let mut slots = self.plan.order.round(round, self.plan.items);
            slots.retain(|slot| !self.plan.taken.contains(slot) && !self.excluded[slot.item]);
            if !self.is_cancelled() {
                source.begin(&slots);
            }
            let mut is_cut = false;
            for slot in slots {
                if self.excluded[slot.item] {
                    continue;
                }
                if self.is_cancelled() && !source.has(slot) {
                    is_cut = true;
                    continue;
                }
                if round > 1 && self.plan.budget.forbids_sample(self.clock.now()) {
                    return Ok(End::BudgetSpent);
                }
                is_cut |= self.slot(slot, source)?;
            }
            if is_cut {
                return Ok(End::Cancelled);
            }
            let now = self.clock.now();
            let took = now.saturating_sub(began);
            if round == 0 {
                let items = self.excluded.iter().filter(|&&excluded| !excluded).count();
                source.warmed_up(took, items, self.plan.budget.left(now));
            } else {
                self.longest_round = self.longest_round.max(took);
                self.exclude(&source.settled(round)?);
            }
        }
        Ok(End::Complete)
    }

    /// Attempts at one slot until there is an answer, or `true` when the flag cut it.
    fn slot<S: Source<Value = V>>(&mut self, slot: Slot, source: &mut S) -> Result<bool, S::Error> {
        for attempt in 1.. {
            let (next, missing) = (Some(slot), self.missing.as_slice());
            source.progress(&SamplingProgress { next, missing });
            let started = self.clock.now();
            let left = self.plan.budget.left(started);
            let turn = Turn {
                slot,
                attempt,
                left,
            };
            match source.take(turn)? {
                Attempt::Value(value) => self.keep(slot, started, value),
                // The source may have given up because of the flag; then the slot is as open as before.
                _ if self.is_cancelled() => return Ok(true),
                Attempt::Lost => self.lose(slot, started),
                Attempt::Retry => continue,
                Attempt::Exclude(items) => self.exclude(&items),
            }
            break;
        }
        Ok(false)
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn keep(&mut self, slot: Slot, started: Duration, value: V) {
        if slot.is_warm_up() {
            return;
        }
        self.missing[slot.item] -= 1;
        let taken = self.taken(slot, started, value);
        self.outcome.samples.push(taken);
    }

    fn lose(&mut self, slot: Slot, started: Duration) {
        if !slot.is_warm_up() {
            self.missing[slot.item] -= 1;
            let taken = self.taken(slot, started, ());
            self.outcome.lost.push(taken);
        }
    }

    fn taken<T>(&self, slot: Slot, started: Duration, value: T) -> Taken<T> {
        Taken {
            slot,
            started,
            took: self.clock.now().saturating_sub(started),
            value,
        }
    }

    fn exclude(&mut self, items: &[usize]) {
        for &item in items {
            self.excluded[item] = true;
            self.missing[item] = 0;
        }
    }
}

/// What is to be sampled.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// How many items there are: cells, pairs of nodes, pairs of CPUs.
    pub items: usize,
    /// Rounds whose samples are kept: the most samples of an item.
    pub rounds: u32,
    /// Whether a round that is not kept comes first.
    pub warm_up: bool,
    /// The order within a round.
    pub order: Order,
    /// When it ends before all rounds are done.
    pub budget: Budget,
    /// Samples that an earlier sampling took, which are left out.
    pub taken: BTreeSet<Slot>,
    /// Whether rounds are taken in blocks with time between them.
    pub spread: Option<Spread>,
}

/// Rounds in blocks that begin evenly over a time: what disturbs the machine for a while then changes some blocks, not all samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Kept rounds of a block, 1 or more.
    pub rounds_per_block: u32,
    /// When the block after the last one would begin, by the sampling's clock.
    pub until: Duration,
}

impl Spread {
    /// When the block that begins with this kept round may begin; `None` for the other rounds. The first of `rounds` began at `began`.
    fn begins(&self, round: u32, rounds: u32, began: Duration) -> Option<Duration> {
        let block = round.checked_sub(1)? / self.rounds_per_block;
        let is_first = (round - 1).is_multiple_of(self.rounds_per_block);
        let blocks = rounds.div_ceil(self.rounds_per_block);
        let time = self.until.saturating_sub(began);
        is_first.then(|| began + time.mul_f64(f64::from(block) / f64::from(blocks.max(1))))
    }
}

impl Plan {
    /// So many kept rounds in random order, with neither warm-up nor time budget.
    pub fn rounds(items: usize, rounds: u32, seed: u64) -> Self {
        Self {
            items,
            rounds,
            warm_up: false,
            order: Order::Shuffled { seed },
            budget: Budget::Rounds,
            taken: BTreeSet::new(),
            spread: None,
        }
    }

    /// How many samples of each item are to be taken.
    fn missing(&self) -> Vec<u32> {
        let mut missing = vec![self.rounds; self.items];
        // Slots taken earlier come from a file, so they may be of no round and of no item.
        let within = |slot: &&Slot| (1..=self.rounds).contains(&slot.round);
        for slot in self.taken.iter().filter(within) {
            if let Some(missing) = missing.get_mut(slot.item) {
                *missing -= 1;
            }
        }
        missing
    }
}

/// What ends a sampling before all rounds are done. Times are those of the sampling's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// Nothing.
    Rounds,
    /// No sample begins at or after this time.
    Samples {
        /// The end of the budget.
        until: Duration,
    },
    /// No round begins that would end after this time if it took as long as the longest so far.
    WholeRounds {
        /// The end of the budget.
        until: Duration,
    },
}

impl Budget {
    /// What is left of it at `now`; `None` for one without time.
    fn left(self, now: Duration) -> Option<Duration> {
        match self {
            Self::Rounds => None,
            Self::Samples { until } | Self::WholeRounds { until } => {
                Some(until.saturating_sub(now))
            }
        }
    }

    fn forbids_sample(self, now: Duration) -> bool {
        matches!(self, Self::Samples { until } if now >= until)
    }

    fn forbids_round(self, now: Duration, longest: Duration) -> bool {
        matches!(self, Self::WholeRounds { until } if until.saturating_sub(now) < longest)
    }
}

/// One sample's place in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// The round, from 1; 0 is the warm-up.
    pub round: u32,
    /// The item's place in the plan, from 0.
    pub item: usize,
}

impl Slot {
    /// Whether its sample is not kept.
    pub fn is_warm_up(self) -> bool {
        self.round == 0
    }
}

/// The order of the items within a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Another random order in each round.
    Shuffled {
        /// Of the random numbers.
        seed: u64,
    },
    /// As planned in odd rounds and backwards in even ones: A B B A A B B A. A drift of the machine then affects two
    /// items alike even over few rounds.
    Mirrored,
}

impl Order {
    /// The order of one round over so many items.
    pub fn round(self, round: u32, items: usize) -> Vec<Slot> {
        let mut order: Vec<usize> = (0..items).collect();
        match self {
            Self::Shuffled { seed } => {
                // Golden ratio: neighbouring rounds get seeds far apart.
                let of_round = u64::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Rng::with_seed(seed.wrapping_add(of_round)).shuffle(&mut order);
            }
            Self::Mirrored if round.is_multiple_of(2) => order.reverse(),
            Self::Mirrored => {}
        }
        order.into_iter().map(|item| Slot { round, item }).collect()
    }
}

/// The flag is looked at this often.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// A clock that does not run backwards.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Waits for a time, or until the flag is set.
    fn wait(&self, until: Duration, cancel: &AtomicBool) {
        while !cancel.load(Ordering::Relaxed) {
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(MAX_WAIT));
        }
    }
}

/// The system's monotonic clock, from 0 at its creation.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Monotonic {
    /// Starts it.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// When it started.
    pub fn started(&self) -> Instant {
        self.0
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// How a sampling ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All rounds are done.
    Complete,
    /// The time budget was spent.
    BudgetSpent,
    /// The cancel flag was set.
    Cancelled,
}

/// A sample that is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct Taken<V> {
    /// Its round and item.
    pub slot: Slot,
    /// When it began, by the sampling's clock.
    pub started: Duration,
    /// How long the source took for it.
    pub took: Duration,
    /// What the source gave.
    pub value: V,
}

/// What a sampling gave.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingOutcome<V> {
    /// The samples, in the order they were taken.
    pub samples: Vec<Taken<V>>,
    /// Attempts in kept rounds that gave no sample.
    pub lost: Vec<Taken<()>>,
    /// Items that the source excluded, in ascending order.
    pub excluded: Vec<usize>,
    /// How it ended.
    pub end: End,
    items: usize,
    wanted: u32,
}

impl<V> SamplingOutcome<V> {
    fn new(plan: &Plan) -> Self {
        Self {
            samples: Vec::new(),
            lost: Vec::new(),
            excluded: Vec::new(),
            end: End::Complete,
            items: plan.items,
            wanted: plan.rounds,
        }
    }

    /// What the samples of each item are, in the order they were taken.
    pub fn by_item(&self) -> Vec<Vec<&V>> {
        let mut by_item: Vec<Vec<&V>> = (0..self.items).map(|_| Vec::new()).collect();
        for taken in &self.samples {
            by_item[taken.slot.item].push(&taken.value);
        }
        by_item
    }

    /// The number of samples of the item that has fewest, of those that were not excluded; 0 without any.
    pub fn fewest(&self) -> usize {
        let mut counts = vec![0; self.items];
        for taken in &self.samples {
            counts[taken.slot.item] += 1;
        }
        let measured = (0..self.items).filter(|item| self.excluded.binary_search(item).is_err());
        measured.map(|item| counts[item]).min().unwrap_or(0)
    }

    /// What makes the samples as a whole worth less: a budget that ended too early, attempts without a sample.
    pub fn warnings(&self) -> Vec<Warning> {
        let (samples, wanted) = (self.fewest(), self.wanted as usize);
        let is_short = samples < wanted.min(MIN_SAMPLES) && self.excluded.len() < self.items;
        let cut_short = match self.end {
            End::Cancelled => Some(Warning::Cancelled { samples, wanted }),
            _ => is_short.then_some(Warning::CutShort { samples, wanted }),
        };
        let (lost, attempts) = (self.lost.len(), self.lost.len() + self.samples.len());
        let lost = too_many(lost, attempts).then_some(Warning::Lost { lost, attempts });
        cut_short.into_iter().chain(lost).collect()
    }
}

/// Samples of an item below which its median has no use without a warning.
const MIN_SAMPLES: usize = 5;

/// A warning about a sampling.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Warning {
    /// More than one in twenty samples is an outlier among those of its item.
    Outliers {
        /// How many.
        outliers: usize,
        /// Of how many.
        samples: usize,
    },
    /// The budget ran out before every item had the samples it should have.
    CutShort {
        /// Samples the item with fewest has.
        samples: usize,
        /// Samples it should have.
        wanted: usize,
    },
    /// The sampling was cancelled before every item had the samples it should have.
    Cancelled {
        /// Samples the item with fewest has.
        samples: usize,
        /// Samples it should have.
        wanted: usize,
    },
    /// More than one in twenty attempts gave no sample.
    Lost {
        /// How many.
        lost: usize,
        /// Of how many.
        attempts: usize,
    },
}

/// Whether more than one in twenty is concerned.
fn too_many(concerned: usize, all: usize) -> bool {
    concerned > all / 20
}

/// A warning where too many samples are outliers among those of their item. All of them stay in the figures.
pub fn outliers<'a>(items: impl IntoIterator<Item = &'a [f64]>) -> Option<Warning> {
    let (mut outliers, mut samples) = (0, 0);
    for item in items {
        outliers += Summary::of(item).map_or(0, |summary| summary.outliers);
        samples += item.len();
    }
    too_many(outliers, samples).then_some(Warning::Outliers { outliers, samples })
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outliers { outliers, samples } => write!(
                f,
                "{outliers} of {samples} samples are outliers; the medians are hardly affected, but something disturbed \
                 the machine"
            ),
            Self::CutShort { samples, wanted } => write!(
                f,
                "the time budget ended after {samples} of {wanted} samples; a larger budget gives narrower intervals"
            ),
            Self::Cancelled { samples, wanted } => {
                write!(f, "interrupted after {samples} of {wanted} samples")
            }
            Self::Lost { lost, attempts } => write!(
                f,
                "{lost} of {attempts} attempts at a sample took too long and are not in the figures: the machine is busy"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_round_has_each_item_once_and_is_the_same_again(seed: u64, number: u32, items in 0usize..100) {
            let shuffled = Order::Shuffled { seed };
            let order = shuffled.round(number, items);
            let mut sorted: Vec<usize> = order.iter().map(|slot| slot.item).collect();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..items).collect::<Vec<_>>());
            prop_assert_eq!(order, shuffled.round(number, items));
        }
    }

    /// Each item has to come first about equally often, or the first place would be an effect of the item.
    #[test]
    fn no_item_prefers_a_place() {
        let (items, rounds) = (6, 6000);
        for seed in [0, 1, u64::MAX] {
            let mut at = vec![vec![0; items]; items];
            for number in 0..rounds {
                let order = Order::Shuffled { seed }.round(number, items);
                for (place, slot) in order.iter().enumerate() {
                    at[slot.item][place] += 1;
                }
            }
            let off = |&count: &i32| (count - 1000).abs();
            let most_off = at.iter().flatten().map(off).max().unwrap();
            // Binomial with mean 1000: 150 are more than five standard deviations.
            assert!(most_off < 150, "{at:?}");
        }
    }

    #[test]
    fn mirrored_rounds_give_both_items_as_many_first_places() {
        let items = |round| {
            let order = Order::Mirrored.round(round, 2);
            order.into_iter().map(|slot| slot.item)
        };
        let order: Vec<usize> = (1..=4).flat_map(items).collect();
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0]);
    }
}
