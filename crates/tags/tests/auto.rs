//! The policy `Auto`: what caches may keep, and that a get finds every tag.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_tags::Tags;

fn both(tags: u32) -> [Tags; 2] {
    let with = Tags::new(tags).unwrap();
    let without = Tags::builder(tags).without_rseq().build().unwrap();
    [with, without]
}

#[test]
fn hands_out_every_tag_once_and_again() {
    for tags in both(255).into_iter().chain(both(1)).chain(both(3000)) {
        for _ in 0..3 {
            let mut taken: Vec<u32> = std::iter::from_fn(|| tags.try_take()).collect();
            taken.sort_unstable();
            assert_eq!(taken, (0..tags.size()).collect::<Vec<_>>());
            assert_eq!(tags.free(), 0);
            taken.into_iter().for_each(|tag| tags.put(tag));
            assert_eq!(tags.free(), tags.size());
        }
    }
}

#[test]
fn no_tag_has_two_holders_and_none_is_lost() {
    for tags in both(40).into_iter().chain(both(255)) {
        let held: Vec<AtomicBool> = (0..tags.size()).map(|_| AtomicBool::new(false)).collect();
        let end = Instant::now() + Duration::from_millis(400);
        thread::scope(|scope| {
            for depth in [1, 9, 60, 200] {
                let (tags, held) = (&tags, &held);
                scope.spawn(move || cycle(tags, held, depth, end));
            }
        });
        let all = std::iter::from_fn(|| tags.try_take()).count();
        assert_eq!(all, tags.size() as usize, "{:?}", tags.statistics());
    }
}

/// Takes up to `depth` tags, puts them, again and again.
fn cycle(tags: &Tags, held: &[AtomicBool], depth: usize, end: Instant) {
    let mut own = Vec::new();
    while Instant::now() < end {
        while own.len() < depth
            && let Some(tag) = tags.try_take()
        {
            assert!(
                !held[tag as usize].swap(true, SeqCst),
                "tag {tag} has two holders"
            );
            own.push(tag);
        }
        for tag in own.drain(..) {
            held[tag as usize].store(false, SeqCst);
            tags.put(tag);
        }
    }
}

#[test]
fn another_thread_gets_what_a_cache_keeps() {
    let tags = Tags::new(64).unwrap();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let some: Vec<u32> = (0..20).filter_map(|_| tags.try_take()).collect();
            some.into_iter().for_each(|tag| tags.put(tag));
            barrier.wait();
            barrier.wait();
        });
        barrier.wait();
        let all: Vec<u32> = std::iter::from_fn(|| tags.try_take()).collect();
        assert_eq!(all.len(), 64);
        barrier.wait();
    });
}

#[test]
fn tags_above_a_smaller_size_are_not_handed_out_again() {
    for tags in both(100) {
        let all: Vec<u32> = std::iter::from_fn(|| tags.try_take()).collect();
        tags.resize(40).unwrap();
        all.into_iter().for_each(|tag| tags.put(tag));
        let mut few: Vec<u32> = std::iter::from_fn(|| tags.try_take()).collect();
        few.sort_unstable();
        assert_eq!(few, (0..40).collect::<Vec<_>>());
        tags.resize(100).unwrap();
        assert_eq!(std::iter::from_fn(|| tags.try_take()).count(), 60);
    }
}
