//! The checker refuses wrong histories, written by hand and recorded from allocators with a fault.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::checker::{Allocator, check};
use super::history::{Call, History, Operation};
use super::recorder::Allocate;
use super::{FIXED, ONE_EACH_OF_TWO, RESIZED, histories};

fn operation(call: Call, invoked: u64, returned: u64) -> Operation {
    Operation {
        call,
        invoked,
        returned,
    }
}

fn take(tag: u32, invoked: u64, returned: u64) -> Operation {
    operation(Call::Take(Some(tag)), invoked, returned)
}

fn miss(invoked: u64, returned: u64) -> Operation {
    operation(Call::Take(None), invoked, returned)
}

fn put(tag: u32, invoked: u64, returned: u64) -> Operation {
    operation(Call::Put(tag), invoked, returned)
}

fn is_accepted(tags: u32, moved: u32, history: History) -> bool {
    check(&history, Allocator::new(tags, tags), moved).is_ok()
}

#[test]
fn overlapping_calls_may_take_effect_in_any_order() {
    // The second thread gets the tag that the first one puts only later in its call.
    assert!(is_accepted(
        1,
        0,
        vec![vec![take(0, 0, 1), put(0, 2, 5)], vec![take(0, 3, 4)]]
    ));
    // No tag was free after the get and before the put.
    assert!(is_accepted(
        1,
        0,
        vec![vec![take(0, 0, 3), put(0, 4, 5)], vec![miss(1, 2)]]
    ));
}

#[test]
fn a_tag_that_two_threads_hold_is_refused() {
    assert!(!is_accepted(
        2,
        0,
        vec![vec![take(0, 0, 1)], vec![take(0, 2, 3)]]
    ));
    // The second get returned before the put was invoked.
    let history = vec![vec![take(0, 0, 1), put(0, 4, 5)], vec![take(0, 2, 3)]];
    assert!(!is_accepted(2, 0, history));
}

#[test]
fn a_tag_that_does_not_exist_is_refused() {
    assert!(!is_accepted(2, 0, vec![vec![take(2, 0, 1)]]));
}

#[test]
fn a_miss_is_refused_while_a_tag_was_free_throughout() {
    assert!(!is_accepted(
        2,
        0,
        vec![vec![take(0, 0, 1)], vec![miss(2, 3)]]
    ));
    // Tag 0 was free from 3 on, tag 1 until 4: there was no moment without a free tag.
    let moves = vec![take(0, 0, 1), put(0, 2, 3), take(1, 4, 5)];
    assert!(!is_accepted(2, 0, vec![moves, vec![miss(3, 6)]]));
}

#[test]
fn a_tag_that_is_lost_is_refused() {
    let history = vec![vec![take(0, 0, 1), put(0, 2, 3), miss(4, 5)]];
    assert!(!is_accepted(1, 0, history));
}

#[test]
fn tags_in_transit_excuse_a_miss_only_while_a_call_overlaps_it() {
    let overlapped = || vec![vec![take(0, 0, 3)], vec![miss(1, 2)]];
    assert!(!is_accepted(3, 1, overlapped()), "two tags stay free");
    assert!(is_accepted(3, 2, overlapped()));
    assert!(!is_accepted(
        2,
        2,
        vec![vec![take(0, 0, 1)], vec![miss(2, 3)]]
    ));
}

#[test]
fn a_tag_above_the_size_is_refused() {
    let resize = operation(Call::Resize(1), 0, 1);
    let initial = Allocator::new(2, 2);
    let late = vec![vec![resize], vec![take(1, 2, 3)]];
    assert!(check(&late, initial, 0).is_err());
    let overlapping = vec![vec![operation(Call::Resize(1), 0, 3)], vec![take(1, 1, 2)]];
    assert!(check(&overlapping, initial, 0).is_ok());
    let grown = vec![vec![
        operation(Call::Resize(2), 0, 1),
        take(0, 2, 3),
        miss(4, 5),
    ]];
    assert!(check(&grown, Allocator::new(1, 2), 0).is_err());
}

/// A flag for each tag, with a fault of choice.
struct Faulty {
    fault: Fault,
    free: [AtomicBool; TAGS as usize],
    size: AtomicU32,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// A tag is taken by a load and a store.
    TornTake,
    /// One pass over the tags decides that none is free.
    OnePass,
    /// A put is forgotten now and then.
    LostPut,
    /// A get reads the size once and does not see that it changed.
    StaleSize,
}

const TAGS: u32 = 8;

/// Recording ends with the first history that is refused.
const FAULT_IS_FOUND_WITHIN: Duration = Duration::from_secs(120);

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            free: std::array::from_fn(|_| AtomicBool::new(true)),
            size: AtomicU32::new(TAGS),
        }
    }

    /// Takes a tag that is free.
    fn take(&self, tag: u32) -> bool {
        let free = &self.free[tag as usize];
        match self.fault {
            Fault::TornTake => {
                let was_free = free.load(Ordering::SeqCst);
                pause();
                was_free && {
                    free.store(false, Ordering::SeqCst);
                    true
                }
            }
            Fault::OnePass => {
                pause();
                free.swap(false, Ordering::SeqCst)
            }
            Fault::LostPut | Fault::StaleSize => free.swap(false, Ordering::SeqCst),
        }
    }
}

/// Leaves time for another thread in between. A yield would leave milliseconds to another process of a busy machine.
fn pause() {
    for _ in 0..fastrand::u32(..20) {
        std::hint::spin_loop();
    }
}

impl Allocate for Faulty {
    fn try_take(&self) -> Option<u32> {
        let size = self.size.load(Ordering::SeqCst);
        if self.fault == Fault::StaleSize {
            pause();
        }
        let first = fastrand::u32(..size);
        (first..size).chain(0..first).find(|&tag| self.take(tag))
    }

    fn take_timeout(&self, _: Duration) -> Option<u32> {
        self.try_take()
    }

    fn put(&self, tag: u32) {
        if self.fault == Fault::LostPut && tag == 0 && fastrand::u8(..20) == 0 {
            return;
        }
        self.free[tag as usize].store(true, Ordering::SeqCst);
    }

    fn resize(&self, tags: u32) {
        self.size.store(tags, Ordering::SeqCst);
    }
}

fn finds(fault: Fault, plan: super::Plan, size: u32) -> bool {
    let allocator = Faulty::new(fault);
    histories(&allocator, plan, (size, TAGS), 0, FAULT_IS_FOUND_WITHIN).is_err()
}

#[test]
fn a_torn_get_is_found() {
    assert!(finds(Fault::TornTake, FIXED, TAGS));
}

#[test]
fn a_miss_after_one_pass_is_found() {
    assert!(finds(Fault::OnePass, ONE_EACH_OF_TWO, 2));
}

#[test]
fn a_lost_put_is_found() {
    assert!(finds(Fault::LostPut, FIXED, 2));
}

#[test]
fn a_size_that_was_read_once_is_found() {
    assert!(finds(Fault::StaleSize, RESIZED, 2));
}
