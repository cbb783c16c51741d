//! Every order of two or three threads' steps in the caches under locks and in the words with deferred clears, by loom.
//!
//! The files are those of the library; `sync` is loom's. A search that empties a cache, a put to that cache and a take from it are what
//! moves a tag past another thread's search. The number of forced changes of thread has no bound with two threads and is up to three with
//! three.

use std::sync::Arc;

use crate::coarse::Coarse;
use crate::deferred::Deferred;
use crate::locked::{Locked, Search};
use crate::topology::{Cpu, Group, Order, Topology};

fn model(preemptions: Option<usize>, threads: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(threads);
}

/// Caches of up to `tags` / `divisor` tags for three CPUs; every tag is held.
fn locked(search: Search, tags: u32, divisor: u32) -> Arc<Locked> {
    let order = Order::unknown(3);
    let policy = Locked::new(order, search, divisor, (0, tags, tags));
    (0..tags).for_each(|_| assert!(policy.take(0).is_some()));
    Arc::new(policy)
}

/// Runs one on a thread of its own, the other on this one; then every tag is free, once.
fn both<P: Send + Sync + 'static>(
    policy: &Arc<P>,
    one: impl FnOnce(&P) + Send + 'static,
    other: impl FnOnce(&P),
    take: impl Fn(&P) -> Option<u32>,
    tags: u32,
) {
    let one = {
        let policy = policy.clone();
        loom::thread::spawn(move || one(&policy))
    };
    other(policy);
    one.join().expect("it did not panic");
    let mut all: Vec<u32> = std::iter::from_fn(|| take(policy)).collect();
    all.sort_unstable();
    assert_eq!(all, (0..tags).collect::<Vec<_>>());
}

/// One thread holds a tag, puts it and takes one, the other takes one: each finds one of the two at any time.
#[test]
fn no_take_misses_a_tag_that_is_stolen_put_or_taken() {
    for search in [Search::InTurns, Search::NearestFirst] {
        model(None, move || {
            let policy = locked(search, 2, 1);
            policy.put(1, 1);
            let one = |policy: &Locked| {
                policy.put(0, 0);
                let tag = policy.take(0).expect("one is free");
                policy.put(0, tag);
            };
            let other = |policy: &Locked| {
                let tag = policy.take(2).expect("one is free");
                policy.put(2, tag);
            };
            both(&policy, one, other, |policy| policy.take(1), 2);
        });
    }
}

/// A take finds its CPU's cache empty and fills it, while another thread of that CPU puts as many tags as it holds.
#[test]
fn a_cache_is_not_filled_beyond_its_size() {
    const TAGS: u32 = 32;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(1);
    builder.max_branches = 10_000;
    builder.check(|| {
        // Caches of 16, a batch of 8: of 16 tags that one CPU puts, 8 go to the pool.
        let policy = locked(Search::InTurns, TAGS, 2);
        (16..TAGS).for_each(|tag| policy.put(1, tag));
        let put = |policy: &Locked| (0..16).for_each(|tag| policy.put(0, tag));
        let take = |policy: &Locked| {
            let tag = policy.take(0).expect("8 are in the pool");
            policy.put(0, tag);
        };
        both(&policy, put, take, |policy| policy.take(2), TAGS);
    });
}

/// Two threads steal from each other and from a cache that both put to: a put fills it and moves tags to the pool.
#[test]
fn no_take_misses_a_tag_that_is_moved_to_the_pool() {
    model(None, || {
        let policy = locked(Search::NearestFirst, 3, 1);
        policy.put(1, 2);
        policy.put(1, 1);
        let one = |policy: &Locked| {
            policy.put(1, 0);
            let tag = policy.take(0).expect("one is free");
            policy.put(0, tag);
        };
        let other = |policy: &Locked| {
            let tag = policy.take(1).expect("one is free");
            policy.put(1, tag);
        };
        both(&policy, one, other, |policy| policy.take(2), 3);
    });
}

