//! Policy `Auto`: a cache of tags for each CPU while there are many, shared words of bits while they are scarce.
//!
//! ```text
//!              ┌── a get finds no tag in the words; somebody waits; a CPU has no share ──┐
//!              │                                                                       ▼
//!  open: caches in front of words                            closed: words only, caches emptied into them
//!              ▲                                                                       │
//!              └── for a while no get failed, nobody waits, a quarter is free ─────────────┘
//! ```
//!
//! Who needs every free tag in the words closes the gate and counts itself as a user of it, then restarts all sequences (membarrier)
//! and moves the cached tags to the words, one at a time, so that a thread which is stopped meanwhile keeps one tag at most. Several
//! threads may do so at once; none waits for another. The gate does not open while it has users, so that whoever empties caches never
//! meets a sequence. A get fails only after it saw the words without a free tag (`Shards::take`) while the gate was closed and the
//! caches were empty all the time: the gate's epoch says whether it was.
//!
//! Without restartable sequences the gate is closed for ever.

use crate::caches::{Caches, SLOTS};
use crate::shards::{MAX_BATCH, Moved, Shards};
use crate::size::Size;
use crate::statistics::Statistics;
use crate::sync::{AtomicU32, AtomicU64, Ordering, now_us};

/// Users of the closed gate: waiters, and threads that empty caches.
const USER: u64 = 1;
/// All caches were emptied since it was closed.
const EMPTIED: u64 = 1 << 30;
const CLOSED: u64 = 1 << 31;
/// Counted whenever the gate opens.
const EPOCH: u64 = 1 << 32;
/// The bits that sequences look at.
const LOW: u64 = EPOCH - 1;

/// Fewer tags than this are never cached.
const MIN_CACHED: u32 = 16;
/// A cache has space for at least this many: N / active CPUs is 8 or more.
const MIN_SHARE: u32 = 4;
/// The gate is closed for this long at least, and longer if it was not open for long.
const MIN_CLOSED_US: u64 = 1_000;
const MAX_CLOSED_US: u64 = 256_000;
/// An opening that lasted less than this many times the closing before it was too early.
const OPEN_FACTOR: u64 = 8;
/// One of so many puts into a word looks whether the gate may open.
const PUTS_PER_LOOK: u32 = 64;

/// What sequences read first.
#[repr(C, align(128))]
pub(crate) struct Control {
    pub(crate) gate: AtomicU64,
    /// Sequences read its low half: tags at or above it are not handed out.
    pub(crate) size: Size,
}

pub(crate) struct Auto {
    control: Control,
    caches: Option<Caches>,
    words: Shards,
    capacity: u32,
    calm: Calm,
}

/// When the gate may open, and how much each CPU may cache then.
#[repr(align(128))]
struct Calm {
    /// 1 if a get failed since `since_us`.
    missed: AtomicU32,
    /// When the gate was closed or opened, or a get's failure was noted.
    since_us: AtomicU64,
    /// How long the gate has to be closed without a failure.
    closed_us: AtomicU64,
    /// Tags that a CPU may cache.
    share: AtomicU32,
    /// Tags that all caches may hold now, their sum.
    claimed: AtomicU32,
    /// CPUs that gave their share back since the gate was closed.
    active: AtomicU32,
    revocations: AtomicU64,
}

/// The tags `reserved..size` are free, those up to `capacity` as soon as the limit grows.
pub(crate) struct Sizes {
    pub(crate) reserved: u32,
    pub(crate) size: u32,
    pub(crate) capacity: u32,
}

