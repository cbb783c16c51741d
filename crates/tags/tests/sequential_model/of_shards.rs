//! Schedules of the words of bits in shards, by loom: `shards.rs` and `word.rs` as they run.
//!
//! Bounds: 2 threads, 2 or 3 tags in 2 shards of a block of 8 words, at most 2 preemptions (switches away from a thread that could go
//! on). Each atomic is sequentially consistent here, which loom's loads are not: a load is an addition of 0.

use loom::sync::Arc;
use loom::thread;

use crate::real_shards::Shards;

/// The tags are below it; some are in another word than others.
const CAPACITY: u32 = 64;

/// Runs one on a thread of its own, the other on this one, where these tags are free; then they are, once, in whatever shard.
fn model(preemptions: usize, tags: &'static [u32], one: fn(&Shards), other: fn(&Shards)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        let shards = Arc::new(Shards::with_shards(CAPACITY, 2));
        tags.iter().for_each(|&tag| {
            shards.put(tag, 0);
        });
        let of_one = shards.clone();
        let thread = thread::spawn(move || one(&of_one));
        other(&shards);
        thread.join().unwrap();
        assert_eq!(shards.free(0..CAPACITY), tags.len() as u32);
        let mut all: Vec<u32> = std::iter::from_fn(|| shards.take(CAPACITY, 1)).collect();
        all.sort_unstable();
        assert_eq!(all, tags);
    });
}

/// Moves both tags into the other shard, one after the other, past the search of another thread.
fn move_both(shards: &Shards) {
    for _ in 0..2 {
        if let Some(tag) = shards.take(CAPACITY, 0) {
            shards.put(tag, 1);
        }
    }
}

#[test]
fn a_take_finds_the_tag_that_is_always_free() {
    model(2, &[0, 40], move_both, |shards| {
        let tag = shards.take(CAPACITY, 1).expect("one is free");
        shards.put(tag, 1);
    });
}

#[test]
fn a_pass_says_that_no_tag_is_free_only_if_none_was() {
    model(2, &[0, 40], move_both, |shards| {
        let before = shards.pass(CAPACITY);
        let is_empty = before.is_some() && shards.pass(CAPACITY) == before;
        assert!(!is_empty, "one was free");
    });
}

#[test]
fn some_tags_are_moved_while_one_is_always_free() {
    fn move_some(shards: &Shards) {
        let Ok(moved) = shards.take_some(CAPACITY, 0, 2) else {
            panic!("one is free");
        };
        assert!(!moved.tags().is_empty() && moved.tags().len() <= 2);
        shards.put_all(moved.tags(), 1);
        shards.put_all(&[shards.take(CAPACITY, 0).expect("one is free")], 1);
    }
    model(2, &[0, 1, 40], move_some, |shards| {
        let tag = shards.take(CAPACITY, 1).expect("one is free");
        shards.put(tag, 1);
    });
    model(2, &[0, 1, 40], move_some, |shards| {
        assert!(shards.take_some(CAPACITY, 1, 1).is_ok_and(|mut moved| {
            moved.pop().inspect(|&tag| {
                shards.put(tag, 1);
            });
            moved.tags().is_empty()
        }));
    });
}

#[test]
fn tags_above_the_limit_are_not_taken() {
    model(2, &[0, 40], move_both, |shards| {
        let tag = shards.take(40, 1);
        assert!(matches!(tag, None | Some(0)));
        tag.into_iter().for_each(|tag| {
            shards.put(tag, 1);
        });
        if let Ok(moved) = shards.take_some(40, 0, 2) {
            assert_eq!(moved.tags(), [0]);
            shards.put_all(moved.tags(), 0);
        }
    });
}
