//! A thread whose CPU's cache is full is stopped: another thread gets every free tag. `examples/stopped` measures how long that
//! takes.

#![cfg(not(miri))] // A helper process stops the thread.

use std::time::Duration;

use crate::reach::{Moment, measure, quantile};
use crate::variants::{ALL, BITMAP, Variant};

const LENGTH: Duration = Duration::from_millis(100);

/// Returns the median of the longest times for a tag.
fn assert_reaches(variant: Variant, moment: Moment, length: Duration) -> Duration {
    let reached =
        measure(variant, 255, moment, length).expect("a helper may stop a thread (ptrace)");
    assert_eq!(
        reached.fewest, reached.expected,
        "{}: {reached:?}",
        variant.name
    );
    assert_eq!(reached.misses, 0, "{}: {reached:?}", variant.name);
    quantile(&reached.longest, 0.5)
}

#[test]
fn every_free_tag_is_reached_while_a_thread_is_stopped() {
    for variant in ALL {
        assert_reaches(variant, Moment::Outside, LENGTH);
    }
}

#[test]
fn every_free_tag_is_reached_while_a_thread_is_stopped_inside_a_call() {
    let variants = ALL.into_iter().filter(Variant::is_async_signal_safe);
    for variant in variants {
        assert_reaches(variant, Moment::Inside, LENGTH);
    }
}

/// In the slow tier: it compares times. These policies lock nothing, so a thread reaches each tag of a stopped one almost as soon
/// as one of a policy that has no caches.
#[test]
fn a_tag_of_a_stopped_thread_comes_almost_as_soon_as_any_other() {
    let seconds = |variant, moment| assert_reaches(variant, moment, 4 * LENGTH).as_secs_f64();
    let reference = seconds(BITMAP, Moment::Outside);
    for variant in ALL.into_iter().filter(Variant::is_async_signal_safe) {
        for moment in [Moment::Outside, Moment::Inside] {
            let median = seconds(variant, moment);
            let name = variant.name;
            println!("{name}, {moment:?}: {median:.2e} s, without caches {reference:.2e} s");
            assert!(
                median < 100.0 * reference,
                "{name}, {moment:?}: {median} s, {reference} s"
            );
        }
    }
}
