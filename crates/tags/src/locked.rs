//! Caches under locks of their own over a pool under one lock: `Stock`, `Limit` and `LimitTopology`.
//!
//! ```text
//! take: own cache ─► lock the pool ─► a batch of the pool ─► all tags of another cache that is listed
//! put:  own cache ─► full: lock the pool, move a batch to it
//! ```
//!
//! What is published, and reproduced since the experiment compares it (lib/percpu_ida.c of Linux 3.13 to 4.18, block/blk-mq-tag.c
//! of 3.14, and the patch of April 2014 that limits caches and looks for near ones first):
//! - The pool's lock is held while tags move between caches. It is the one that half of the published system time goes to.
//! - A CPU without tags empties the other cache, whatever it needs; the other CPU is without tags then, and does the same.
//! - A shared list says which caches may hold tags: put adds a cache to it when its first tag comes, only a search removes it. In turns:
//!   each search continues after the cache where the last one of any CPU ended.
//! - Sizes: N / possible CPUs (`Stock`) or N / min(8, online CPUs) (`Limit`), from 1 to 64; half of it moves at once; a cache that
//!   a put fills gives half of its tags to the pool. So a cache of size 1 holds no tags. With these sizes all caches
//!   together can hold every tag: other policies hold at most half of N in caches.
//!
//! What differs: a CPU's threads may move, so the own cache is locked in a search as well; and a search goes on while any cache is
//! listed. (3.13 gave up below half of the tags.) Thus `take` fails only if there was a moment without a free tag: the pool was empty
//! and locked, no tag was in transit since only the holder of that lock moves some, and [`Bitmap::take`] proves a moment at
//! which no cache was listed. A cache that holds a tag is listed, or the holder of the lock is about to empty it.
//!
//! The kernel disables interrupts while it holds these locks. A thread cannot: who needs the lock of one that is preempted, or stopped
//! by a signal inside a call, waits for it, and a signal handler must not call. `Coarse` and `Auto` have no locks.

use std::sync::OnceLock;

use crate::sync::{AtomicU32, Mutex, Ordering::SeqCst, lock};
use crate::topology::{Nearness, Order, Steals};
use crate::word::{Apart, Bitmap};

/// Which cache is emptied when the pool is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Search {
    InTurns,
    NearestFirst,
}

/// The fewest and the most tags of a cache: the kernel's BLK_MQ_TAG_CACHE_MIN and BLK_MQ_TAG_CACHE_MAX.
const CACHE_TAGS: (u32, u32) = (1, 64);

pub(crate) struct Locked {
    order: Order,
    search: Search,
    /// The tags are divided by it: what a cache holds.
    divisor: u32,
    caches: Box<[OnceLock<Box<CpuCache>>]>,
    /// The caches that may hold tags.
    listed: Bitmap,
    pool: Apart<Mutex<SharedPool>>,
    /// A copy of `SharedPool::limit`.
    limit: AtomicU32,
    capacity: u32,
}

/// Its lock is taken after that of the pool, never before it, and never two at once.
type CpuCache = Apart<Mutex<Stack>>;

#[derive(Default)]
struct Stack {
    /// Tags from here on are not kept.
    limit: u32,
    size: u16,
    len: u16,
    is_listed: bool,
    lines: Box<[Line]>,
}

/// Tags of a cache.
type Line = Apart<[u32; LINE_TAGS]>;

const LINE_TAGS: usize = 16;

#[derive(Default)]
struct SharedPool {
    free: Vec<u32>,
    /// Tags at or above the limit.
    retired: Vec<u32>,
    /// Tags on their way between caches; empty while the lock is not held.
    moving: Vec<u32>,
    limit: u32,
    reserved: u32,
    /// Where the next search in turns begins.
    next: u32,
    refills: u64,
    steals: Steals,
}

impl Locked {
    /// Tags `reserved..tags` are free, those up to `capacity` are retired.
    pub(crate) fn new(
        order: Order,
        search: Search,
        divisor: u32,
        (reserved, tags, capacity): (u32, u32, u32),
    ) -> Self {
        let pool = SharedPool {
            free: (reserved..tags).collect(),
            retired: (tags..capacity).collect(),
            limit: tags,
            reserved,
            ..SharedPool::default()
        };
        Self {
            search,
            divisor,
            caches: (0..order.len()).map(|_| OnceLock::new()).collect(),
            listed: Bitmap::new(order.len() as u32),
            order,
            pool: Apart(Mutex::new(pool)),
            limit: AtomicU32::new(tags),
            capacity,
        }
    }

