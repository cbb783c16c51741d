//! Schedules of the gate in front of the caches, by loom: `auto.rs` as it runs, over a word of bits and over sequences
//! that commit or start again.
//!
//! Bounds: 2 threads on the same or on two CPUs, 1 to 3 tags, at most 3 preemptions (switches away from a thread that could go on), 2 where restarts are
//! refused and in the small forms of long models.
//! Each atomic is sequentially consistent here, which loom's loads are not: a load is an addition of 0.

use loom::sync::Arc;
use loom::thread;

use crate::auto::Auto;
use crate::caches::{Caches, Refused, refuse, run_on};

/// Fewer tags are never cached; the others are reserved.
const SIZE: u32 = 16;

fn check(model: impl Fn() + Sync + Send + 'static) {
    check_within(3, model);
}

fn check_within(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// The last `tags` tags of 16 are free, in front of them the caches of two CPUs.
fn auto(tags: u32) -> Arc<Auto> {
    run_on(0);
    let sizes = (SIZE - tags, SIZE, SIZE);
    Arc::new(Auto::new(sizes, Some(Caches::new(2)), (2, 2)))
}

fn take(auto: &Auto) -> Option<u32> {
    auto.take_cached().or_else(|| auto.take().0)
}

/// Whether it looked at no waiter.
fn put(auto: &Auto, tag: u32) -> bool {
    let is_cached = auto.put_cached(tag);
    if !is_cached {
        auto.put(tag);
    }
    is_cached
}

fn on_cpu<T: 'static>(
    cpu: usize,
    auto: &Arc<Auto>,
    run: impl FnOnce(&Auto) -> T + 'static,
) -> thread::JoinHandle<T> {
    let auto = auto.clone();
    thread::spawn(move || {
        run_on(cpu);
        run(&auto)
    })
}

fn take_all(auto: &Auto) -> Vec<u32> {
    let mut all: Vec<u32> = std::iter::from_fn(|| take(auto)).collect();
    all.sort_unstable();
    all
}

/// Takes and puts; the model of the words and caches finds a tag that is put twice.
fn cycle(auto: &Auto) {
    for _ in 0..2 {
        if let Some(tag) = take(auto) {
            put(auto, tag);
        }
    }
}

#[test]
fn no_tag_is_lost_or_twice_on_two_cpus() {
    check(|| {
        let auto = auto(2);
        let other = on_cpu(1, &auto, cycle);
        cycle(&auto);
        other.join().unwrap();
        assert_eq!(take_all(&auto), [14, 15]);
    });
}

fn no_tag_is_lost_or_twice_on_one_cpu(preemptions: usize) {
    check_within(preemptions, || {
        let auto = auto(2);
        let other = on_cpu(0, &auto, cycle);
        cycle(&auto);
        other.join().unwrap();
        assert_eq!(take_all(&auto), [14, 15]);
    });
}

#[test]
fn a_get_finds_the_tag_that_is_always_free_in_another_cache() {
    check(|| {
        let auto = auto(2);
        let both = [take(&auto).unwrap(), take(&auto).unwrap()];
        both.into_iter().for_each(|tag| {
            put(&auto, tag);
        });
        let other = on_cpu(1, &auto, |auto| take(auto).is_some());
        if let Some(tag) = auto.take_cached() {
            put(&auto, tag);
        }
        assert!(other.join().unwrap());
    });
}

#[test]
fn a_waiter_finds_the_tag_or_is_seen() {
    check(|| {
        let auto = auto(1);
        let tag = take(&auto).unwrap();
        let waiter = on_cpu(1, &auto, |auto| {
            auto.revoke();
            let tag = take(auto);
            tag.inspect(|_| auto.calm())
        });
        let is_cached = put(&auto, tag);
        let found = waiter.join().unwrap();
        assert!(found.is_some() || !is_cached, "the waiter sleeps for ever");
    });
}

/// While the caches open, a put that saw them closed may end in the words, where a get has found no tag before.
fn a_get_finds_the_tag_that_came_into_the_words_while_the_gate_opened(preemptions: usize) {
    check_within(preemptions, || {
        let auto = auto(2);
        let both = [take(&auto).unwrap(), take(&auto).unwrap()];
        auto.revoke();
        auto.calm();
        let other = on_cpu(1, &auto, move |auto| {
            put(auto, both[1]);
        });
        put(&auto, both[0]);
        let first = take(&auto);
        let second = take(&auto);
        other.join().unwrap();
        let rest = take_all(&auto);
        let found = first.into_iter().chain(second).chain(rest);
        assert_eq!(found.count(), 2);
    });
}

