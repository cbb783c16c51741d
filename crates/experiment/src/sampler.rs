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

mod clock;
mod order;
mod outcome;
mod plan;
mod warning;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use clock::{Clock, Monotonic};
pub use order::{Order, Slot};
pub use outcome::{End, SamplingOutcome, Taken};
pub use plan::{Budget, Plan, Spread};
pub use warning::{Warning, outliers};

/// Where samples come from.
pub trait Source {
    /// What one sample is.
    type Value;
    /// What ends the sampling at once.
    type Error;

    /// Makes one attempt at a sample. In the warm-up the value is not kept.
    ///
    /// # Errors
    /// What makes further attempts pointless, for all items.
    fn take(&mut self, turn: Turn) -> Result<Attempt<Self::Value>, Self::Error>;

    /// The warm-up is over. It took `took` for `items` items; `left` is the rest of the budget, if there is one.
    fn warmed_up(&mut self, took: Duration, items: usize, left: Option<Duration>) {
        let _ = (took, items, left);
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
            for slot in self.plan.order.round(round, self.plan.items) {
                if self.excluded[slot.item] || self.plan.taken.contains(&slot) {
                    continue;
                }
                if round > 1 && self.plan.budget.forbids_sample(self.clock.now()) {
                    return Ok(End::BudgetSpent);
                }
                if self.slot(slot, source)? == Some(End::Cancelled) {
                    return Ok(End::Cancelled);
                }
            }
            let now = self.clock.now();
            let took = now.saturating_sub(began);
            if round == 0 {
                let items = self.excluded.iter().filter(|&&excluded| !excluded).count();
                source.warmed_up(took, items, self.plan.budget.left(now));
            } else {
                self.longest_round = self.longest_round.max(took);
            }
        }
        Ok(End::Complete)
    }

    /// Attempts at one slot until there is an answer.
    fn slot<S: Source<Value = V>>(
        &mut self,
        slot: Slot,
        source: &mut S,
    ) -> Result<Option<End>, S::Error> {
        for attempt in 1.. {
            if self.is_cancelled() {
                return Ok(Some(End::Cancelled));
            }
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
                _ if self.is_cancelled() => return Ok(Some(End::Cancelled)),
                Attempt::Lost => self.lose(slot, started),
                Attempt::Retry => continue,
                Attempt::Exclude(items) => self.exclude(&items),
            }
            break;
        }
        Ok(None)
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
