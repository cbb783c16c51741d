//! A tag makes its holder the only user of plain memory: what a holder writes without atomics is seen by the next one.
//!
//! The counts at the end show lost updates. Miri and ThreadSanitizer report a hand-over that does not order the accesses of both
//! holders; the latter cannot see those of restartable sequences.

use std::cell::UnsafeCell;
use std::thread;

use crate::variants::{ALL, Variant};
use nearfar_tags::Tags;

const THREADS: usize = if cfg!(miri) { 2 } else { 4 };
const ROUNDS: usize = if cfg!(miri) { 5 } else { 10_000 };

/// A counter for each tag.
struct Counters(Box<[UnsafeCell<u64>]>);

// SAFETY: only the holder of a tag uses its counter.
unsafe impl Sync for Counters {}

impl Counters {
    /// # Safety
    /// The caller holds the tag.
    unsafe fn count(&self, tag: u32) {
        // SAFETY: the caller holds the tag, and no other thread does: this is what the test is about.
        unsafe { *self.0[tag as usize].get() += 1 };
    }
}

/// How many tags the thread had.
fn work(tags: &Tags, counters: &Counters, first: usize) -> u64 {
    let mut had = 0;
    for round in first..first + ROUNDS {
        let batch = match round % 4 {
            0 => tags.try_get_batch(2),
            1 => tags.get_batch(2).expect("there are two tags"),
            _ => tags.get_batch(1).expect("there is one tag"),
        };
        for &tag in batch.numbers() {
            // SAFETY: the batch holds it.
            unsafe { counters.count(tag) };
        }
        had += batch.numbers().len() as u64;
        let tag = if round % 2 == 0 { tags.try_get() } else { None };
        drop(batch);
        let tag = tag.unwrap_or_else(|| tags.get());
        // SAFETY: the guard holds it.
        unsafe { counters.count(tag.number()) };
        had += 1;
    }
    had
}

fn assert_exclusive(variant: Variant, size: u32) {
    let tags = variant.builder(size).build().expect("the size is possible");
    let counters = Counters((0..size).map(|_| UnsafeCell::new(0)).collect());
    let had: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| {
                scope.spawn({
                    let (tags, counters) = (&tags, &counters);
                    move || work(tags, counters, first)
                })
            })
            .collect();
        let had = threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"));
        had.sum()
    });
    let counted: u64 = counters.0.into_iter().map(UnsafeCell::into_inner).sum();
    assert_eq!(counted, had, "{}: {size} tags", variant.name);
}

#[test]
fn a_holder_sees_what_the_one_before_wrote() {
    for variant in ALL {
        for size in [2, 24] {
            assert_exclusive(variant, size);
        }
    }
}
