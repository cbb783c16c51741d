//! How often a waiter is passed, at most: the file that runs, with waiters that join the queue and then never run.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use crate::waiters::{Granted, MAX_PASSES, Place, Shared, Supply};

/// Free tags; the last one that was put is taken first.
#[derive(Default)]
struct Free {
    tags: RefCell<Vec<u32>>,
    puts: Cell<u32>,
}

impl Shared for Free {
    fn take(&self) -> (Option<u32>, bool) {
        (self.tags.borrow_mut().pop(), false)
    }

    fn put(&self, tag: u32) -> bool {
        self.puts.set(self.puts.get() + 1);
        self.tags.borrow_mut().push(tag);
        false
    }
}

/// How often a thread that takes and puts tag 0 again and again sees it before a waiter has it.
fn passes(supply: &Supply<Free>) -> u32 {
    let mut passes = 0;
    loop {
        supply.put(0);
        if supply.pool.take().0.is_none() {
            return passes;
        }
        passes += 1;
    }
}

fn granted(supply: &Supply<Free>, place: &Place) -> Option<u32> {
    match supply.poll(place, Waker::noop()) {
        Some(Granted::Tag(tag)) => Some(tag),
        _ => None,
    }
}

#[test]
fn waiters_that_never_run_have_a_tag_after_a_known_number_of_puts() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let places = [(); 5].map(|()| supply.join(1, None));
    for (position, place) in places.iter().enumerate() {
        // One put wakes the waiter.
        assert_eq!(passes(&supply), 1 + MAX_PASSES);
        assert_eq!(granted(&supply, place), Some(0), "waiter {position}");
    }
    assert!(!supply.has_waiters());
}

#[test]
fn tasks_are_never_passed() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let places = [(); 5].map(|()| supply.join(1, Some(Waker::noop().clone())));
    for place in &places {
        assert_eq!(passes(&supply), 0);
        assert_eq!(granted(&supply, place), Some(0));
    }
}

/// Nor does another thread see the tag, which it could take before the waiter.
#[test]
fn a_tag_for_a_task_is_never_free() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let places = [(); 2].map(|()| supply.join(1, Some(Waker::noop().clone())));
    for place in &places {
        supply.put(0);
        assert_eq!(granted(&supply, place), Some(0));
    }
    assert_eq!(supply.pool.puts.get(), 0);
}

/// As long as a waiter is overdue, those before it get their tags without being passed.
#[test]
fn waiters_before_an_overdue_one_are_not_passed() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let threads = [(); 3].map(|()| supply.join(1, None));
    let task = supply.join(1, Some(Waker::noop().clone()));
    for place in threads.iter().chain([&task]) {
        assert_eq!(passes(&supply), 0);
        assert_eq!(granted(&supply, place), Some(0));
    }
}

/// Four tags are put once each: each wakes a waiter of its own, though none of them runs.
#[test]
fn every_tag_wakes_a_waiter() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let places = [(); 4].map(|()| supply.join(1, None));
    supply.put_batch(&[0, 1, 2, 3]);
    for place in places.iter().rev() {
        // Returns at once: its event is set.
        let granted = supply.sleep(place, None);
        assert!(matches!(granted, Some(Granted::Tag(_))));
    }
    assert_eq!(supply.pool.take().0, None);
}

/// As `passes`, for a tag that no waiter was woken for: the one that was is held.
#[test]
fn another_tag_does_not_pass_a_woken_waiter_for_ever() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let place = supply.join(1, None);
    supply.put(0);
    assert_eq!(supply.pool.take().0, Some(0));
    let passed = (0..=MAX_PASSES + 1).take_while(|_| {
        supply.put(1);
        supply.pool.take().0.is_some()
    });
    assert_eq!(passed.count() as u32, MAX_PASSES);
    assert_eq!(granted(&supply, &place), Some(1));
}

/// A tag was put while the only waiter was on its way; it is still free when another one joins.
#[test]
fn a_caller_that_joins_finds_what_was_put_before() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let first = supply.join(1, None);
    supply.put(0);
    assert_eq!(supply.pool.take().0, Some(0));
    supply.put(1);
    let second = supply.join(1, None);
    assert_eq!(granted(&supply, &first), Some(1));
    supply.put(0);
    assert!(matches!(supply.sleep(&second, None), Some(Granted::Tag(0))));
}

/// A tag that is handed to the first leaves no other tag free while the second sleeps.
#[test]
fn a_hand_over_leaves_no_tag_free_while_others_wait() {
    let supply = Supply::new(Free::default(), MAX_PASSES);
    let task = supply.join(1, Some(Waker::noop().clone()));
    let second = supply.join(1, None);
    // As a put that read the mode before the task joined.
    supply.pool.put(1);
    supply.put(0);
    assert_eq!(granted(&supply, &task), Some(0));
    assert!(matches!(supply.sleep(&second, None), Some(Granted::Tag(1))));
}
