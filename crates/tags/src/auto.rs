//! Policy `Auto`: a cache of tags for each CPU while there are many, shared words of bits while they are scarce.
//!
//! ```text
//!        ┌── a get finds no tag that other CPUs may cache; a thread waits; a CPU has no share ──┐
//!        │                                                                                     ▼
//!  open: caches in front of words                   closed: words only, caches emptied into them
//!        ▲                                                                                     │
//!        └── for a while no get failed, none waits, each CPU can cache some ───────────────────┘
//! ```
//!
//! A thread that needs every free tag in the words closes the gate and counts itself as a user of it, then restarts all sequences
//! (membarrier) and moves the cached tags to the words, one at a time, so that a thread which is stopped meanwhile keeps one tag at
//! most. Several threads may do so at once; none waits for another. The gate does not open while it has users, so that a thread
//! that empties caches never meets a sequence. With the gate closed, a get fails only after it saw the words without a free tag (`Shards::take`) while
//! the gate was closed and the caches were empty all the time: the gate's epoch says whether it was. What happens while it is open is
//! in `open.rs`.
//!
//! Without restartable sequences the gate is closed for ever.

use std::cell::Cell;

use crate::apart::Apart;
use crate::caches::{Cache, Caches, MOST, Reach};
use crate::calm::Calm;
use crate::open::Found;
use crate::shards::{MAX_BATCH, Shards};
use crate::size::Size;
use crate::statistics::Statistics;
use crate::sync::{AtomicU64, Ordering};

/// Users of the closed gate: waiters, and threads that empty caches.
const USER: u64 = 1;
const USERS: u64 = EMPTIED - 1;
/// All caches were emptied since it was closed.
const EMPTIED: u64 = 1 << 30;
const CLOSED: u64 = 1 << 31;
/// Counted whenever the gate opens.
const EPOCH: u64 = 1 << 32;
/// The bits that sequences look at.
const LOW: u64 = EPOCH - 1;

/// Fewer tags than this are never cached.
const MIN_CACHED: u32 = 16;
/// One of so many tags at most is moved from shard to shard at once: others see it as held meanwhile.
const TAGS_PER_MOVED: usize = 16;
/// One of so many puts into a word looks whether the gate may open.
const PUTS_PER_LOOK: u32 = 64;

/// What sequences read first.
#[repr(C, align(128))]
pub(crate) struct Control {
    pub(crate) gate: AtomicU64,
    /// Sequences read its low half: tags at or above it are not handed out.
    pub(crate) size: Size,
    pub(crate) reach: Reach,
    /// How often free tags came into the words while the gate was open, and how often it opened.
    pub(crate) landed: Landed,
}

/// On lines of its own: it changes, and the rest of `Control` almost never.
#[repr(align(128))]
pub(crate) struct Landed(pub(crate) AtomicU64);

pub(crate) struct Auto {
    pub(crate) control: Control,
    /// `landed` when the words were last seen without a free tag, while the gate was open.
    pub(crate) empty_at: Apart<AtomicU64>,
    pub(crate) caches: Option<Caches>,
    pub(crate) words: Shards,
    capacity: u32,
    pub(crate) calm: Calm,
}

/// The tags `reserved..size` are free, those up to `capacity` as soon as the limit grows.
pub(crate) struct Sizes {
    pub(crate) reserved: u32,
    pub(crate) size: u32,
    pub(crate) capacity: u32,
}

impl Auto {
    /// `caches` are those of `cpus` CPUs, of which up to `active` take tags at first.
    pub(crate) fn new(
        sizes: &Sizes,
        caches: Option<Caches>,
        (cpus, active): (usize, usize),
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
        Self {
            control: Control {
                gate: AtomicU64::new(gate),
                size: Size::new(sizes.size),
                reach: caches.as_ref().map_or(Reach::NONE, Caches::reach),
                landed: Landed(AtomicU64::new(1)),
            },
            empty_at: Apart(AtomicU64::new(0)),
            caches,
            words,
            capacity: sizes.capacity,
            calm: Calm::new(MOST, sizes.size, active),
        }
    }

    /// No tag, and no cache.
    pub(crate) fn without_tags() -> Self {
        let sizes = Sizes {
            reserved: 0,
            size: 0,
            capacity: 0,
        };
        Self::new(&sizes, None, (1, 1))
    }

