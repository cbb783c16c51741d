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
//! the gate was closed and the caches were empty all the time: the gate's epoch says whether it was.
//!
//! While the gate is open and no tag is in the cache of this CPU, or no space, tags move between it and the words. A get fails there only
//! if no other CPU may cache tags. The proof that the words have none is kept: `landed` counts whenever free tags came into them, after
//! they did, and `empty_at` is what it was before a pass over the words saw them empty. While both are equal, no put of a tag into the
//! words has returned since the pass, and a sequence that finds the cache empty and reads `landed` without an interruption names the
//! moment.
//!
//! When the gate may open, and how many tags each CPU may cache then, is up to [`Calm`]. A membarrier interrupts all CPUs that run the
//! process. So the gate stays closed for a while after the last get that failed; caches are smaller after an opening that did not last,
//! and when they cannot be smaller, the gate stays closed for longer.
//!
//! Without restartable sequences the gate is closed for ever.

use std::cell::Cell;

use crate::caches::{Cache, Caches, MOST, Moves, Reach};
use crate::shards::{MAX_BATCH, Moved, Shards};
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicU32, AtomicU64, now_us, thread_number};
use crate::word::{Apart, Size, TAGS};

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
    control: Control,
    /// `landed` when the words were last seen without a free tag, while the gate was open.
    empty_at: Apart<AtomicU64>,
    caches: Option<Caches>,
    words: Shards,
    capacity: u32,
    calm: Calm,
}

impl Auto {
    /// The tags `reserved..tags` are free, those up to `capacity` as soon as the limit grows. `caches` are those of `cpus` CPUs, of
    /// which up to `active` take tags at first.
    pub(crate) fn new(
        (reserved, tags, capacity): (u32, u32, u32),
        caches: Option<Caches>,
        (cpus, active): (usize, usize),
    ) -> Self {
        let caches = caches.filter(|_| capacity >= MIN_CACHED);
        let gate = match caches {
            Some(_) => 0,
            None => CLOSED | EMPTIED,
        };
        let words = Shards::new(capacity, cpus);
        for tag in reserved..capacity {
            words.put(tag, (tag / TAGS) as usize);
        }
        Self {
            control: Control {
                gate: AtomicU64::new(gate),
                size: Size::new(tags),
                reach: caches.as_ref().map_or(Reach::NONE, Caches::reach),
                landed: Landed(AtomicU64::new(1)),
            },
            empty_at: Apart(AtomicU64::new(0)),
            caches,
            words,
            capacity,
            calm: Calm::new(tags, active),
        }
    }

