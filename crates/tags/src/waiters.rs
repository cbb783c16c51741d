//! Callers that wait for a tag, first come, first served.
//!
//! ```text
//! get: no tag ─► enqueue ─► make cached tags reachable ─► try again ─► sleep
//! put: tag free ─► fence ─► anybody waiting? ─► take a tag for the first ─► hand it over, wake it
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::thread::Thread;
use std::time::Instant;

use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError, fence};

/// How a waiter is woken.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    Thread(Thread),
    Task(Waker),
}

/// A waiter's entry.
#[derive(Debug)]
pub(crate) struct Entry(Mutex<State>);

#[derive(Debug)]
enum State {
    Waiting(Wake),
    Given(u32),
    Ended,
}

#[derive(Default)]
pub(crate) struct Waiters {
    queue: Mutex<VecDeque<Arc<Entry>>>,
    /// Entries of the queue; changed under its lock.
    count: AtomicUsize,
    waits: AtomicU64,
    hand_overs: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiters {
    /// Takes part in the queue. The caller tries once more before it sleeps.
    pub(crate) fn enqueue(&self, wake: Wake) -> Arc<Entry> {
        let entry = Arc::new(Entry(Mutex::new(State::Waiting(wake))));
        let mut queue = lock(&self.queue);
        queue.push_back(entry.clone());
        self.count.store(queue.len(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.waits.fetch_add(1, Ordering::Relaxed);
        entry
    }

    /// After a tag was made free: gives the first waiters what `take` finds.
    #[inline]
    pub(crate) fn serve(&self, take: impl Fn() -> Option<u32>) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) != 0 {
            self.serve_waiters(take);
        }
    }

    #[cold]
    fn serve_waiters(&self, take: impl Fn() -> Option<u32>) {
        let mut queue = lock(&self.queue);
        while !queue.is_empty() {
            let Some(tag) = take() else { break };
            let Some(entry) = queue.pop_front() else {
                break;
            };
            self.count.store(queue.len(), Ordering::SeqCst);
            self.hand_overs.fetch_add(1, Ordering::Relaxed);
            let before = std::mem::replace(&mut *lock(&entry.0), State::Given(tag));
            match before {
                State::Waiting(Wake::Thread(thread)) => thread.unpark(),
                State::Waiting(Wake::Task(waker)) => waker.wake(),
                State::Given(_) | State::Ended => unreachable!("an entry of the queue waits"),
            }
        }
    }

    /// Ends a wait: the tag that was handed over meanwhile.
    pub(crate) fn leave(&self, entry: &Arc<Entry>) -> Option<u32> {
        let mut queue = lock(&self.queue);
        queue.retain(|other| !Arc::ptr_eq(other, entry));
        self.count.store(queue.len(), Ordering::SeqCst);
        match std::mem::replace(&mut *lock(&entry.0), State::Ended) {
            State::Given(tag) => Some(tag),
            State::Waiting(_) | State::Ended => None,
        }
    }

    /// The tag that was handed over, or sets how the waiter is woken.
    pub(crate) fn poll(&self, entry: &Arc<Entry>, wake: Wake) -> Option<u32> {
        let mut state = lock(&entry.0);
        match &mut *state {
            State::Given(tag) => {
                let tag = *tag;
                *state = State::Ended;
                Some(tag)
            }
            waiting => {
                *waiting = State::Waiting(wake);
                None
            }
        }
    }

    /// Sleeps until a tag is handed over.
    pub(crate) fn sleep(&self, entry: &Arc<Entry>, deadline: Option<Instant>) -> Option<u32> {
        loop {
            if let Some(tag) = self.poll(entry, Wake::Thread(std::thread::current())) {
                return Some(tag);
            }
            match deadline {
                None => std::thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return self.leave(entry);
                    }
                    std::thread::park_timeout(left);
                }
            }
        }
    }

    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    pub(crate) fn hand_overs(&self) -> u64 {
        self.hand_overs.load(Ordering::Relaxed)
    }
}
