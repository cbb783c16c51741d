//! Callers that wait for a tag, in the order of their arrival.
//!
//! ```text
//! get: none free ─► spin ─► join the queue ─► revoke caches ─► try again ─► sleep ─► woken: try ─┬─► tag
//!                                                                 ▲                              ▼
//!                                                                 └──────── overdue, keeps its place
//! put: a waiter is overdue ─► hand the tag to the first waiter, no other thread sees it
//!      otherwise ─► make the tag free ─► waiters? ─► wake the next one, unless one was woken for this tag already
//! ```
//!
//! A put that makes the tag free lets a running thread take it again at once, without a context switch, while the woken waiter is on
//! its way. A woken waiter that finds no tag is *overdue*. While there is an overdue waiter, each put hands its tag to the first waiter
//! of the queue. So a waiter that runs when it is woken is passed once; one that does not run is passed at most [`MAX_PASSES`] times by
//! each tag that a waiter was woken for, and is overdue then. Tasks and batches are overdue from the start: a task may be woken long
//! before it is polled.
//!
//! No wake-up is lost:
//! - The first waiter joins (`mode`), then tries; a put makes its tag free, then reads `mode`. A fence stands between both steps of
//!   both, so one of them sees the other.
//! - A put that wakes no waiter because of a record in `woken` relies on the waiter that was woken: it clears its record, then tries.
//! - A waiter that leaves for any reason makes a tag that is free by then visible once more, as a put does (`missed`).

use std::task::Waker;
use std::time::Instant;

use crate::apart::Apart;
use crate::queue::{
    Grant, Granted, NONE_WAITS, OVERDUE, Phase, Place, Queue, Shared, Waiter, lock,
};
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering, fence, fence_after_put};
use crate::wakeups::WakeUps;

/// How often a tag is made free for anyone while a waiter that was woken for it has not run yet.
pub(crate) const MAX_PASSES: u32 = 1000;

/// What became of a tag for the first waiter.
enum HandOver {
    /// No caller waits, or none is overdue, or the tag is retired.
    Refused,
    /// It was given; also a free tag that waiters may have missed.
    Done(Option<u32>),
}

pub(crate) struct Waiters {
    /// Read by each put, on a line that changes only when the queue's state does.
    mode: Apart<AtomicU32>,
    woken: WakeUps,
    queue: Mutex<Queue>,
    max_passes: u32,
}

impl Waiters {
    pub(crate) fn new(max_passes: u32) -> Self {
        Self {
            mode: Apart(AtomicU32::new(NONE_WAITS)),
            woken: WakeUps::new(),
            queue: Mutex::default(),
            max_passes,
        }
    }

    /// A free tag; `None` only if there was a moment without one.
    pub(crate) fn take(&self, shared: &impl Shared) -> Option<u32> {
        let (tag, has_moved) = shared.take();
        if has_moved {
            self.serve(shared);
        }
        tag
    }

    /// Makes a tag free, or hands it to the first waiter.
    #[inline]
    pub(crate) fn put(&self, tag: u32, shared: &impl Shared) {
        if self.mode.0.load(Ordering::Relaxed) == OVERDUE {
            return self.put_overdue(tag, shared);
        }
        let has_moved = shared.put(tag);
        fence_after_put();
        if self.mode.0.load(Ordering::Relaxed) != NONE_WAITS {
            self.announce(tag, shared);
            if has_moved {
                self.serve(shared);
            }
        }
    }

    /// As `put` for each tag, with one look at waiters for all.
    pub(crate) fn put_batch(&self, tags: &[u32], shared: &impl Shared) {
        if self.is_overdue() {
            return tags.iter().for_each(|&tag| self.put(tag, shared));
        }
        let mut has_moved = false;
        for &tag in tags {
            has_moved |= shared.put(tag);
        }
        fence_after_put();
        if self.has_waiters() {
            tags.iter().for_each(|&tag| self.announce(tag, shared));
            if has_moved {
                self.serve(shared);
            }
        }
    }

    /// As `put`, and whatever else that leads to: one after another, since there may be as many as waiters.
    #[cold]
    fn put_overdue(&self, tag: u32, shared: &impl Shared) {
        let (mut next, mut has_moved) = (Some(tag), false);
        while let Some(tag) = next {
            next = match self.hand_over(tag, false, shared) {
                HandOver::Done(missed) => missed,
                HandOver::Refused => {
                    has_moved |= shared.put(tag);
                    fence(Ordering::SeqCst);
                    self.wake_or_retake(tag, shared)
                }
            };
        }
        if has_moved {
            self.serve(shared);
        }
    }

    /// A tag was made free while a caller waits: sees to it that a waiter tries.
    #[cold]
    fn announce(&self, tag: u32, shared: &impl Shared) {
        if let Some(tag) = self.wake_or_retake(tag, shared) {
            self.put_overdue(tag, shared);
        }
    }