impl Auto {
    /// `caches` are those of `cpus` CPUs, of which `online` may run.
    pub(crate) fn new(
        sizes: &Sizes,
        caches: Option<Caches>,
        (cpus, online): (usize, usize),
    ) -> Self {
        let caches = caches.filter(|_| sizes.capacity >= MIN_CACHED);
        let gate = match caches {
            Some(_) => 0,
            None => CLOSED | EMPTIED,
        };
        let words = Shards::new(sizes.capacity, cpus);
        for tag in sizes.reserved..sizes.capacity {
            words.put(tag, (tag / u32::BITS) as usize);
        }
        let this = Self {
            control: Control {
                gate: AtomicU64::new(gate),
                size: Size::new(sizes.size),
            },
            caches,
            words,
            capacity: sizes.capacity,
            calm: Calm {
                missed: AtomicU32::new(0),
                since_us: AtomicU64::new(0),
                closed_us: AtomicU64::new(MIN_CLOSED_US),
                share: AtomicU32::new(0),
                claimed: AtomicU32::new(0),
                active: AtomicU32::new(0),
                revocations: AtomicU64::new(0),
            },
        };
        let share = this.share_of(online.min(8));
        this.calm.share.store(share, Ordering::Relaxed);
        this
    }

    /// A tag of this CPU's cache.
    #[inline(always)]
    pub(crate) fn take_cached(&self) -> Option<u32> {
        self.caches.as_ref()?.pop(&self.control)
    }

    /// A free tag. `None` only if there was a moment without one, tags that another thread moves counted as held: up to a batch in
    /// each thread that fills or spills its CPU's cache, one in each that empties caches. Also whether it moved free tags into the words,
    /// which a waiter may have missed.
    #[inline]
    pub(crate) fn take(&self) -> (Option<u32>, bool) {
        let mut has_moved = false;
        let tag = loop {
            let gate = self.control.gate.load(Ordering::SeqCst);
            if gate & LOW == 0
                && let Some(tag) = self.refill(&mut has_moved)
            {
                break Some(tag);
            }
            if gate & EMPTIED == 0 {
                has_moved |= self.close();
                self.leave();
                continue;
            }
            let home = self.home();
            let tag = self.control.size.take(
                |size| self.words.take(size, home),
                |tag| self.words.put_all(&[tag], home),
            );
            if tag.is_some() {
                break tag;
            }
            if self.control.gate.load(Ordering::SeqCst) / EPOCH == gate / EPOCH {
                self.note_miss();
                break None;
            }
        };
        (tag, has_moved)
    }

    /// Puts a tag into this CPU's cache; false if it is full or there is none, or somebody waits.
    #[inline(always)]
    pub(crate) fn put_cached(&self, tag: u32) -> bool {
        match &self.caches {
            Some(caches) => caches.push(&self.control, tag),
            None => false,
        }
    }

    /// Makes a tag free where `put_cached` did not.
    #[inline]
    pub(crate) fn put(&self, tag: u32) {
        let is_open = self.control.gate.load(Ordering::SeqCst) & LOW == 0;
        if is_open && self.put_open(tag) {
            return;
        }
        if self
            .words
            .put(tag, self.home())
            .is_multiple_of(PUTS_PER_LOOK)
        {
            self.look();
        }
    }

    /// As `put`; the gate was open a moment ago. False, and nothing done, if the tag belongs into the words.
    #[inline(never)]
    fn put_open(&self, tag: u32) -> bool {
        let home = self.home();
        let Some(caches) = &self.caches else {
            return false;
        };
        let Some(cache) = caches.cache(home).filter(|_| tag < self.size()) else {
            return false;
        };
        if cache.most.load(Ordering::Relaxed) != 0 {
            self.spill(caches, tag, home);
            return true;
        }
        self.claim(caches, home) && caches.push(&self.control, tag)
    }

    /// Somebody is about to wait: moves every free tag into the words, and keeps them there until `calm`. Whether it moved any.
    pub(crate) fn revoke(&self) -> bool {
        self.caches.is_some() && self.close()
    }

    /// Somebody does not wait any more.
    pub(crate) fn calm(&self) {
        if self.caches.is_some() {
            self.leave();
        }
    }