/// Three threads hold at most one tag each; there are three. Two of them steal.
#[test]
fn three_threads_find_three_tags() {
    model(Some(3), || {
        let policy = locked(Search::InTurns, 3, 1);
        policy.put(1, 1);
        policy.put(1, 2);
        let use_one = |policy: &Locked, cpu| {
            let tag = policy.take(cpu).expect("one is free");
            policy.put(cpu, tag);
        };
        let third = {
            let policy = policy.clone();
            loom::thread::spawn(move || use_one(&policy, 2))
        };
        let one = move |policy: &Locked| {
            policy.put(0, 0);
            use_one(policy, 0);
        };
        let second = {
            let policy = policy.clone();
            loom::thread::spawn(move || use_one(&policy, 1))
        };
        one(&policy);
        second.join().expect("it did not panic");
        third.join().expect("it did not panic");
        let mut all: Vec<u32> = std::iter::from_fn(|| policy.take(2)).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

/// A tag above the lowered limit is not handed out later, wherever it was; it comes back when the limit is raised.
#[test]
fn a_lowered_limit_meets_takes_and_puts() {
    model(None, || {
        let policy = locked(Search::NearestFirst, 2, 1);
        policy.put(1, 0);
        let one = |policy: &Locked| {
            policy.put(0, 1);
            if let Some(tag) = policy.take(0) {
                policy.put(0, tag);
            }
        };
        let other = |policy: &Locked| {
            policy.resize(1);
            let tag = policy.take(2);
            assert!(tag.is_none_or(|tag| tag == 0));
            if let Some(tag) = tag {
                policy.put(2, tag);
            }
        };
        both(&policy, one, other, |policy| policy.take(2), 1);
        policy.resize(2);
        assert_eq!(policy.take(0), Some(1));
    });
}

/// Two tags of `capacity` are in use, in two words or in one: bits that are moved are not missed.
#[test]
fn no_take_misses_a_bit_that_is_moved() {
    for capacity in [2, 8] {
        model(None, move || {
            let policy = Deferred::new(4, (0, 2, capacity));
            (0..2).for_each(|_| assert!(policy.take(0).is_some()));
            policy.put(1, 1);
            let policy = Arc::new(policy);
            // Looks at tag 1 first, after it made tag 0 free; the other one looks at tag 0 first.
            let one = |policy: &Deferred| {
                policy.put(0, 0);
                let tag = policy.take(1).expect("one is free");
                policy.put(1, tag);
            };
            let other = |policy: &Deferred| {
                let tag = policy.take(2).expect("one is free");
                policy.put(2, tag);
            };
            both(&policy, one, other, |policy| policy.take(3), 2);
        });
    }
}

/// As with the caches: a tag that is taken from one group, or line of a group, and put to another is not missed.
#[test]
fn no_take_misses_a_tag_of_another_line() {
    for nodes in [[0, 1], [0, 0]] {
        model(None, move || {
            let cpu = |core: usize| {
                Some(Cpu {
                    core: core as u32,
                    node: nodes[core],
                    ..Cpu::default()
                })
            };
            let topology = Topology {
                cpus: (0..2).map(cpu).collect(),
                distances: vec![vec![10, 20], vec![20, 10]],
            };
            let policy = Coarse::new(&topology, Group::Node, (0, 2, 2));
            (0..2).for_each(|_| assert!(policy.take(0).is_some()));
            policy.put(1, 1);
            let policy = Arc::new(policy);
            // Puts where the other one has looked already, and takes where it has not.
            let one = |policy: &Coarse| {
                policy.put(0, 0);
                let tag = policy.take(1).expect("one is free");
                policy.put(1, tag);
            };
            let other = |policy: &Coarse| {
                let tag = policy.take(0).expect("one is free");
                policy.put(0, tag);
            };
            both(&policy, one, other, |policy| policy.take(1), 2);
        });
    }
}

/// Used by the holder of the only tag: loom reports an access that is not ordered after that of the holder before.
#[derive(Default)]
struct Counter(loom::cell::UnsafeCell<u32>);

// SAFETY: only the holder of the tag uses it.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

impl Counter {
    fn count(&self) {
        // SAFETY: the caller holds the tag; loom checks it.
        self.0.with_mut(|count| unsafe { *count += 1 });
    }
}

/// Two threads; this one holds tag 0 at first.
fn hand_over<P: Send + Sync + 'static>(
    policy: P,
    take: fn(&P, usize) -> Option<u32>,
    put: fn(&P, usize, u32),
) {
    assert_eq!(take(&policy, 0), Some(0));
    let shared = Arc::new((policy, Counter::default()));
    let use_one = move |(policy, counter): &(P, Counter), cpu| {
        if let Some(tag) = take(policy, cpu) {
            counter.count();
            put(policy, cpu, tag);
        }
    };
    let other = {
        let shared = shared.clone();
        loom::thread::spawn(move || use_one(&shared, 1))
    };
    shared.1.count();
    put(&shared.0, 0, 0);
    use_one(&shared, 0);
    other.join().expect("it did not panic");
}

#[test]
fn a_holder_sees_what_the_one_before_wrote() {
    let limits = (0, 1, 1);
    for search in [Search::InTurns, Search::NearestFirst] {
        model(None, move || {
            let policy = Locked::new(Order::unknown(2), search, 1, limits);
            hand_over(policy, Locked::take, Locked::put);
        });
    }
    model(None, move || {
        hand_over(Deferred::new(2, limits), Deferred::take, Deferred::put);
    });
    model(None, move || {
        let topology = Topology {
            cpus: vec![Some(Cpu::default()); 2],
            distances: vec![vec![10]],
        };
        let policy = Coarse::new(&topology, Group::Node, limits);
        hand_over(policy, Coarse::take, Coarse::put);
    });
}