/// A get that saw the caches closed searches again if they opened since: the tag that is always free may be in one by then.
#[test]
fn a_get_finds_the_tag_that_came_into_a_cache_while_it_searched() {
    check(|| {
        let auto = auto(2);
        let tag = take(&auto).unwrap();
        auto.revoke();
        auto.calm();
        let other = on_cpu(1, &auto, move |auto| {
            put(auto, tag);
            if let Some(tag) = take(auto) {
                put(auto, tag);
            }
            run_on(0);
            take(auto)
        });
        let found = take(&auto);
        let last = other.join().unwrap();
        assert!(found.is_some());
        let rest = take_all(&auto);
        assert_eq!(found.into_iter().chain(last).chain(rest).count(), 2);
    });
}

/// Four CPUs cache, where shares for two were expected.
#[test]
fn caches_hold_at_most_half_of_the_tags() {
    check(|| {
        run_on(0);
        let auto = Auto::new((0, SIZE, SIZE), Some(Caches::new(4)), (4, 2));
        let held = take_all(&auto);
        for (tags, cpu) in held.chunks(4).zip(0..) {
            run_on(cpu);
            tags.iter().for_each(|tag| {
                put(&auto, *tag);
            });
        }
        let cached = (0..4).map(|cpu| {
            run_on(cpu);
            std::iter::from_fn(|| auto.take_cached()).count() as u32
        });
        let cached: u32 = cached.sum();
        assert!((1..=SIZE / 2).contains(&cached), "{cached} tags");
    });
}

#[test]
fn caches_stay_closed_while_somebody_waits() {
    check(|| {
        let auto = auto(2);
        let tag = take(&auto).unwrap();
        auto.revoke();
        let other = on_cpu(1, &auto, cycle);
        assert!(!put(&auto, tag));
        other.join().unwrap();
        auto.calm();
        assert_eq!(take_all(&auto), [14, 15]);
    });
}

/// To one thread, while the other still has what the kernel granted.
#[test]
fn no_tag_is_lost_or_twice_when_restarts_are_refused() {
    for what in [Refused::Restarts, Refused::RestartsAndVisits] {
        check_within(2, move || {
            let auto = auto(2);
            let both = [take(&auto).unwrap(), take(&auto).unwrap()];
            both.into_iter().for_each(|tag| {
                put(&auto, tag);
            });
            let other = on_cpu(1, &auto, move |auto| {
                refuse(what);
                cycle(auto);
            });
            cycle(&auto);
            other.join().unwrap();
            assert_eq!(take_all(&auto), [14, 15]);
        });
    }
}

/// The tag in the other CPU's cache counts as held until a thread there looks for it.
#[test]
fn a_cache_that_no_thread_may_empty_is_emptied_on_its_cpu() {
    check_within(2, || {
        let auto = auto(2);
        let both = [take(&auto).unwrap(), take(&auto).unwrap()];
        both.into_iter().for_each(|tag| {
            put(&auto, tag);
        });
        let other = on_cpu(1, &auto, |auto| {
            refuse(Refused::RestartsAndVisits);
            cycle(auto);
        });
        refuse(Refused::RestartsAndVisits);
        cycle(&auto);
        other.join().unwrap();
        let mut all = take_all(&auto);
        run_on(1);
        all.append(&mut take_all(&auto));
        all.sort_unstable();
        assert_eq!(all, [14, 15]);
    });
}

#[test]
fn a_tag_above_a_smaller_size_is_not_handed_out() {
    check(|| {
        let auto = auto(2);
        let both = [take(&auto).unwrap(), take(&auto).unwrap()];
        let other = on_cpu(1, &auto, move |auto| {
            both.into_iter().for_each(|tag| {
                put(auto, tag);
            });
        });
        auto.resize(SIZE - 1);
        other.join().unwrap();
        assert_eq!(take_all(&auto), [14]);
        auto.resize(SIZE);
        assert_eq!(take_all(&auto), [15]);
    });
}

/// Tests of one depth: models by name with their number of preemptions.
macro_rules! with_preemptions {
    ($depth:ident: $($name:ident($preemptions:literal),)*) => {
        mod $depth {
            $(
                #[test]
                fn $name() {
                    super::$name($preemptions);
                }
            )*
        }
    };
}

with_preemptions! {
    small:
    no_tag_is_lost_or_twice_on_one_cpu(2),
    a_get_finds_the_tag_that_came_into_the_words_while_the_gate_opened(2),
}

// Seconds each, in the slow tier.
with_preemptions! {
    full_depth:
    no_tag_is_lost_or_twice_on_one_cpu(3),
    a_get_finds_the_tag_that_came_into_the_words_while_the_gate_opened(3),
}
