//! How often a waiter is passed, at most: the file that runs, with waiters that join the queue and then never run.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use crate::queue::{Granted, Place, Shared};
use crate::waiters::{MAX_PASSES, Waiters};

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

    fn is_retired(&self, _: u32) -> bool {
        false
    }

    fn revoke(&self) {}

    fn calm(&self) {}
}

/// How often a thread that takes and puts tag 0 again and again sees it before a waiter has it.
fn passes(waiters: &Waiters, free: &Free) -> u32 {
    let mut passes = 0;
    loop {
        waiters.put(0, free);
        if free.take().0.is_none() {
            return passes;
        }
        passes += 1;
    }
}

fn granted(waiters: &Waiters, place: &Place, free: &Free) -> Option<u32> {
    match waiters.poll(place, Waker::noop(), free) {
        Some(Granted::Tag(tag)) => Some(tag),
        _ => None,
    }
}

#[test]
fn waiters_that_never_run_have_a_tag_after_a_known_number_of_puts() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let places = [(); 5].map(|()| waiters.join(1, None, &free));
    for (position, place) in places.iter().enumerate() {
        // One put wakes the waiter.
        assert_eq!(passes(&waiters, &free), 1 + MAX_PASSES);
        assert_eq!(
            granted(&waiters, place, &free),
            Some(0),
            "waiter {position}"
        );
    }
    assert!(!waiters.has_waiters());
}

#[test]
fn tasks_are_never_passed() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let places = [(); 5].map(|()| waiters.join(1, Some(Waker::noop().clone()), &free));
    for place in &places {
        assert_eq!(passes(&waiters, &free), 0);
        assert_eq!(granted(&waiters, place, &free), Some(0));
    }
}

/// Nor does another thread see the tag, which it could take before the waiter.
#[test]
fn a_tag_for_a_task_is_never_free() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let places = [(); 2].map(|()| waiters.join(1, Some(Waker::noop().clone()), &free));
    for place in &places {
        waiters.put(0, &free);
        assert_eq!(granted(&waiters, place, &free), Some(0));
    }
    assert_eq!(free.puts.get(), 0);
}

/// As long as a waiter is overdue, those before it get their tags without being passed.
#[test]
fn waiters_before_an_overdue_one_are_not_passed() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let threads = [(); 3].map(|()| waiters.join(1, None, &free));
    let task = waiters.join(1, Some(Waker::noop().clone()), &free);
    for place in threads.iter().chain([&task]) {
        assert_eq!(passes(&waiters, &free), 0);
        assert_eq!(granted(&waiters, place, &free), Some(0));
    }
}

/// Four tags are put once each: each wakes a waiter of its own, though none of them runs.
#[test]
fn every_tag_wakes_a_waiter() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let places = [(); 4].map(|()| waiters.join(1, None, &free));
    waiters.put_batch(&[0, 1, 2, 3], &free);
    for place in places.iter().rev() {
        // Returns at once: its event is set.
        let granted = waiters.sleep(place, None, &free);
        assert!(matches!(granted, Some(Granted::Tag(_))));
    }
    assert_eq!(free.take().0, None);
}

/// As `passes`, for a tag that no waiter was woken for: the one that was is held.
#[test]
fn another_tag_does_not_pass_a_woken_waiter_for_ever() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let place = waiters.join(1, None, &free);
    waiters.put(0, &free);
    assert_eq!(free.take().0, Some(0));
    let passed = (0..=MAX_PASSES + 1).take_while(|_| {
        waiters.put(1, &free);
        free.take().0.is_some()
    });
    assert_eq!(passed.count() as u32, MAX_PASSES);
    assert_eq!(granted(&waiters, &place, &free), Some(1));
}

/// A tag was put while the only waiter was on its way; it is still free when another one joins.
#[test]
fn a_caller_that_joins_finds_what_was_put_before() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let first = waiters.join(1, None, &free);
    waiters.put(0, &free);
    assert_eq!(free.take().0, Some(0));
    waiters.put(1, &free);
    let second = waiters.join(1, None, &free);
    assert_eq!(granted(&waiters, &first, &free), Some(1));
    waiters.put(0, &free);
    assert!(matches!(
        waiters.sleep(&second, None, &free),
        Some(Granted::Tag(0))
    ));
}

/// A tag that is handed to the first leaves no other tag free while the second sleeps.
#[test]
fn a_hand_over_leaves_no_tag_free_while_others_wait() {
    let (waiters, free) = (Waiters::new(MAX_PASSES), Free::default());
    let task = waiters.join(1, Some(Waker::noop().clone()), &free);
    let second = waiters.join(1, None, &free);
    // As a put that read the mode before the task joined.
    free.put(1);
    waiters.put(0, &free);
    assert_eq!(granted(&waiters, &task, &free), Some(0));
    assert!(matches!(
        waiters.sleep(&second, None, &free),
        Some(Granted::Tag(1))
    ));
}
