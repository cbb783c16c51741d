//! What a sampling gave.

use std::time::Duration;

use super::order::Slot;
use super::plan::Plan;
use super::warning::{MIN_SAMPLES, Warning, too_many};

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
    pub(super) fn new(plan: &Plan) -> Self {
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
