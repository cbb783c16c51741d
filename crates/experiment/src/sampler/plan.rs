//! What is to be sampled: how many samples of how many items, in which order, in which time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::order::{Order, Slot};

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
    pub(super) fn begins(&self, round: u32, rounds: u32, began: Duration) -> Option<Duration> {
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
    pub(super) fn missing(&self) -> Vec<u32> {
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
    pub(super) fn left(self, now: Duration) -> Option<Duration> {
        match self {
            Self::Rounds => None,
            Self::Samples { until } | Self::WholeRounds { until } => {
                Some(until.saturating_sub(now))
            }
        }
    }

    pub(super) fn forbids_sample(self, now: Duration) -> bool {
        matches!(self, Self::Samples { until } if now >= until)
    }

    pub(super) fn forbids_round(self, now: Duration, longest: Duration) -> bool {
        matches!(self, Self::WholeRounds { until } if until.saturating_sub(now) < longest)
    }
}
