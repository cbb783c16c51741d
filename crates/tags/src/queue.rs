//! What the protocol of `waiters` works on: free tags, and those who wait for one in the order of their arrival.

use std::collections::VecDeque;
use std::task::Waker;

use crate::sync::{Arc, Event, Mutex, MutexGuard, PoisonError};

/// No caller waits.
pub(crate) const NONE_WAITS: u32 = 0;
/// Callers wait, and none is overdue.
const WAITING: u32 = 1;
/// A caller is overdue.
pub(crate) const OVERDUE: u32 = 2;

/// Free tags that any thread can take.
pub(crate) trait Shared {
    /// A free tag; `None` only if there was a moment without one. Also whether it made other tags free that waiters may not have seen.
    fn take(&self) -> (Option<u32>, bool);
    /// Makes a tag free. Whether it made others free as well, which waiters may not have seen.
    fn put(&self, tag: u32) -> bool;
    /// Whether the tag is not handed out any more.
    fn is_retired(&self, tag: u32) -> bool;
    /// Makes the tags of caches free for any thread, and keeps them so until `calm`.
    fn revoke(&self);
    /// One for each `revoke`.
    fn calm(&self);
}

/// What a wait ended with.
#[derive(Debug)]
pub(crate) enum Granted {
    Tag(u32),
    /// Fewer than wanted if the wait was ended before.
    Batch(Vec<u32>),
}

/// A waiter's place in the queue, for the waiter.
#[derive(Debug)]
pub(crate) struct Place {
    pub id: u64,
    pub grant: Arc<Grant>,
}

#[derive(Debug, Default)]
pub(crate) struct Grant {
    pub event: Event,
    pub granted: Mutex<Option<Granted>>,
}

/// A waiter's place in the queue, for others.
pub(crate) struct Waiter {
    pub id: u64,
    pub wanted: usize,
    pub given: Vec<u32>,
    pub phase: Phase,
    /// Puts that woke no waiter while this one was the first.
    pub passes: u32,
    /// `None`: a thread that sleeps on its event.
    pub waker: Option<Waker>,
    pub grant: Arc<Grant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Asleep,
    /// Woken for this tag, and not yet seen to run.
    Woken(u32),
    Overdue,
}

#[derive(Default)]
pub(crate) struct Queue {
    /// By `id`.
    pub waiters: VecDeque<Waiter>,
    pub overdue: usize,
    pub joined: u64,
    pub hand_overs: u64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Granted {
    pub(crate) fn into_tags(self) -> Vec<u32> {
        match self {
            Self::Tag(tag) => vec![tag],
            Self::Batch(tags) => tags,
        }
    }
}

impl Queue {
    pub(crate) fn mode(&self) -> u32 {
        match (self.waiters.is_empty(), self.overdue) {
            (true, _) => NONE_WAITS,
            (false, 0) => WAITING,
            (false, _) => OVERDUE,
        }
    }

    pub(crate) fn index(&self, id: u64) -> Option<usize> {
        self.waiters
            .binary_search_by_key(&id, |waiter| waiter.id)
            .ok()
    }
}

impl Place {
    /// What was granted.
    pub(crate) fn end(&self, shared: &impl Shared) -> Option<Granted> {
        let granted = lock(&self.grant.granted).take();
        if granted.is_some() {
            shared.calm();
        }
        granted
    }
}