    /// A tag of this CPU's cache.
    #[inline(always)]
    pub(crate) fn take_cached(&self) -> Option<u32> {
        self.control.pop()
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
                && let Some(caches) = &self.caches
            {
                match self.take_open(caches, gate, &mut has_moved) {
                    Found::Tag(tag) => break Some(tag),
                    Found::NoneFree => break None,
                    Found::Unknown => {}
                }
            }
            if gate & EMPTIED == 0 {
                has_moved |= self.close();
                self.leave();
                continue;
            }
            if let Some(tag) = self.take_closed(gate, &mut has_moved) {
                break Some(tag);
            }
            if self.caches.as_ref().is_some_and(Caches::has_unreached) && self.empty_again() {
                has_moved = true;
                continue;
            }
            if self.control.gate.load(Ordering::SeqCst) / EPOCH == gate / EPOCH {
                self.calm.note_miss();
                break None;
            }
        };
        (tag, has_moved)
    }

    /// Puts a tag into this CPU's cache; false if it is full or there is none, or a thread waits.
    #[inline(always)]
    pub(crate) fn put_cached(&self, tag: u32) -> bool {
        self.control.push(tag)
    }

    /// Makes a tag free where `put_cached` did not. Whether it moved others into the words, which a waiter may have missed.
    #[inline]
    pub(crate) fn put(&self, tag: u32) -> bool {
        let is_open = self.control.gate.load(Ordering::SeqCst) & LOW == 0;
        let mut has_moved = false;
        if is_open && self.put_open(tag, &mut has_moved) {
            return has_moved;
        }
        let home = self.home();
        let puts = self.words.put(tag, home);
        self.land();
        if puts.is_multiple_of(PUTS_PER_LOOK) {
            self.look(home);
        }
        has_moved
    }

    /// A thread is about to wait: moves every free tag into the words, and keeps them there until `calm`.
    pub(crate) fn revoke(&self) {
        self.close();
    }

    /// A thread does not wait any more.
    pub(crate) fn calm(&self) {
        self.calm.note_wait();
        self.leave();
    }

    /// Sets the limit. On return, tags at or above it are in the words, or held: how many are.
    pub(crate) fn resize(&self, tags: u32) -> u32 {
        self.control.size.set(tags);
        // That the words had no tag below the old size says nothing from now on.
        self.control.landed.0.fetch_add(1, Ordering::SeqCst);
        self.close();
        self.leave();
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
                .map(|cache| u64::from(cache.refills.load(Ordering::Relaxed)));
            each.sum()
        };
        Statistics {
            refills: self.caches.as_ref().map_or(0, refills),
            revocations: self.calm.revocations(),
            ..Statistics::default()
        }
    }

    #[inline]
    pub(crate) fn home(&self) -> usize {
        match &self.caches {
            Some(caches) => caches.cpu(),
            None => crate::sync::thread_number(),
        }
    }

    /// Puts these tags into the words. While the gate is open, they count as landed before this returns: until then they are held.
    pub(crate) fn put_words(&self, tags: &[u32], home: usize) {
        self.words.put_all(tags, home);
        self.land();
    }

    /// Tags came into the words. A caller that finds the gate closed here put them there before the gate opens again, where the next
    /// search sees them.
    #[inline]
    fn land(&self) {
        if self.control.gate.load(Ordering::SeqCst) & LOW == 0 {
            self.control.landed.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A tag of the words. From the shard of another CPU it moves some at once, unless a thread waits.
    fn take_closed(&self, gate: u64, has_moved: &mut bool) -> Option<u32> {
        let home = self.home();
        let moved = Cell::new(false);
        let take = |size| {
            let most = size as usize / TAGS_PER_MOVED;
            if most < 2 || gate & USERS != 0 || !self.words.is_home_empty(home) {
                return self.words.take(size, home);
            }
            let Ok(mut some) = self.words.take_some(size, home, most.min(MAX_BATCH / 2)) else {
                return self.words.take(size, home);
            };
            let tag = some.pop();
            self.put_words(some.tags(), home);
            moved.set(true);
            tag
        };
        let put = |tag| {
            moved.set(true);
            self.put_words(&[tag], home);
        };
        let tag = self.control.size.take(take, put);
        // Who waits since then may have missed what was moved.
        *has_moved |= moved.get() && self.control.gate.load(Ordering::SeqCst) & USERS != 0;
        tag
    }

    /// Closes the gate, or keeps it closed, until `leave`. On return no cache holds a tag. Whether a tag was moved into the words.
    #[inline(never)]
    pub(crate) fn close(&self) -> bool {
        let join = |gate: u64| Some((gate | CLOSED) + USER);
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        let gate = self.control.gate.fetch_update(order.0, order.1, join);
        let gate = gate.unwrap_or_else(|gate| gate);
        if gate & LOW == 0 {
            self.calm.note_closing();
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

    pub(crate) fn leave(&self) {
        self.control.gate.fetch_sub(USER, Ordering::SeqCst);
    }

    /// The caller is a user of the closed gate. Whether a tag was moved into the words.
    fn empty(&self, caches: &Caches) -> bool {
        let mut has_moved = false;
        if caches.restart_all() {
            for cache in caches.touched() {
                has_moved |= self.empty_cache(cache, caches.cpu());
            }
        } else {
            caches.visit(|cache| has_moved |= self.empty_cache(cache, caches.cpu()));
        }
        has_moved
    }

    /// No sequence puts tags into the cache any more.
    fn empty_cache(&self, cache: &Cache, home: usize) -> bool {
        let (share, mut front) = cache.withdraw();
        if share != 0 {
            self.calm.unclaim(share);
            self.calm.note_active();
        }
        let mut has_moved = false;
        while let Some(tag) = front.take().or_else(|| cache.steal()) {
            self.words.put(tag, home);
            has_moved = true;
        }
        has_moved
    }

    /// Empties the caches that could not be emptied when the gate was closed, as far as this thread can. Whether a tag was moved into
    /// the words.
    #[cold]
    fn empty_again(&self) -> bool {
        self.close();
        let has_moved = self.caches.as_ref().is_some_and(|it| self.empty(it));
        self.leave();
        has_moved
    }

    /// Opens the gate if tags are no longer scarce.
    #[cold]
    fn look(&self, home: usize) {
        let gate = self.control.gate.load(Ordering::SeqCst);
        if gate & LOW != CLOSED | EMPTIED || !self.caches.as_ref().is_some_and(Caches::is_usable) {
            return;
        }
        let size = self.size();
        if !self.calm.look(home, self.words.free(0..size), size) {
            return;
        }
        // What was seen before does not hold from now on.
        self.control.landed.0.fetch_add(1, Ordering::SeqCst);
        let opened = (gate & !LOW).wrapping_add(EPOCH);
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        let gate = (self.control.gate).compare_exchange(gate, opened, order.0, order.1);
        if gate.is_ok() {
            self.calm.note_opening();
        }
    }
}
