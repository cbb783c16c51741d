//! The number of tags changes while callers hold tags and wait for more.

use std::thread;
use std::time::Duration;

use nearfar_tags::{Cpu, Group, Policy, Tags, Topology};

/// An allocator of each policy.
fn each(tags: u32, capacity: u32, reserved: u32) -> impl Iterator<Item = Tags> {
    let policies = [
        Policy::Stock,
        Policy::Limit,
        Policy::LimitTopology,
        Policy::Coarse(Group::Node),
        Policy::Bitmap,
        Policy::Auto,
    ];
    policies.into_iter().map(move |policy| {
        let topology = Topology::new(vec![Some(Cpu::default()); 4], vec![vec![10]]);
        let builder = Tags::builder(tags).capacity(capacity).reserved(reserved);
        builder.policy(policy).topology(topology).build().unwrap()
    })
}

fn wait_for_waits(tags: &Tags, count: u64) {
    while tags.statistics().waits < count {
        thread::yield_now();
    }
}

#[test]
fn a_lower_number_says_how_many_tags_above_it_are_held() {
    for tags in each(64, 100, 0) {
        let policy = tags.policy();
        let held: Vec<_> = (0..64).map(|_| tags.try_get().unwrap()).collect();
        assert_eq!(tags.resize(10), Ok(54), "{policy:?}");
        assert!(tags.try_get().is_none(), "{policy:?}");
        drop(held);
        assert_eq!(tags.resize(10), Ok(0), "{policy:?}");
        let low: Vec<_> = (0..10).map(|_| tags.try_get().unwrap()).collect();
        assert!(low.iter().all(|tag| tag.number() < 10), "{policy:?}");
        assert!(tags.try_get().is_none(), "{policy:?}");
        assert_eq!(tags.resize(100), Ok(0), "{policy:?}");
        assert_eq!(tags.try_get_batch(200).numbers().len(), 90, "{policy:?}");
    }
}

#[test]
fn new_tags_go_to_all_waiters() {
    for tags in each(1, 8, 0) {
        let first = tags.get();
        thread::scope(|scope| {
            let get = || tags.get().into_number();
            let waiters = [(); 5].map(|()| scope.spawn(get));
            wait_for_waits(&tags, 5);
            tags.resize(8).unwrap();
            let mut numbers = waiters.map(|waiter| waiter.join().unwrap());
            numbers.sort_unstable();
            assert!(numbers.windows(2).all(|two| two[0] < two[1]), "{numbers:?}");
            tags.put_batch(&numbers);
        });
        drop(first);
        assert_eq!(tags.free(), 8);
    }
}

/// A tag above the limit is not handed over to who waits for one.
#[test]
fn a_waiter_is_not_given_a_tag_above_the_limit() {
    for tags in each(4, 4, 0) {
        let policy = tags.policy();
        let mut held: Vec<_> = (0..4).map(|_| tags.get()).collect();
        held.sort_unstable_by_key(|tag| tag.number());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| tags.get().number());
            wait_for_waits(&tags, 1);
            assert_eq!(tags.resize(1), Ok(3), "{policy:?}");
            held.truncate(1);
            thread::sleep(Duration::from_millis(2));
            assert!(!waiter.is_finished(), "{policy:?}");
            held.clear();
            assert_eq!(waiter.join().unwrap(), 0, "{policy:?}");
        });
    }
}

#[test]
fn a_batch_comes_at_once_or_not_at_all() {
    for tags in each(10, 10, 2) {
        let policy = tags.policy();
        assert!(tags.get_batch(9).is_none(), "{policy:?}: two are reserved");
        assert_eq!(tags.get_batch(0).unwrap().numbers().len(), 0);
        let all = tags.get_batch(8).unwrap();
        let nothing = tags.get_batch_timeout(3, Duration::from_millis(2));
        assert!(nothing.is_none(), "{policy:?}");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| tags.get_batch(8).map(|batch| batch.numbers().len()));
            wait_for_waits(&tags, 2);
            drop(all);
            assert_eq!(waiter.join().unwrap(), Some(8), "{policy:?}");
        });
        assert_eq!(tags.free(), 8, "{policy:?}");
    }
}

#[test]
fn a_batch_that_became_too_large_ends_its_wait() {
    for tags in each(8, 8, 0) {
        let held = tags.get_batch(2).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| tags.get_batch(8).is_none());
            wait_for_waits(&tags, 1);
            tags.resize(4).unwrap();
            assert!(waiter.join().unwrap());
        });
        drop(held);
        assert_eq!(tags.free(), 4);
    }
}

/// A batch that waits was given a tag that a smaller number retires.
#[test]
fn a_batch_has_no_tag_above_the_limit() {
    for tags in each(8, 8, 0) {
        let policy = tags.policy();
        let held = tags.get_batch(8).unwrap().into_numbers();
        assert_eq!(held.len(), 8);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| tags.get_batch(3).unwrap().into_numbers());
            wait_for_waits(&tags, 1);
            tags.put(7);
            assert_eq!(tags.resize(4), Ok(3), "{policy:?}: 4, 5 and 6 are held");
            tags.put(6);
            tags.put_batch(&[0, 1, 2]);
            let mut batch = waiter.join().unwrap();
            batch.sort_unstable();
            assert_eq!(batch, [0, 1, 2], "{policy:?}");
            tags.put_batch(&batch);
        });
        tags.put_batch(&[3, 4, 5]);
        assert_eq!(tags.resize(8), Ok(0));
        assert_eq!(tags.try_get_batch(9).numbers().len(), 8, "{policy:?}");
    }
}

/// Callers that hold nothing while they want batches of more than half of the tags.
#[test]
fn batches_do_not_wait_for_each_other() {
    for tags in each(8, 8, 0) {
        thread::scope(|scope| {
            for wanted in [5, 6, 7, 8, 1, 2] {
                let tags = &tags;
                scope.spawn(move || {
                    for _ in 0..300 {
                        let batch = tags.get_batch(wanted).unwrap();
                        assert_eq!(batch.numbers().len(), wanted);
                    }
                });
            }
        });
        assert_eq!(tags.free(), 8);
    }
}