    /// Wakes a waiter for a tag that was made free, if none was. If a waiter is overdue, the tag became visible too early: returns
    /// one that is free now, for the first waiter.
    fn wake_or_retake(&self, tag: u32, shared: &impl Shared) -> Option<u32> {
        let is_late = match self.woken.count_pass(tag) {
            Some(passes) if passes < self.max_passes => return None,
            passes => passes.is_some(),
        };
        let mut queue = lock(&self.queue);
        if is_late && let Some(first) = queue.waiters.front() {
            let id = first.id;
            self.make_overdue(&mut queue, id);
        }
        if queue.overdue == 0 && !self.pass_first(&mut queue) {
            self.wake_next(queue, tag);
            return None;
        }
        drop(queue);
        self.take(shared)
    }

    /// Where every waiter is on its way, the first is passed once more. Whether it is overdue by that.
    fn pass_first(&self, queue: &mut Queue) -> bool {
        let mut waiters = queue.waiters.iter();
        if waiters.any(|waiter| waiter.phase == Phase::Asleep) {
            return false;
        }
        let Some(first) = queue.waiters.front_mut() else {
            return false;
        };
        first.passes += 1;
        let (id, is_late) = (first.id, first.passes > self.max_passes);
        if is_late {
            self.make_overdue(queue, id);
        }
        is_late
    }

    fn wake_next(&self, mut queue: MutexGuard<'_, Queue>, tag: u32) {
        let mut waiters = queue.waiters.iter_mut();
        let Some(next) = waiters.find(|waiter| waiter.phase == Phase::Asleep) else {
            return; // All are on their way.
        };
        next.phase = Phase::Woken(tag);
        self.woken.record(tag);
        let grant = next.grant.clone();
        drop(queue);
        grant.event.set();
    }

    /// Gives a tag to the first waiter: if one is overdue, or at any rate (`always`).
    fn hand_over(&self, tag: u32, always: bool, shared: &impl Shared) -> HandOver {
        let mut queue = lock(&self.queue);
        // In the lock: a tag that is given away before it is retired is given before `take_retired`.
        if queue.overdue == 0 && !always || shared.is_retired(tag) {
            return HandOver::Refused;
        }
        let Some(first) = queue.waiters.front_mut() else {
            return HandOver::Refused;
        };
        let granted = if first.wanted == 1 {
            Granted::Tag(tag)
        } else {
            first.given.push(tag);
            if first.given.len() < first.wanted {
                return HandOver::Done(None);
            }
            Granted::Batch(std::mem::take(&mut first.given))
        };
        queue.hand_overs += 1;
        self.end_wait(queue, 0, Some(granted));
        HandOver::Done(self.missed(shared))
    }

    /// Removes a waiter, and wakes it if it is granted something.
    fn end_wait(&self, mut queue: MutexGuard<'_, Queue>, index: usize, granted: Option<Granted>) {
        let Some(waiter) = queue.waiters.remove(index) else {
            return;
        };
        match waiter.phase {
            Phase::Asleep => {}
            Phase::Woken(tag) => self.woken.forget(tag),
            Phase::Overdue => queue.overdue -= 1,
        }
        self.publish(&queue);
        let is_granted = granted.is_some();
        // Before the queue is unlocked: who is not in the queue finds what it was granted.
        *lock(&waiter.grant.granted) = granted;
        drop(queue);
        // A waker is the caller's code, its drop as well: it runs without the lock.
        match waiter.waker {
            Some(waker) if is_granted => waker.wake(),
            None if is_granted => waiter.grant.event.set(),
            _ => {}
        }
    }

    fn make_overdue(&self, queue: &mut Queue, id: u64) {
        let Some(index) = queue.index(id) else { return };
        match std::mem::replace(&mut queue.waiters[index].phase, Phase::Overdue) {
            Phase::Overdue => return,
            Phase::Woken(tag) => self.woken.forget(tag),
            Phase::Asleep => {}
        }
        queue.overdue += 1;
        self.publish(queue);
    }

    fn publish(&self, queue: &Queue) {
        self.mode.0.store(queue.mode(), Ordering::Relaxed);
    }

    /// A waiter left on which puts may have relied while others wait: a tag that is free, to be put again.
    fn missed(&self, shared: &impl Shared) -> Option<u32> {
        fence(Ordering::SeqCst);
        self.has_waiters().then(|| self.take(shared)).flatten()
    }

    /// Tags became free without a put: gives them to the waiters.
    pub(crate) fn serve(&self, shared: &impl Shared) {
        fence(Ordering::SeqCst);
        let mut missed = None;
        while self.has_waiters()
            && let Some(tag) = missed.or_else(|| shared.take().0)
        {
            missed = match self.hand_over(tag, true, shared) {
                HandOver::Done(missed) => missed,
                HandOver::Refused => return self.put(tag, shared),
            };
        }
        if let Some(tag) = missed {
            self.put(tag, shared);
        }
    }

