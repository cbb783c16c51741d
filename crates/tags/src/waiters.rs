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

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{
    Arc, AtomicU32, AtomicU64, Event, Mutex, MutexGuard, fence, fence_after_put, lock,
};
use crate::word::Apart;

/// How often a tag is made free for anyone while a waiter that was woken for it has not run yet.
pub(crate) const MAX_PASSES: u32 = 1000;

/// Attempts before a caller yields, or joins the queue.
const SPINS: u32 = 10;
/// The longest pause between attempts.
const MAX_PAUSES_LOG2: u32 = 6;

/// No caller waits.
const NONE_WAITS: u32 = 0;
/// Callers wait, and none is overdue.
const WAITING: u32 = 1;
/// A caller is overdue.
const OVERDUE: u32 = 2;

/// Free tags that any thread can take; without caches and other sizes by default.
pub(crate) trait Shared {
    /// A free tag; `None` only if there was a moment without one. Also whether it made other tags free that waiters may not have seen.
    fn take(&self) -> (Option<u32>, bool);
    /// Makes a tag free. Whether it made others free as well, which waiters may not have seen.
    fn put(&self, tag: u32) -> bool;
    /// Whether the tag is not handed out any more.
    fn is_retired(&self, _tag: u32) -> bool {
        false
    }
    /// Makes the tags of caches free for any thread, and keeps them so until `calm`.
    fn revoke(&self) {}
    /// One for each `revoke`.
    fn calm(&self) {}
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
    id: u64,
    grant: Arc<Grant>,
}

#[derive(Debug, Default)]
struct Grant {
    event: Event,
    granted: Mutex<Option<Granted>>,
}

/// A waiter's place in the queue, for others.
struct Waiter {
    id: u64,
    wanted: usize,
    given: Vec<u32>,
    phase: Phase,
    /// Puts that woke no waiter while this one was the first.
    passes: u32,
    /// `None`: a thread that sleeps on its event.
    waker: Option<Waker>,
    grant: Arc<Grant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asleep,
    /// Woken for this tag, and not yet seen to run.
    Woken(u32),
    Overdue,
}

#[derive(Default)]
struct Queue {
    /// By `id`.
    waiters: VecDeque<Waiter>,
    overdue: usize,
    joined: u64,
}

impl Granted {
    pub(crate) fn into_tag(self) -> u32 {
        match self {
            Self::Tag(tag) => tag,
            Self::Batch(_) => unreachable!("one tag is wanted"),
        }
    }

    pub(crate) fn into_tags(self) -> Vec<u32> {
        match self {
            Self::Tag(tag) => vec![tag],
            Self::Batch(tags) => tags,
        }
    }
}

impl Queue {
    fn mode(&self) -> u32 {
        match (self.waiters.is_empty(), self.overdue) {
            (true, _) => NONE_WAITS,
            (false, 0) => WAITING,
            (false, _) => OVERDUE,
        }
    }

    fn index(&self, id: u64) -> Option<usize> {
        let found = self.waiters.binary_search_by_key(&id, |waiter| waiter.id);
        found.ok()
    }
}

/// What became of a tag for the first waiter.
enum HandOver {
    /// No caller waits, or none is overdue, or the tag is retired.
    Refused,
    /// It was given; also a free tag that waiters may have missed.
    Done(Option<u32>),
}

/// Free tags and the callers that wait for them.
pub(crate) struct Supply<P> {
    pub(crate) pool: P,
    /// Read by each put, on a line that changes only when the queue's state does.
    mode: Apart<AtomicU32>,
    woken: WakeUps,
    queue: Mutex<Queue>,
    max_passes: u32,
}

impl<P: Shared> Supply<P> {
    pub(crate) fn new(pool: P, max_passes: u32) -> Self {
        Self {
            pool,
            mode: Apart(AtomicU32::new(NONE_WAITS)),
            woken: WakeUps::default(),
            queue: Mutex::default(),
            max_passes,
        }
    }

