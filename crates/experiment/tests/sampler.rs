//! The sampler with a clock and a source of its own: no test here takes time.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_experiment::sampler::{
    self, Attempt, Budget, Clock, End, Order, Plan, SamplingOutcome, SamplingProgress, Slot,
    Source, Spread, Turn, Warning, sample,
};
use proptest::prelude::*;

const SEED: u64 = 7;

/// A clock that only the source moves.
#[derive(Default)]
struct Manual(Cell<Duration>);

impl Clock for Manual {
    fn now(&self) -> Duration {
        self.0.get()
    }

    fn wait(&self, until: Duration, _: &AtomicBool) {
        self.0.set(self.0.get().max(until));
    }
}

/// Answers as a function says, and notes what it was asked for.
struct Scripted<'a, F> {
    clock: &'a Manual,
    answer: F,
    turns: Vec<(Turn, Duration)>,
    warmed_up: Vec<(Duration, usize)>,
    last_progress: Option<(Option<Slot>, Vec<u32>)>,
}

impl<'a, F> Scripted<'a, F> {
    fn new(clock: &'a Manual, answer: F) -> Self {
        Self {
            clock,
            answer,
            turns: Vec::new(),
            warmed_up: Vec::new(),
            last_progress: None,
        }
    }

    fn slots(&self) -> Vec<Slot> {
        self.turns.iter().map(|(turn, _)| turn.slot).collect()
    }
}

/// The answer of one turn and the time it takes.
impl<F: FnMut(Turn) -> (Attempt<f64>, Duration)> Source for Scripted<'_, F> {
    type Value = f64;
    type Error = Infallible;

    fn take(&mut self, turn: Turn) -> Result<Attempt<f64>, Infallible> {
        self.turns.push((turn, self.clock.now()));
        let (attempt, took) = (self.answer)(turn);
        self.clock.0.set(self.clock.now() + took);
        Ok(attempt)
    }

    fn warmed_up(&mut self, took: Duration, items: usize, _: Option<Duration>) {
        self.warmed_up.push((took, items));
    }

    fn progress(&mut self, progress: &SamplingProgress<'_>) {
        self.last_progress = Some((progress.next, progress.missing.to_vec()));
    }
}

const MS: Duration = Duration::from_millis(1);

/// A value that tells its round and item.
fn value(turn: Turn) -> Attempt<f64> {
    Attempt::Value(f64::from(turn.slot.round) + turn.slot.item as f64 / 1000.0)
}

fn run<F: FnMut(Turn) -> (Attempt<f64>, Duration)>(
    plan: &Plan,
    source: &mut Scripted<'_, F>,
) -> SamplingOutcome<f64> {
    sample(plan, source.clock, &AtomicBool::new(false), source).unwrap()
}

#[test]
fn blocks_of_rounds_begin_evenly_over_the_time() {
    let clock = Manual::default();
    let mut source = Scripted::new(&clock, |turn| (value(turn), MS));
    let spread = Spread {
        rounds_per_block: 2,
        until: 403 * MS,
    };
    let plan = Plan {
        warm_up: true,
        spread: Some(spread),
        ..Plan::rounds(3, 7, SEED)
    };
    let outcome = run(&plan, &mut source);
    assert_eq!((outcome.end, outcome.samples.len()), (End::Complete, 21));
    // 3 ms of warm-up, then four blocks over 400 ms.
    let begins: Vec<u128> = (0..7)
        .map(|round| outcome.samples[3 * round].started.as_millis())
        .collect();
    assert_eq!(begins, [3, 6, 103, 106, 203, 206, 303]);
    // One that is late already does not wait, and none begins before the last is done.
    let mut slow = Scripted::new(&clock, |turn| (value(turn), 100 * MS));
    let begun = clock.now();
    run(&plan, &mut slow);
    assert_eq!(clock.now() - begun, 24 * 100 * MS);
}

#[test]
fn the_warm_up_is_timed_and_not_kept() {
    let clock = Manual::default();
    let mut source = Scripted::new(&clock, |turn| (value(turn), MS));
    let plan = Plan {
        warm_up: true,
        ..Plan::rounds(3, 2, SEED)
    };
    let outcome = run(&plan, &mut source);
    assert_eq!(source.warmed_up, [(3 * MS, 3)]);
    assert_eq!((source.turns.len(), outcome.samples.len()), (9, 6));
    assert!(outcome.samples.iter().all(|taken| taken.slot.round > 0));
    assert_eq!(source.last_progress, Some((None, vec![0; 3])));
    assert!(
        outcome.warnings().is_empty(),
        "two samples are all that were wanted"
    );
}

