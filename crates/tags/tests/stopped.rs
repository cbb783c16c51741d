//! A thread whose CPU's cache is full is stopped: another thread gets every free tag. `examples/stopped` measures it for longer.

#![cfg(not(miri))] // A helper process stops the thread.

use std::time::Duration;

use crate::reach::{Moment, measure, quantile};
use crate::variants::{ALL, Variant};

const LENGTH: Duration = Duration::from_millis(400);
/// The goal is 100 us at the 99th percentile; a test on a busy machine leaves room.
const MAX_MEDIAN: Duration = Duration::from_millis(1);

fn assert_reaches(variant: Variant, moment: Moment) {
    let reached =
        measure(variant, 255, moment, LENGTH).expect("a helper may stop a thread (ptrace)");
    assert_eq!(
        reached.fewest, reached.expected,
        "{}: {reached:?}",
        variant.name
    );
    assert_eq!(reached.misses, 0, "{}: {reached:?}", variant.name);
    // A thread that locked a cache may be preempted, under the other policies.
    if variant.is_async_signal_safe() {
        let median = quantile(&reached.longest, 0.5);
        assert!(median < MAX_MEDIAN, "{}: {reached:?}", variant.name);
    }
}

#[test]
fn every_free_tag_is_reached_while_a_thread_is_stopped() {
    for variant in ALL {
        assert_reaches(variant, Moment::Outside);
    }
}

#[test]
fn every_free_tag_is_reached_while_a_thread_is_stopped_inside_a_call() {
    let variants = ALL.into_iter().filter(Variant::is_async_signal_safe);
    for variant in variants {
        assert_reaches(variant, Moment::Inside);
    }
}