    /// Sets the limit. On return, tags at or above it are in the words, or held: how many are.
    pub(crate) fn resize(&self, tags: u32) -> u32 {
        self.control.size.set(tags);
        if self.caches.is_some() {
            self.close();
            self.leave();
        }
        self.capacity - tags - self.words.free(tags..self.capacity)
    }

    pub(crate) fn size(&self) -> u32 {
        self.control.size.get()
    }

    pub(crate) fn free(&self) -> u32 {
        let cached = |caches: &Caches| -> u32 { caches.touched().map(|cache| cache.len()).sum() };
        self.words.free(0..self.size()) + self.caches.as_ref().map_or(0, cached)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let refills = |caches: &Caches| -> u64 {
            let each = caches
                .touched()
                .map(|cache| cache.refills.load(Ordering::Relaxed));
            each.sum()
        };
        Statistics {
            refills: self.caches.as_ref().map_or(0, refills),
            revocations: self.calm.revocations.load(Ordering::Relaxed),
            ..Statistics::default()
        }
    }

    #[inline]
    fn home(&self) -> usize {
        match &self.caches {
            Some(caches) => caches.cpu(),
            None => crate::sync::thread_number(),
        }
    }

    /// A tag of the words, and more into this CPU's cache.
    #[inline(never)]
    fn refill(&self, has_moved: &mut bool) -> Option<u32> {
        let caches = self.caches.as_ref()?;
        let home = caches.cpu();
        let cache = caches.cache(home);
        let share = cache.map_or(0, |cache| cache.most.load(Ordering::Relaxed));
        if share == 0 && !self.claim(caches, home) {
            // All caches may have been emptied for smaller shares.
            *has_moved = true;
        }
        let most = (share / 2).clamp(1, MAX_BATCH as u32) as usize;
        let mut moved = self.words.take_some(self.size(), home, most);
        let tag = moved.pop()?;
        if tag >= self.size() {
            // The size became less: none of them may be handed out.
            moved.push(tag);
            self.words.put_all(moved.tags(), home);
            return None;
        }
        if let Some(cache) = cache {
            cache.refills.fetch_add(1, Ordering::Relaxed);
        }
        while let Some(other) = moved.pop() {
            if !caches.push(&self.control, other) {
                moved.push(other);
                self.words.put_all(moved.tags(), home);
                *has_moved = true;
                break;
            }
        }
        Some(tag)
    }

    /// Moves half of this CPU's cache, and a tag, into the words.
    fn spill(&self, caches: &Caches, tag: u32, home: usize) {
        let share = caches
            .cache(home)
            .map_or(0, |cache| cache.most.load(Ordering::Relaxed));
        let mut moved = Moved::new();
        moved.push(tag);
        for _ in 0..(share / 2).min(MAX_BATCH as u32) {
            let Some(other) = caches.pop(&self.control) else {
                break;
            };
            moved.push(other);
        }
        self.words.put_all(moved.tags(), home);
    }

