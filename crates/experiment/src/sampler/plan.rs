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