#[test]
fn a_retry_is_the_same_slot_at_once() {
    let clock = Manual::default();
    let mut source = Scripted::new(&clock, |turn: Turn| match turn.attempt {
        4 => (value(turn), MS),
        _ => (Attempt::Retry, MS),
    });
    let outcome = run(&Plan::rounds(2, 1, SEED), &mut source);
    let attempts: Vec<u32> = source.turns.iter().map(|(turn, _)| turn.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(outcome.samples.len(), 2);
    assert!(outcome.samples.iter().all(|taken| taken.took == MS));
}

#[test]
fn an_error_ends_it_at_once() {
    struct Refusing(u32);
    impl Source for Refusing {
        type Value = ();
        type Error = &'static str;
        fn take(&mut self, _: Turn) -> Result<Attempt<()>, Self::Error> {
            self.0 += 1;
            Err("no such CPU")
        }
    }
    let mut source = Refusing(0);
    let plan = Plan::rounds(4, 4, SEED);
    let answer = sample(
        &plan,
        &Manual::default(),
        &AtomicBool::new(false),
        &mut source,
    );
    assert_eq!((answer.err(), source.0), (Some("no such CPU"), 1));
}

#[test]
fn an_attempt_that_the_flag_ended_is_neither_lost_nor_complete() {
    let (clock, cancel) = (Manual::default(), AtomicBool::new(false));
    let mut source = Scripted::new(&clock, |_| {
        cancel.store(true, Ordering::Relaxed);
        (Attempt::Lost, MS)
    });
    let outcome = sample(&Plan::rounds(1, 1, SEED), &clock, &cancel, &mut source).unwrap();
    assert_eq!((outcome.end, outcome.lost.len()), (End::Cancelled, 0));
    let interrupted = Warning::Cancelled {
        samples: 0,
        wanted: 1,
    };
    assert_eq!(outcome.warnings(), [interrupted]);
}

#[test]
fn what_is_wrong_with_samples_is_reported_and_not_hidden() {
    let clock = Manual::default();
    let mut source = Scripted::new(&clock, |turn: Turn| match turn.slot.round {
        3 => (Attempt::Value(1000.0), MS),
        4 if turn.slot.item == 0 => (Attempt::Lost, MS),
        round => (Attempt::Value(f64::from(10 + round % 2)), MS),
    });
    let outcome = run(&Plan::rounds(2, 10, SEED), &mut source);
    assert!(outcome.warnings().is_empty(), "one lost in twenty is usual");
    let by_item: Vec<Vec<f64>> = outcome
        .by_item()
        .into_iter()
        .map(|values| values.into_iter().copied().collect())
        .collect();
    assert!(by_item.iter().all(|values| values.contains(&1000.0)));
    let warning = sampler::outliers(by_item.iter().map(Vec::as_slice));
    let expected = Warning::Outliers {
        outliers: 2,
        samples: 19,
    };
    assert_eq!(warning, Some(expected));
    let mut source = Scripted::new(&clock, |_| (Attempt::Lost, MS));
    let outcome = run(&Plan::rounds(1, 6, SEED), &mut source);
    let (samples, wanted, lost, attempts) = (0, 6, 6, 6);
    assert_eq!(
        outcome.warnings(),
        [
            Warning::CutShort { samples, wanted },
            Warning::Lost { lost, attempts }
        ]
    );
}

proptest! {
    /// No sample begins after the budget, except those that give each item its first one.
    #[test]
    fn a_budget_in_time_ends_before_the_next_sample(
        items in 1usize..8, rounds in 1u32..12, until in 0u64..100, warm_up: bool,
        times in prop::collection::vec(0u64..20, 1..20),
    ) {
        let (clock, until) = (Manual::default(), Duration::from_millis(until));
        let mut number = 0;
        let mut source = Scripted::new(&clock, |turn| {
            number += 1;
            (value(turn), Duration::from_millis(times[number % times.len()]))
        });
        let budget = Budget::Samples { until };
        let plan = Plan { warm_up, budget, ..Plan::rounds(items, rounds, SEED) };
        let outcome = run(&plan, &mut source);
        for (turn, began) in &source.turns {
            prop_assert!(turn.slot.round <= 1 || *began < until, "{:?} at {:?}", turn, began);
        }
        prop_assert!(outcome.fewest() >= 1);
        let all = outcome.samples.len() == items * rounds as usize;
        prop_assert_eq!(outcome.end == End::Complete, all);
        // Nothing was left out while there was time.
        prop_assert!(all || clock.now() >= until);
    }

    /// Where rounds take the same time, none ends after the budget but the first.
    #[test]
    fn a_budget_of_whole_rounds_ends_between_rounds(
        items in 1usize..8, rounds in 1u32..20, until in 0u64..200, time in 1u64..9,
    ) {
        let (clock, until) = (Manual::default(), Duration::from_millis(until));
        let mut source = Scripted::new(&clock, |turn| (value(turn), Duration::from_millis(time)));
        let budget = Budget::WholeRounds { until };
        let outcome = run(&Plan { budget, ..Plan::rounds(items, rounds, SEED) }, &mut source);
        prop_assert_eq!(outcome.samples.len() % items, 0);
        let round = Duration::from_millis(time * items as u64);
        prop_assert!(clock.now() <= until.max(round));
        prop_assert!(outcome.end == End::Complete || until - clock.now().min(until) < round);
    }

    #[test]
    fn the_order_is_the_seeds_and_the_rounds_are_complete(items in 0usize..9, rounds in 0u32..9, seed: u64) {
        let order = || {
            let clock = Manual::default();
            let mut source = Scripted::new(&clock, |turn| (value(turn), MS));
            run(&Plan::rounds(items, rounds, seed), &mut source);
            source.slots()
        };
        prop_assert_eq!(order(), order());
        let rounds = (1..=rounds).flat_map(|round| Order::Shuffled { seed }.round(round, items));
        prop_assert_eq!(order(), rounds.collect::<Vec<_>>());
    }

    /// However late the flag is set, not one attempt more is made.
    #[test]
    fn cancelling_is_prompt(items in 1usize..6, rounds in 1u32..6, after in 1usize..50, retries in 1u32..4) {
        let (clock, cancel) = (Manual::default(), AtomicBool::new(false));
        let mut made = 0;
        let mut source = Scripted::new(&clock, |turn: Turn| {
            made += 1;
            cancel.store(made >= after, Ordering::Relaxed);
            (if turn.attempt < retries { Attempt::Retry } else { value(turn) }, MS)
        });
        let outcome = sample(&Plan::rounds(items, rounds, SEED), &clock, &cancel, &mut source).unwrap();
        let all = items * (rounds * retries) as usize;
        prop_assert_eq!(source.turns.len(), after.min(all));
        prop_assert_eq!(outcome.end == End::Complete, after >= all);
        prop_assert_eq!(outcome.samples.len(), after.min(all) / retries as usize);
    }

    /// What was taken before an interruption and what is taken after it are the whole, in the same order.
    #[test]
    fn a_continued_sampling_takes_what_is_missing(items in 1usize..6, rounds in 1u32..6, cut in 0usize..40) {
        let clock = Manual::default();
        let plan = Plan::rounds(items, rounds, SEED);
        let mut whole = Scripted::new(&clock, |turn| (value(turn), MS));
        run(&plan, &mut whole);
        let (before, rest) = whole.turns.split_at(cut.min(whole.turns.len()));
        // A slot from a damaged or longer run must not count.
        let strange = [Slot { round: rounds + 1, item: 0 }, Slot { round: 1, item: items }];
        let taken: BTreeSet<Slot> = before.iter().map(|(turn, _)| turn.slot).chain(strange).collect();
        let mut source = Scripted::new(&clock, |turn| (value(turn), MS));
        run(&Plan { taken, ..plan }, &mut source);
        prop_assert_eq!(source.slots(), rest.iter().map(|(turn, _)| turn.slot).collect::<Vec<_>>());
    }

    /// An excluded item is not asked for again, keeps its samples, and does not count as short of them.
    #[test]
    fn an_excluded_item_stays_excluded(items in 2usize..6, rounds in 1u32..8, which in 0usize..6, at in 0u32..8) {
        let (clock, which) = (Manual::default(), which % items);
        let mut source = Scripted::new(&clock, |turn: Turn| {
            let excludes = turn.slot.item == which && turn.slot.round >= at;
            (if excludes { Attempt::Exclude(vec![which]) } else { value(turn) }, MS)
        });
        let plan = Plan { warm_up: true, ..Plan::rounds(items, rounds, SEED) };
        let outcome = run(&plan, &mut source);
        let asked = source.slots().iter().filter(|slot| slot.item == which).count() as u32;
        prop_assert_eq!(asked, at.min(rounds) + 1);
        prop_assert_eq!(outcome.by_item()[which].len() as u32, at.saturating_sub(1).min(rounds));
        prop_assert_eq!(outcome.fewest() as u32, rounds);
        prop_assert_eq!(outcome.excluded.is_empty(), at > rounds);
        prop_assert!(outcome.warnings().is_empty());
    }
}