    /// A tag of this CPU's cache, without a look at whether this is a forked child: `None` where there are no caches or no such tag.
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
            let gate = self.control.gate.load(SeqCst);
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
            if self.control.gate.load(SeqCst) / EPOCH == gate / EPOCH {
                self.calm.note_miss();
                break None;
            }
        };
        (tag, has_moved)
    }

    /// Puts a tag into this CPU's cache, without a look at waiters; false if it is full or there is none, or a thread waits (between
    /// `revoke` and `calm`).
    #[inline(always)]
    pub(crate) fn put_cached(&self, tag: u32) -> bool {
        self.control.push(tag)
    }

    /// Makes a tag free where `put_cached` did not. Whether it moved others into the words, which a waiter may have missed.
    #[inline]
    pub(crate) fn put(&self, tag: u32) -> bool {
        let is_open = self.control.gate.load(SeqCst) & LOW == 0;
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
        self.control.landed.0.fetch_add(1, SeqCst);
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

    /// How often a cache was filled from the words.
    pub(crate) fn refills(&self) -> u64 {
        let refills = |cache: &Cache| u64::from(cache.refills.load(Relaxed));
        let all = |caches: &Caches| caches.touched().map(refills).sum();
        self.caches.as_ref().map_or(0, all)
    }

    #[inline]
    fn home(&self) -> usize {
        match &self.caches {
            Some(caches) => caches.cpu(),
            None => thread_number(),
        }
    }

    /// Puts these tags into the words. While the gate is open, they count as landed before this returns: until then they are held.
    fn put_words(&self, tags: &[u32], home: usize) {
        self.words.put_all(tags, home);
        self.land();
    }

    /// Tags came into the words. A caller that finds the gate closed here put them there before the gate opens again, where the next
    /// search sees them.
    #[inline]
    fn land(&self) {
        if self.control.gate.load(SeqCst) & LOW == 0 {
            self.control.landed.0.fetch_add(1, SeqCst);
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
        *has_moved |= moved.get() && self.control.gate.load(SeqCst) & USERS != 0;
        tag
    }

    /// Closes the gate, or keeps it closed, until `leave`. On return no cache holds a tag. Whether a tag was moved into the words.
    #[inline(never)]
    fn close(&self) -> bool {
        let join = |gate: u64| Some((gate | CLOSED) + USER);
        let gate = self.control.gate.fetch_update(SeqCst, SeqCst, join);
        let gate = gate.unwrap_or_else(|gate| gate);
        if gate & LOW == 0 {
            self.calm.note_closing();
        }
        if gate & EMPTIED != 0 {
            return false;
        }
        let has_moved = self.empty();
        self.control.gate.fetch_or(EMPTIED, SeqCst);
        has_moved
    }

    fn leave(&self) {
        self.control.gate.fetch_sub(USER, SeqCst);
    }

    /// The caller is a user of the closed gate. Whether a tag was moved into the words.
    fn empty(&self) -> bool {
        let Some(caches) = &self.caches else {
            return false;
        };
        let mut has_moved = false;
        let mut empty = |cache: &Cache| has_moved |= self.empty_cache(cache, caches.cpu());
        match caches.restart_all() {
            true => caches.touched().for_each(&mut empty),
            false => caches.visit(empty),
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
        let has_moved = self.empty();
        self.leave();
        has_moved
    }

    /// Opens the gate if tags are no longer scarce.
    #[cold]
    fn look(&self, home: usize) {
        let gate = self.control.gate.load(SeqCst);
        if gate & LOW != CLOSED | EMPTIED || !self.caches.as_ref().is_some_and(Caches::is_usable) {
            return;
        }
        let size = self.size();
        if !self.calm.look(home, self.words.free(0..size), size) {
            return;
        }
        // What was seen before does not hold from now on.
        self.control.landed.0.fetch_add(1, SeqCst);
        let opened = (gate & !LOW).wrapping_add(EPOCH);
        let gate = (self.control.gate).compare_exchange(gate, opened, SeqCst, SeqCst);
        if gate.is_ok() {
            self.calm.note_opening();
        }
    }
}

/// What a search with the gate open found.
enum Found {
    Tag(u32),
    NoneFree,
    /// Other caches may have some.
    Unknown,
}

/// What is done while the gate is open.
impl Auto {
    /// As `put`; the gate was open a moment ago. False, and nothing done, if the tag belongs into the words.
    #[inline(never)]
    fn put_open(&self, tag: u32, has_moved: &mut bool) -> bool {
        let home = self.home();
        let caches = self.caches.as_ref().filter(|_| tag < self.size());
        let cache = caches.and_then(|caches| Some((caches, caches.cache(home)?)));
        let Some((caches, cache)) = cache else {
            return false;
        };
        if cache.most() != 0 {
            *has_moved = self.spill(caches, tag, home);
            return true;
        }
        self.claim(caches, home, has_moved) && self.control.push(tag)
    }

    /// A tag of the words, and more of them into this CPU's cache.
    #[inline(never)]
    fn take_open(&self, caches: &Caches, gate: u64, has_moved: &mut bool) -> Found {
        let size = self.size();
        let home = caches.cpu();
        let cache = caches.cache(home);
        let share = cache.map_or(0, Cache::most);
        // Only a CPU that alone caches tags can tell that there is none: others do not read what every spill writes.
        // It has not been proven yet: the thread may be on another CPU by now.
        let may_be_sole = share != 0 && share == self.calm.claimed();
        if may_be_sole && let Some(found) = self.look_at_empty(gate, size) {
            return found;
        }
        if share == 0 {
            self.claim(caches, home, has_moved);
        }
        let landed = may_be_sole.then(|| self.control.landed.0.load(SeqCst));
        let most = match cache.is_some_and(|cache| cache.moves_again(Moves::Refill)) {
            true => share,
            false => share * 3 / 4,
        };
        let most = most.clamp(1, MAX_BATCH as u32) as usize;
        let Ok(moved) = self.words.take_some(size, home, most) else {
            return landed.map_or(Found::Unknown, |landed| {
                // The words were seen without a tag below `size` after `landed` was read, all while the gate was open if it still is.
                if self.is_unchanged(gate, size) {
                    self.empty_at.0.store(landed, SeqCst);
                }
                let found = self.look_at_empty(gate, size);
                found.unwrap_or(Found::Unknown)
            });
        };
        if let Some(cache) = cache {
            cache.refills.fetch_add(1, Relaxed);
        }
        self.fill(moved, home, has_moved)
    }

    fn is_unchanged(&self, gate: u64, size: u32) -> bool {
        self.control.gate.load(SeqCst) == gate && self.size() == size
    }

    /// Whether there was a moment without a free tag, after this CPU's cache had none: `None` if the words may have some.
    fn look_at_empty(&self, gate: u64, size: u32) -> Option<Found> {
        // Before the sight: a pass that ends after it says nothing about the moment at which the cache was empty.
        let empty_at = self.empty_at.0.load(SeqCst);
        match self.control.sight() {
            None => self.control.pop().map(Found::Tag),
            Some((most, landed)) if landed == empty_at => Some(self.judge(most, gate, size)),
            Some(_) => None,
        }
    }

    /// Keeps one of these tags and puts the others into this CPU's cache.
    fn fill(&self, mut moved: Moved, home: usize, has_moved: &mut bool) -> Found {
        let tag = moved.pop();
        let is_below = tag.is_some_and(|tag| tag < self.size());
        if is_below {
            let pushed = self.control.push_some(moved.tags());
            moved.remove_first(pushed);
        }
        if let Some(tag) = tag.filter(|_| !is_below) {
            // The size became less.
            moved.push(tag);
        }
        if !moved.tags().is_empty() {
            self.put_words(moved.tags(), home);
            *has_moved = true;
        }
        let tag = tag.filter(|_| is_below);
        tag.map_or(Found::Unknown, Found::Tag)
    }

    /// After this CPU's cache was seen without a tag, at a moment when the words had none: that was a moment without a free tag if no
    /// other cache could hold any. One that could had its share claimed by then, and gives it back only while the gate is
    /// closed.
    fn judge(&self, most: u32, gate: u64, size: u32) -> Found {
        match most == self.calm.claimed() && self.is_unchanged(gate, size) {
            true => Found::NoneFree,
            false => Found::Unknown,
        }
    }

    /// Moves half of this CPU's cache, or all of it if it was full the last time as well, and a tag, into the words. Whether it moved others than the tag.
    fn spill(&self, caches: &Caches, tag: u32, home: usize) -> bool {
        let cache = caches.cache(home);
        let share = cache.map_or(0, Cache::most);
        let most = match cache.is_some_and(|cache| cache.moves_again(Moves::Spill)) {
            true => share,
            false => share / 2,
        };
        let mut moved = Moved::new();
        moved.push(tag);
        moved.add(most as usize, |space| self.control.pop_some(space));
        self.put_words(moved.tags(), home);
        moved.tags().len() > 1
    }

    /// Lets a CPU cache tags. The caches together hold half of them at most.
    fn claim(&self, caches: &Caches, cpu: usize, has_moved: &mut bool) -> bool {
        let Some(cache) = caches.cache(cpu).filter(|_| caches.is_usable()) else {
            return false;
        };
        let Some(share) = self.calm.claim(self.size() / 2) else {
            // More CPUs cache than there are shares: takes all back, for smaller ones.
            *has_moved |= self.close();
            self.calm.note_active();
            self.leave();
            return false;
        };
        // Before a sequence can put a tag into it.
        caches.touch(cpu);
        if !cache.claim(share) {
            self.calm.unclaim(share);
        }
        true
    }
}

/// A cache has space for at least this many: N / active CPUs is 8 or more.
const MIN_SHARE: u32 = 4;
/// The gate is closed for this long at least.
const MIN_CLOSED_US: u64 = 1_000;
const MAX_CLOSED_US: u64 = 256_000;
/// An opening that lasted less than this many times the closing before it was too early.
const OPEN_FACTOR: u64 = 8;
/// A CPU takes and puts alone if no other did for this long, which is more than the time slices of a few threads: one that is preempted
/// for a moment comes back.
const ALONE_US: u64 = 32_000;
/// More than one CPU, in `cpu`.
const SEVERAL: u32 = u32::MAX;

/// Whether tags are scarce.
#[derive(Default)]
#[repr(align(128))]
struct Calm {
    /// 1 if a get failed since `since_us`.
    missed: AtomicU32,
    /// Number + 1 of the only CPU that looked since `since_us`, 0 for none.
    cpu: AtomicU32,
    /// When several CPUs were last seen to take and put, 0 for never.
    several_us: AtomicU64,
    /// The fewest free tags of all looks since `since_us`.
    fewest: AtomicU32,
    /// When the gate opened or closed, or when it last had to stay closed.
    since_us: AtomicU64,
    /// How long the gate is closed without a get that fails.
    closed_us: AtomicU64,
    /// How often `share` is halved.
    halvings: AtomicU32,
    /// Tags that a CPU may cache.
    share: AtomicU32,
    /// Tags that all caches may hold now, their sum.
    claimed: AtomicU32,
    /// CPUs that gave their share back since the gate was closed.
    active: AtomicU32,
    revocations: AtomicU64,
}

impl Calm {
    /// For caches of `cpus` CPUs at first.
    fn new(size: u32, cpus: usize) -> Self {
        let this = Self {
            fewest: AtomicU32::new(u32::MAX),
            closed_us: AtomicU64::new(MIN_CLOSED_US),
            ..Self::default()
        };
        let share = this.share_of(cpus as u32, size / 2);
        this.share.store(share, Relaxed);
        this
    }

    /// Tags that all caches may hold now.
    fn claimed(&self) -> u32 {
        self.claimed.load(SeqCst)
    }

    /// A share of `budget` for one more cache; `None` if all is claimed.
    fn claim(&self, budget: u32) -> Option<u32> {
        let share = self.share.load(Relaxed);
        let add = |claimed: u32| (claimed + share <= budget).then_some(claimed + share);
        let claimed = self.claimed.fetch_update(SeqCst, SeqCst, add);
        claimed.is_ok().then_some(share)
    }

    /// A share that was claimed is not used.
    fn unclaim(&self, share: u32) {
        self.claimed.fetch_sub(share, SeqCst);
    }

    /// A CPU that cached, or would have, for the size of the next shares.
    fn note_active(&self) {
        self.active.fetch_add(1, Relaxed);
    }

    fn note_miss(&self) {
        // Read first: all CPUs keep the line while gets go on to fail.
        if self.missed.load(Relaxed) == 0 {
            self.missed.store(1, Relaxed);
        }
    }

    /// A caller waited: another CPU wants tags, even if it does not run a caller now.
    fn note_wait(&self) {
        self.cpu.store(SEVERAL, Relaxed);
        self.note_miss();
    }

    fn note_closing(&self) {
        let now = now_us();
        let opened = self.since_us.swap(now, Relaxed);
        let closed = self.closed_us.load(Relaxed);
        let is_first = self.revocations.fetch_add(1, Relaxed) == 0;
        let lasted = now.saturating_sub(opened);
        if is_first || lasted >= closed * OPEN_FACTOR {
            self.closed_us.store(MIN_CLOSED_US, Relaxed);
            self.halvings.store(0, Relaxed);
        } else if self.share.load(Relaxed) > MIN_SHARE {
            self.halvings.fetch_add(1, Relaxed);
        } else {
            let longer = (closed * 2).min(MAX_CLOSED_US);
            self.closed_us.store(longer, Relaxed);
        }
    }

    /// A look while the gate is closed, on this CPU, at so many free tags of `size`: true if the gate may open.
    fn look(&self, cpu: usize, free: u32, size: u32) -> bool {
        // A thread without an area has the highest number: it counts as several CPUs.
        let cpu = u32::try_from(cpu).map_or(SEVERAL, |cpu| cpu.saturating_add(1));
        let seen = self.cpu.load(Relaxed);
        if seen != cpu && seen != SEVERAL {
            let now = if seen == 0 { cpu } else { SEVERAL };
            self.cpu.store(now, Relaxed);
        }
        self.fewest.fetch_min(free, Relaxed);
        let now = now_us();
        let since = self.since_us.load(Relaxed);
        if now.saturating_sub(since) < self.closed_us.load(Relaxed)
            || (self.since_us.compare_exchange(since, now, Relaxed, Relaxed)).is_err()
        {
            return false;
        }
        let has_missed = self.missed.swap(0, Relaxed) != 0;
        let only = self.cpu.swap(0, Relaxed);
        if only == SEVERAL {
            self.several_us.store(now, Relaxed);
        }
        let is_sole = only == cpu && self.is_alone(cpu, now);
        let fewest = self.fewest.swap(u32::MAX, Relaxed);
        let share = match (is_sole, has_missed) {
            // Where one CPU takes and puts, a cache makes no get fail.
            (true, _) => self.share_of(1, size / 2),
            (false, true) => return false,
            (false, false) => {
                let active = self.active.load(Relaxed).max(2);
                let budget = (fewest / 2).min(size / 2);
                if budget / active < MIN_SHARE {
                    return false;
                }
                self.share_of(active.next_power_of_two(), budget)
            }
        };
        self.share.store(share, Relaxed);
        true
    }

    /// Whether this CPU, the only one since the last look in time, has been that for long.
    fn is_alone(&self, cpu: u32, now: u64) -> bool {
        if cpu == SEVERAL {
            return false;
        }
        let several = self.several_us.load(Relaxed);
        several == 0 || now.saturating_sub(several) >= ALONE_US
    }

    /// The gate is open.
    fn note_opening(&self) {
        self.active.store(0, Relaxed);
    }

    fn share_of(&self, cpus: u32, budget: u32) -> u32 {
        let share = (budget / cpus.max(1)).min(MOST);
        let halved = share >> self.halvings.load(Relaxed).min(31);
        halved.max(MIN_SHARE)
    }
}