    /// Joins the queue for `wanted` tags, and takes what is free by then. Each place ends with `sleep`, a `poll` that is ready, or
    /// `leave`.
    pub(crate) fn join(&self, wanted: usize, waker: Option<Waker>, shared: &impl Shared) -> Place {
        let grant = Arc::new(Grant::default());
        let mut queue = lock(&self.queue);
        let id = queue.joined;
        queue.joined += 1;
        let is_overdue = wanted > 1 || waker.is_some();
        queue.overdue += usize::from(is_overdue);
        queue.waiters.push_back(Waiter {
            id,
            wanted,
            given: Vec::new(),
            phase: if is_overdue {
                Phase::Overdue
            } else {
                Phase::Asleep
            },
            passes: 0,
            waker,
            grant: grant.clone(),
        });
        self.publish(&queue);
        drop(queue);
        shared.revoke();
        // What is free now, or was in a cache, may be for those before: a put may rely on a waiter that does not run.
        self.serve(shared);
        Place { id, grant }
    }

    /// Sleeps until the wait has ended; `None`, or a part of a batch, at the deadline.
    pub(crate) fn sleep(
        &self,
        place: &Place,
        deadline: Option<Instant>,
        shared: &impl Shared,
    ) -> Option<Granted> {
        loop {
            if !place.grant.event.wait(deadline) {
                return self.leave(place, shared);
            }
            if let Some(granted) = place.end(shared) {
                return Some(granted);
            }
            if let Some(tag) = self
                .take(shared)
                .or_else(|| self.wait_overdue(place, shared))
            {
                return Some(self.leave_with(tag, place, shared));
            }
        }
    }

    /// A waiter was woken and found nothing.
    fn wait_overdue(&self, place: &Place, shared: &impl Shared) -> Option<u32> {
        let mut queue = lock(&self.queue);
        self.make_overdue(&mut queue, place.id);
        drop(queue);
        fence(Ordering::SeqCst);
        self.take(shared)
    }

    /// A waiter took a tag itself; it keeps the one that was handed over meanwhile, if any.
    fn leave_with(&self, tag: u32, place: &Place, shared: &impl Shared) -> Granted {
        match self.leave(place, shared) {
            Some(granted) => {
                self.put(tag, shared);
                granted
            }
            None => Granted::Tag(tag),
        }
    }

    /// What was granted; otherwise the waiter is woken by `waker` from now on.
    pub(crate) fn poll(
        &self,
        place: &Place,
        waker: &Waker,
        shared: &impl Shared,
    ) -> Option<Granted> {
        let waker = waker.clone();
        let mut queue = lock(&self.queue);
        let Some(index) = queue.index(place.id) else {
            drop(queue);
            return place.end(shared);
        };
        let old = queue.waiters[index].waker.replace(waker);
        drop(queue);
        drop(old);
        None
    }

    /// Ends a wait: what was granted meanwhile, or a part of a batch.
    pub(crate) fn leave(&self, place: &Place, shared: &impl Shared) -> Option<Granted> {
        let mut queue = lock(&self.queue);
        let Some(index) = queue.index(place.id) else {
            drop(queue);
            return place.end(shared);
        };
        let given = std::mem::take(&mut queue.waiters[index].given);
        self.end_wait(queue, index, None);
        if let Some(tag) = self.missed(shared) {
            self.put(tag, shared);
        }
        shared.calm();
        (!given.is_empty()).then_some(Granted::Batch(given))
    }

    /// The retired tags among those that were given to batches which still wait: after tags were retired, none is given that is.
    pub(crate) fn take_retired(&self, shared: &impl Shared) -> Vec<u32> {
        let mut queue = lock(&self.queue);
        let waiters = queue.waiters.iter_mut();
        waiters
            .flat_map(|waiter| waiter.given.extract_if(.., |tag| shared.is_retired(*tag)))
            .collect()
    }

    /// Ends the waits for more tags than there are.
    pub(crate) fn end_larger(&self, tags: usize) {
        loop {
            let mut queue = lock(&self.queue);
            let mut waiters = queue.waiters.iter();
            let Some(index) = waiters.position(|waiter| waiter.wanted > tags) else {
                return;
            };
            let given = std::mem::take(&mut queue.waiters[index].given);
            self.end_wait(queue, index, Some(Granted::Batch(given)));
        }
    }

    /// Whether a caller waits.
    pub(crate) fn has_waiters(&self) -> bool {
        self.mode.0.load(Ordering::Relaxed) != NONE_WAITS
    }

    /// Whether tags are handed over: who does not wait may see none.
    pub(crate) fn is_overdue(&self) -> bool {
        self.mode.0.load(Ordering::Relaxed) == OVERDUE
    }

    /// How often a caller waited, and how often a tag, or the last one of a batch, was handed over.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let queue = lock(&self.queue);
        (queue.joined, queue.hand_overs)
    }
}