    /// A free tag for a thread of this CPU. `None` only if there was a moment without one.
    #[inline]
    pub(crate) fn take(&self, cpu: usize) -> Option<u32> {
        let own = self.order.cache(cpu);
        let cached = (self.caches[own].get()).and_then(|cache| lock(&cache.0).pop());
        cached.or_else(|| self.take_uncached(own))
    }

    #[cold]
    fn take_uncached(&self, own: usize) -> Option<u32> {
        let mut pool = lock(&self.pool.0);
        let cache = self.cache(own, &pool);
        // Another thread of the CPU may have put one.
        if let Some(tag) = lock(&cache.0).pop() {
            return Some(tag);
        }
        if let Some(tag) = pool.free.pop() {
            self.refill(own, cache, &mut pool);
            return Some(tag);
        }
        self.steal(own, cache, &mut pool)
    }

    fn refill(&self, own: usize, cache: &CpuCache, pool: &mut SharedPool) {
        pool.refills += 1;
        let mut stack = lock(&cache.0);
        for _ in 1..stack.batch() {
            // It was empty when it was unlocked; threads of its CPU may have filled it meanwhile.
            if stack.is_full() {
                break;
            }
            match pool.free.pop() {
                Some(tag) => self.push(own, &mut stack, tag),
                None => break,
            }
        }
    }

    /// Moves the tags of another cache to the own one, but for the one that is returned.
    fn steal(&self, own: usize, cache: &CpuCache, pool: &mut SharedPool) -> Option<u32> {
        while let Some(other) = self.next_listed(own, pool) {
            if let Some(stolen) = self.caches[other].get() {
                lock(&stolen.0).drain(&mut pool.moving);
            }
            let Some(tag) = pool.moving.pop() else {
                continue;
            };
            if other != own {
                let tags = pool.moving.len() as u64 + 1;
                count(&mut pool.steals, self.order.nearness(own, other), tags);
            }
            let mut stack = lock(&cache.0);
            while let Some(tag) = pool.moving.pop() {
                match stack.is_full() {
                    false => self.push(own, &mut stack, tag),
                    true => pool.free.push(tag),
                }
            }
            return Some(tag);
        }
        None
    }

    /// A cache that is listed, no longer. `None` only if there was a moment at which none was.
    fn next_listed(&self, own: usize, pool: &mut SharedPool) -> Option<usize> {
        let all = self.order.len() as u32;
        let own = own as u32;
        let from = |first: u32, range: std::ops::Range<u32>| {
            let rest = range.start..first;
            let found = self.listed.take_in(first..range.end);
            found.or_else(|| self.listed.take_in(rest))
        };
        let found = match self.search {
            Search::InTurns => from(pool.next, 0..all),
            Search::NearestFirst => {
                let mut ranges = self.order.nearest_first(own as usize);
                ranges.find_map(|range| {
                    let is_own = range.contains(&own);
                    from(if is_own { own } else { range.start }, range)
                })
            }
        };
        let found = found.or_else(|| self.listed.take(all))?;
        pool.next = (found + 1) % all;
        Some(found as usize)
    }

    /// Makes a tag free on this CPU.
    #[inline]
    pub(crate) fn put(&self, cpu: usize, tag: u32) {
        let own = self.order.cache(cpu);
        let cache = match self.caches[own].get() {
            Some(cache) => cache,
            None => self.cache(own, &lock(&self.pool.0)),
        };
        let mut stack = lock(&cache.0);
        if tag >= stack.limit || stack.is_full() {
            drop(stack);
            return lock(&self.pool.0).put(tag);
        }
        self.push(own, &mut stack, tag);
        let is_full = stack.is_full();
        drop(stack);
        if is_full {
            self.spill(cache);
        }
    }

    /// Moves a batch from a full cache to the pool.
    #[cold]
    fn spill(&self, cache: &CpuCache) {
        let mut pool = lock(&self.pool.0);
        let mut stack = lock(&cache.0);
        if stack.is_full() {
            let batch = stack.batch();
            pool.free.extend((0..batch).map_while(|_| stack.pop()));
        }
    }