    /// Lets a CPU cache tags. The caches together hold half of them at most.
    fn claim(&self, caches: &Caches, cpu: usize) -> bool {
        let Some(cache) = caches.cache(cpu).filter(|_| !caches.is_wiped()) else {
            return false;
        };
        let share = self.calm.share.load(Ordering::Relaxed);
        let budget = self.size() / 2;
        let add = |claimed: u32| (claimed + share <= budget).then_some(claimed + share);
        let claimed = &self.calm.claimed;
        if claimed
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, add)
            .is_err()
        {
            self.divide();
            return false;
        }
        // Before a sequence can put a tag into it.
        caches.touch(cpu);
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        if cache
            .most
            .compare_exchange(0, share, order.0, order.1)
            .is_err()
        {
            claimed.fetch_sub(share, Ordering::SeqCst);
        }
        true
    }

    /// More CPUs cache than there are shares: takes all back, for smaller ones.
    fn divide(&self) {
        self.close();
        self.calm.active.fetch_add(1, Ordering::Relaxed);
        self.leave();
    }

    /// Tags that each of so many CPUs may cache.
    fn share_of(&self, cpus: usize) -> u32 {
        (self.size() / 2 / cpus.max(1) as u32).clamp(MIN_SHARE, SLOTS as u32)
    }

    /// Closes the gate, or keeps it closed, until `leave`. On return no cache holds a tag. Whether a tag was moved into the words.
    #[inline(never)]
    fn close(&self) -> bool {
        let join = |gate: u64| Some((gate | CLOSED) + USER);
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        let gate = self.control.gate.fetch_update(order.0, order.1, join);
        let gate = gate.unwrap_or_else(|gate| gate);
        if gate & LOW == 0 {
            self.note_closing();
        }
        if gate & EMPTIED != 0 {
            return false;
        }
        let has_moved = self
            .caches
            .as_ref()
            .is_some_and(|caches| self.empty(caches));
        self.control.gate.fetch_or(EMPTIED, Ordering::SeqCst);
        has_moved
    }

    fn leave(&self) {
        self.control.gate.fetch_sub(USER, Ordering::SeqCst);
    }

    /// The caller is a user of the closed gate.
    fn empty(&self, caches: &Caches) -> bool {
        caches.restart_all();
        let home = caches.cpu();
        let mut has_moved = false;
        for cache in caches.touched() {
            let share = cache.most.swap(0, Ordering::SeqCst);
            if share != 0 {
                self.calm.claimed.fetch_sub(share, Ordering::SeqCst);
                self.calm.active.fetch_add(1, Ordering::Relaxed);
            }
            while let Some(tag) = cache.steal() {
                self.words.put(tag, home);
                has_moved = true;
            }
        }
        has_moved
    }

    fn note_miss(&self) {
        // Read first: all CPUs keep the line while gets go on to fail.
        if self.caches.is_some() && self.calm.missed.load(Ordering::Relaxed) == 0 {
            self.calm.missed.store(1, Ordering::Relaxed);
        }
    }

    fn note_closing(&self) {
        let calm = &self.calm;
        let now = now_us();
        let opened = calm.since_us.swap(now, Ordering::Relaxed);
        let closed = calm.closed_us.load(Ordering::Relaxed);
        let is_early = now.saturating_sub(opened) < closed * OPEN_FACTOR;
        let next = match is_early && calm.revocations.load(Ordering::Relaxed) != 0 {
            true => (closed * 2).min(MAX_CLOSED_US),
            false => MIN_CLOSED_US,
        };
        calm.closed_us.store(next, Ordering::Relaxed);
        calm.revocations.fetch_add(1, Ordering::Relaxed);
    }

    /// Opens the gate if tags are no longer scarce.
    #[cold]
    fn look(&self) {
        let Some(caches) = &self.caches else { return };
        let calm = &self.calm;
        let gate = self.control.gate.load(Ordering::SeqCst);
        if gate & LOW != CLOSED | EMPTIED || caches.is_wiped() {
            return;
        }
        let now = now_us();
        let since = calm.since_us.load(Ordering::Relaxed);
        if now.saturating_sub(since) < calm.closed_us.load(Ordering::Relaxed) {
            return;
        }
        let limit = self.size();
        let has_missed = calm.missed.swap(0, Ordering::Relaxed) != 0;
        calm.since_us.store(now, Ordering::Relaxed);
        if has_missed || self.words.free(0..limit) < limit / 4 {
            return;
        }
        let active = calm.active.load(Ordering::Relaxed) as usize;
        let share = self.share_of(active.next_power_of_two());
        calm.share.store(share, Ordering::Relaxed);
        let opened = (gate & !LOW) + EPOCH;
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        let gate = self
            .control
            .gate
            .compare_exchange(gate, opened, order.0, order.1);
        if gate.is_ok() {
            calm.active.store(0, Ordering::Relaxed);
        }
    }
}