    /// A free tag; `None` only if there was a moment without one.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        let (tag, has_moved) = self.pool.take();
        if has_moved {
            self.serve();
        }
        tag
    }

    /// Makes a tag free, or hands it to the first waiter.
    #[inline]
    pub(crate) fn put(&self, tag: u32) {
        if self.mode.0.load(Relaxed) == OVERDUE {
            return self.put_overdue(tag);
        }
        let has_moved = self.pool.put(tag);
        fence_after_put();
        if self.mode.0.load(Relaxed) != NONE_WAITS {
            self.announce(tag);
            if has_moved {
                self.serve();
            }
        }
    }

    /// As `put` for each tag, with one look at waiters for all.
    pub(crate) fn put_batch(&self, tags: &[u32]) {
        if self.is_overdue() {
            return tags.iter().for_each(|&tag| self.put(tag));
        }
        let mut has_moved = false;
        for &tag in tags {
            has_moved |= self.pool.put(tag);
        }
        fence_after_put();
        if self.has_waiters() {
            tags.iter().for_each(|&tag| self.announce(tag));
            if has_moved {
                self.serve();
            }
        }
    }

    /// As `put`, and whatever else that leads to: one after another, since there may be as many as waiters.
    #[cold]
    fn put_overdue(&self, tag: u32) {
        let (mut next, mut has_moved) = (Some(tag), false);
        while let Some(tag) = next {
            next = match self.hand_over(tag, false) {
                HandOver::Done(missed) => missed,
                HandOver::Refused => {
                    has_moved |= self.pool.put(tag);
                    fence(SeqCst);
                    self.wake_or_retake(tag)
                }
            };
        }
        if has_moved {
            self.serve();
        }
    }

    /// A tag was made free while a caller waits: sees to it that a waiter tries.
    #[cold]
    fn announce(&self, tag: u32) {
        if let Some(tag) = self.wake_or_retake(tag) {
            self.put_overdue(tag);
        }
    }

    /// Wakes a waiter for a tag that was made free, if none was. If a waiter is overdue, the tag became visible too early: returns
    /// one that is free now, for the first waiter.
    fn wake_or_retake(&self, tag: u32) -> Option<u32> {
        let is_late = match self.woken.count_pass(tag) {
            Some(passes) if passes < self.max_passes => return None,
            passes => passes.is_some(),
        };
        let mut queue = lock(&self.queue);
        if is_late && !queue.waiters.is_empty() {
            self.make_overdue(&mut queue, 0);
        }
        if queue.overdue == 0 && !self.pass_first(&mut queue) {
            self.wake_next(queue, tag);
            return None;
        }
        drop(queue);
        self.take()
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
        let is_late = first.passes > self.max_passes;
        if is_late {
            self.make_overdue(queue, 0);
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
    fn hand_over(&self, tag: u32, always: bool) -> HandOver {
        let mut queue = lock(&self.queue);
        // In the lock: a tag that is given away before it is retired is given before `take_retired`.
        if queue.overdue == 0 && !always || self.pool.is_retired(tag) {
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
        self.end_wait(queue, 0, Some(granted));
        HandOver::Done(self.missed())
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

    fn make_overdue(&self, queue: &mut Queue, index: usize) {
        match std::mem::replace(&mut queue.waiters[index].phase, Phase::Overdue) {
            Phase::Overdue => return,
            Phase::Woken(tag) => self.woken.forget(tag),
            Phase::Asleep => {}
        }
        queue.overdue += 1;
        self.publish(queue);
    }

    fn publish(&self, queue: &Queue) {
        self.mode.0.store(queue.mode(), Relaxed);
    }

    /// A waiter left on which puts may have relied while others wait: a tag that is free, to be put again.
    fn missed(&self) -> Option<u32> {
        fence(SeqCst);
        self.has_waiters().then(|| self.take()).flatten()
    }

    /// Tags became free without a put: gives them to the waiters.
    pub(crate) fn serve(&self) {
        fence(SeqCst);
        let mut missed = None;
        while self.has_waiters()
            && let Some(tag) = missed.or_else(|| self.pool.take().0)
        {
            missed = match self.hand_over(tag, true) {
                HandOver::Done(missed) => missed,
                HandOver::Refused => return self.put(tag),
            };
        }
        if let Some(tag) = missed {
            self.put(tag);
        }
    }

    /// Joins the queue for `wanted` tags, and takes what is free by then. Each place ends with `sleep`, a `poll` that is ready, or
    /// `leave`.
    pub(crate) fn join(&self, wanted: usize, waker: Option<Waker>) -> Place {
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
            phase: match is_overdue {
                true => Phase::Overdue,
                false => Phase::Asleep,
            },
            passes: 0,
            waker,
            grant: grant.clone(),
        });
        self.publish(&queue);
        drop(queue);
        self.pool.revoke();
        // What is free now, or was in a cache, may be for those before: a put may rely on a waiter that does not run.
        self.serve();
        Place { id, grant }
    }

    /// Sleeps until the wait has ended; `None`, or a part of a batch, at the deadline.
    pub(crate) fn sleep(&self, place: &Place, deadline: Option<Instant>) -> Option<Granted> {
        loop {
            if !place.grant.event.wait(deadline) {
                return self.leave(place);
            }
            if let Some(granted) = self.end(place) {
                return Some(granted);
            }
            if let Some(tag) = self.take().or_else(|| self.wait_overdue(place)) {
                let granted = self.leave(place);
                if granted.is_some() {
                    // It keeps what was handed over meanwhile.
                    self.put(tag);
                }
                return granted.or(Some(Granted::Tag(tag)));
            }
        }
    }

    /// A waiter was woken and found nothing.
    fn wait_overdue(&self, place: &Place) -> Option<u32> {
        let mut queue = lock(&self.queue);
        if let Some(index) = queue.index(place.id) {
            self.make_overdue(&mut queue, index);
        }
        drop(queue);
        fence(SeqCst);
        self.take()
    }

    /// What was granted; otherwise the waiter is woken by `waker` from now on.
    pub(crate) fn poll(&self, place: &Place, waker: &Waker) -> Option<Granted> {
        let waker = waker.clone();
        let mut queue = lock(&self.queue);
        let Some(index) = queue.index(place.id) else {
            drop(queue);
            return self.end(place);
        };
        let old = queue.waiters[index].waker.replace(waker);
        drop(queue);
        drop(old);
        None
    }

    /// What was granted to a waiter that is not in the queue.
    fn end(&self, place: &Place) -> Option<Granted> {
        let granted = lock(&place.grant.granted).take();
        if granted.is_some() {
            self.pool.calm();
        }
        granted
    }

    /// Ends a wait: what was granted meanwhile, or a part of a batch.
    pub(crate) fn leave(&self, place: &Place) -> Option<Granted> {
        let mut queue = lock(&self.queue);
        let Some(index) = queue.index(place.id) else {
            drop(queue);
            return self.end(place);
        };
        let given = std::mem::take(&mut queue.waiters[index].given);
        self.end_wait(queue, index, None);
        if let Some(tag) = self.missed() {
            self.put(tag);
        }
        self.pool.calm();
        (!given.is_empty()).then_some(Granted::Batch(given))
    }

    /// The retired tags among those that were given to batches which still wait: after tags were retired, none is given that is.
    pub(crate) fn take_retired(&self) -> Vec<u32> {
        let mut queue = lock(&self.queue);
        let waiters = queue.waiters.iter_mut();
        waiters
            .flat_map(|waiter| {
                waiter
                    .given
                    .extract_if(.., |tag| self.pool.is_retired(*tag))
            })
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
        self.mode.0.load(Relaxed) != NONE_WAITS
    }

    /// Whether tags are handed over: who does not wait may see none.
    pub(crate) fn is_overdue(&self) -> bool {
        self.mode.0.load(Relaxed) == OVERDUE
    }

    /// How often a caller waited.
    pub(crate) fn waits(&self) -> u64 {
        lock(&self.queue).joined
    }

    /// A tag; waits for one.
    pub(crate) fn wait(&self) -> u32 {
        let tag = self.take_until(None);
        tag.expect("a wait without a deadline ends with a tag")
    }

    /// A tag; waits for one for this long, zero not at all.
    pub(crate) fn take_timeout(&self, timeout: Duration) -> Option<u32> {
        (!timeout.is_zero()).then_some(())?;
        self.take_until(Instant::now().checked_add(timeout))
    }

    /// A tag; waits for one until the deadline.
    fn take_until(&self, deadline: Option<Instant>) -> Option<u32> {
        if let Some(tag) = self.spin() {
            return Some(tag);
        }
        let place = self.join(1, None);
        self.sleep(&place, deadline).map(Granted::into_tag)
    }

    /// Tries for about as long as it takes to sleep and wake. Longer and longer pauses let a thread that takes and puts use its cache
    /// line; a yield lets one run that was interrupted while it held a tag, unless others wait and would be passed by it.
    fn spin(&self) -> Option<u32> {
        for round in 0..SPINS {
            if self.is_overdue() {
                return None;
            }
            for _ in 0..1 << round.min(MAX_PAUSES_LOG2) {
                std::hint::spin_loop();
            }
            if let Some(tag) = self.take() {
                return Some(tag);
            }
        }
        if self.has_waiters() {
            return None;
        }
        std::thread::yield_now();
        self.take()
    }

    /// Up to `most` tags; fewer if there was a moment without another free one.
    pub(crate) fn take_up_to(&self, most: usize) -> Vec<u32> {
        let mut tags = vec![0; most];
        let taken = self.take_batch(&mut tags);
        tags.truncate(taken);
        tags
    }

    /// Takes tags until `tags` is full or there was a moment without a free one. Returns how many.
    pub(crate) fn take_batch(&self, tags: &mut [u32]) -> usize {
        let mut taken = 0;
        while taken < tags.len()
            && let Some(tag) = self.take()
        {
            tags[taken] = tag;
            taken += 1;
        }
        taken
    }

    /// `wanted` tags at once; waits for them until the deadline. `None` if `usable` says that there are fewer.
    pub(crate) fn take_all_until(
        &self,
        wanted: usize,
        usable: impl Fn() -> usize,
        deadline: Option<Instant>,
    ) -> Option<Vec<u32>> {
        match self.take_all_or_join(wanted, usable, None) {
            Ok(tags) => tags,
            Err(place) => {
                let granted = self.sleep(&place, deadline);
                self.all_or_none(granted, wanted)
            }
        }
    }

    /// `wanted` tags at once, `None` if `usable` says that there are fewer; or a place in the queue, whose wait ends with
    /// `all_or_none`.
    pub(crate) fn take_all_or_join(
        &self,
        wanted: usize,
        usable: impl Fn() -> usize,
        waker: Option<Waker>,
    ) -> Result<Option<Vec<u32>>, Place> {
        if wanted > usable() {
            return Ok(None);
        }
        let tags = self.take_up_to(wanted);
        if tags.len() == wanted {
            return Ok(Some(tags));
        }
        // Kept, they could be the ones that another caller with a part of a batch waits for.
        self.put_batch(&tags);
        let place = self.join(wanted, waker);
        if wanted > usable() {
            // The size became less before it joined.
            self.give_up(&place);
            return Ok(None);
        }
        Err(place)
    }

    /// The tags that a wait for `wanted` ended with; `None`, and none kept, if they are fewer.
    pub(crate) fn all_or_none(&self, granted: Option<Granted>, wanted: usize) -> Option<Vec<u32>> {
        let tags = granted.map_or(Vec::new(), Granted::into_tags);
        if tags.len() < wanted {
            self.put_batch(&tags);
            return None;
        }
        Some(tags)
    }

    /// As `leave`, for a caller that wants nothing any more.
    pub(crate) fn give_up(&self, place: &Place) {
        if let Some(granted) = self.leave(place) {
            self.put_batch(&granted.into_tags());
        }
    }
}

/// More wake-ups than this are possible; puts do not see them and may wake a waiter for nothing.
const RECORDS: usize = 8;

/// Tag + 1 that a waiter on its way was woken for, and how often it was made free since in the upper half; 0 for none. The tag's
/// remainder is the index.
#[derive(Default)]
struct WakeUps([AtomicU64; RECORDS]);

impl WakeUps {
    /// A waiter is woken for this tag.
    fn record(&self, tag: u32) {
        self.of(tag).store(u64::from(tag) + 1, Relaxed);
    }

    /// How often this tag was made free since a waiter was woken for it; `None` if no waiter on its way was.
    fn count_pass(&self, tag: u32) -> Option<u32> {
        let record = self.of(tag);
        let is_same = |value: u64| value as u32 == tag + 1;
        if !is_same(record.load(Relaxed)) {
            return None;
        }
        let before = record.fetch_add(1 << u32::BITS, Relaxed);
        is_same(before).then_some((before >> u32::BITS) as u32)
    }

    /// Clears the record of a wake-up. It may be that of another waiter, woken for the same tag later: a put wakes one more then.
    fn forget(&self, tag: u32) {
        let record = self.of(tag);
        if record.load(Relaxed) as u32 == tag + 1 {
            record.store(0, Relaxed);
        }
    }

    fn of(&self, tag: u32) -> &AtomicU64 {
        &self.0[tag as usize % RECORDS]
    }
}