    /// Lists the cache before the tag is in it.
    fn push(&self, own: usize, stack: &mut Stack, tag: u32) {
        if !stack.is_listed {
            stack.is_listed = true;
            self.listed.put(own as u32);
        }
        stack.push(tag);
    }

    /// A cache, made when it is first used: the pool is locked so that none is made while the limit changes.
    fn cache(&self, index: usize, pool: &SharedPool) -> &CpuCache {
        self.caches[index].get_or_init(|| {
            let mut stack = Stack::default();
            stack.resize(pool.limit, self.cache_size(pool), &mut Vec::new());
            Box::new(Apart(Mutex::new(stack)))
        })
    }

    /// How many tags a cache holds.
    fn cache_size(&self, pool: &SharedPool) -> usize {
        let size = (pool.limit - pool.reserved) / self.divisor;
        size.clamp(CACHE_TAGS.0, CACHE_TAGS.1) as usize
    }

    /// Sets the number of tags. Those above it that are cached, or come back later, are retired. Returns how many are held.
    pub(crate) fn resize(&self, tags: u32) -> u32 {
        let mut pool = lock(&self.pool.0);
        let pool = &mut *pool;
        pool.limit = tags;
        // While the caches change, `size` is the larger one: tags above the smaller one may still be handed out.
        self.limit.fetch_max(tags, SeqCst);
        let size = self.cache_size(pool);
        let caches = self.caches.iter().filter_map(OnceLock::get);
        for cache in caches {
            lock(&cache.0).resize(tags, size, &mut pool.free);
        }
        pool.free.append(&mut pool.retired);
        let retired = pool.free.extract_if(.., |tag| *tag >= tags);
        pool.retired.extend(retired);
        self.limit.store(tags, SeqCst);
        self.capacity - tags - pool.retired.len() as u32
    }

    pub(crate) fn size(&self) -> u32 {
        self.limit.load(SeqCst)
    }

    /// Free tags, counted cache by cache.
    pub(crate) fn free(&self) -> u32 {
        let pool = lock(&self.pool.0);
        let caches = self.caches.iter().filter_map(OnceLock::get);
        let cached: u32 = caches.map(|cache| u32::from(lock(&cache.0).len)).sum();
        pool.free.len() as u32 + cached
    }

    /// How often a cache was filled from the pool, and how often from another cache.
    pub(crate) fn counts(&self) -> (u64, Steals) {
        let pool = lock(&self.pool.0);
        (pool.refills, pool.steals)
    }
}

impl SharedPool {
    fn put(&mut self, tag: u32) {
        match tag < self.limit {
            true => self.free.push(tag),
            false => self.retired.push(tag),
        }
    }
}

impl Stack {
    fn is_full(&self) -> bool {
        self.len >= self.size
    }

    /// How many tags move between it and the pool at once.
    fn batch(&self) -> usize {
        usize::from(self.size / 2).max(1)
    }

    fn push(&mut self, tag: u32) {
        *self.place(self.len) = tag;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(*self.place(self.len))
    }

    fn place(&mut self, index: u16) -> &mut u32 {
        let index = usize::from(index);
        &mut self.lines[index / LINE_TAGS].0[index % LINE_TAGS]
    }

    /// Moves all tags; the caller removed the cache from the list.
    fn drain(&mut self, into: &mut Vec<u32>) {
        self.is_listed = false;
        into.extend(std::iter::from_fn(|| self.pop()));
    }

    /// Moves the tags out; those that may be kept come back by use.
    fn resize(&mut self, limit: u32, size: usize, into: &mut Vec<u32>) {
        into.extend(std::iter::from_fn(|| self.pop()));
        self.limit = limit;
        self.size = size as u16;
        self.lines = vec![Apart([0; LINE_TAGS]); size.div_ceil(LINE_TAGS)].into_boxed_slice();
    }
}

fn count(steals: &mut Steals, nearness: Option<Nearness>, tags: u64) {
    match nearness {
        None => return,
        Some(Nearness::Core) => steals.core += 1,
        Some(Nearness::CoreGroup) => steals.core_group += 1,
        Some(Nearness::Llc) => steals.llc += 1,
        Some(Nearness::Node) => steals.node += 1,
        Some(Nearness::Remote(distance)) => {
            steals.remote += 1;
            steals.remote_distance += u64::from(distance);
        }
    }
    steals.tags += tags;
}
