//! Callers that wait: order, deadlines, wake-ups.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nearfar_tags::{Policy, Tags};

/// Waits until `count` callers have joined the queue since the allocator was made.
fn wait_for_waits(tags: &Tags, count: u64) {
    while tags.statistics().waits < count {
        thread::yield_now();
    }
}

#[test]
fn a_put_ends_a_wait() {
    let tags = Tags::new(1).unwrap();
    let tag = tags.get();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| tags.get().number());
        wait_for_waits(&tags, 1);
        drop(tag);
        assert_eq!(waiter.join().unwrap(), 0);
    });
    assert_eq!(tags.free(), 1);
}

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    const WAITERS: u64 = 6;
    let tags = Tags::new(1).unwrap();
    let tag = tags.get();
    let (send, receive) = channel();
    thread::scope(|scope| {
        for index in 0..WAITERS {
            let (tags, send) = (&tags, send.clone());
            scope.spawn(move || {
                let tag = tags.get();
                send.send(index).unwrap();
                drop(tag);
            });
            wait_for_waits(tags, index + 1);
        }
        drop(tag);
    });
    drop(send);
    let order: Vec<_> = receive.iter().collect();
    assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
}

#[test]
fn a_deadline_ends_a_wait_and_loses_nothing() {
    let tags = Tags::new(1).unwrap();
    let tag = tags.get();
    assert!(tags.get_timeout(Duration::ZERO).is_none());
    let before = Instant::now();
    assert!(tags.get_timeout(Duration::from_millis(20)).is_none());
    assert!(before.elapsed() >= Duration::from_millis(20));
    drop(tag);
    assert_eq!(tags.get_timeout(Duration::MAX).unwrap().number(), 0);
    assert_eq!(tags.free(), 1);
}

/// Deadlines and puts meet: whoever wins, the tag is somewhere.
#[test]
fn deadlines_that_race_with_puts_lose_nothing() {
    const WAITS: u32 = 5000;
    let tags = Tags::new(2).unwrap();
    let got = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..6_u64 {
            let (tags, got) = (&tags, &got);
            scope.spawn(move || {
                let mut state = seed;
                for _ in 0..WAITS {
                    state = state
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(seed | 1);
                    let timeout = Duration::from_nanos((state >> 40) & 0x1_ffff);
                    if let Some(tag) = tags.get_timeout(timeout) {
                        got.fetch_add(1, Ordering::Relaxed);
                        std::hint::black_box(tag.number());
                    }
                }
            });
        }
    });
    assert!(got.into_inner() > 0);
    assert_eq!(tags.free(), 2);
}

/// A wait has its own way to sleep: it neither needs nor uses up the thread's token.
#[test]
fn the_threads_own_token_is_left_alone() {
    let tags = Tags::new(1).unwrap();
    let tag = tags.get();
    let woke = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            tags.take();
            woke.store(true, Ordering::SeqCst);
            // Returns since the token is still there.
            thread::park();
        });
        wait_for_waits(&tags, 1);
        waiter.thread().unpark();
        thread::sleep(Duration::from_millis(5));
        assert!(!woke.load(Ordering::SeqCst));
        drop(tag);
        waiter.join().unwrap();
    });
}

#[test]
fn a_panic_frees_the_tag() {
    let tags = Arc::new(Tags::new(1).unwrap());
    let shared = tags.clone();
    let result = thread::spawn(move || {
        let _tag = shared.get();
        panic!("expected by the test");
    });
    assert!(result.join().is_err());
    assert_eq!(tags.get().number(), 0);
}

/// Every policy: more threads than tags, each in a loop, until all have made all their rounds. A lost wake-up ends in the suite's
/// time limit; two owners of a tag are seen.
#[test]
fn no_wake_up_is_lost() {
    for policy in [Policy::Stock, Policy::Limit, Policy::Bitmap, Policy::Auto] {
        for tags in [1, 3] {
            rounds(policy, tags, 8, 3000);
        }
    }
}

fn rounds(policy: Policy, count: u32, threads: u64, rounds: u64) {
    let tags = Tags::builder(count).policy(policy).build().unwrap();
    let owned: Vec<_> = (0..count).map(|_| AtomicBool::new(false)).collect();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let tag = tags.get();
                    let is_owned = &owned[tag.number() as usize];
                    assert!(!is_owned.swap(true, Ordering::Relaxed), "two owners");
                    is_owned.store(false, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(tags.free(), count);
}
