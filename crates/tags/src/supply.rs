//! Free tags and the callers that wait for them.

use std::task::Waker;
use std::time::Instant;

use crate::bitmap::Bitmap;
use crate::pool::Pool;
use crate::queue::{Granted, Place, Shared};
use crate::waiters::{MAX_PASSES, Waiters};

/// Attempts before a caller yields, or joins the queue.
const SPINS: u32 = 10;
/// The longest pause between attempts.
const MAX_PAUSES_LOG2: u32 = 6;

pub(crate) struct Supply<P> {
    pub pool: P,
    pub waiters: Waiters,
}

impl<P: Shared> Supply<P> {
    pub(crate) fn new(pool: P) -> Self {
        let waiters = Waiters::new(MAX_PASSES);
        Self { pool, waiters }
    }

    /// A tag, or `None` if there was a moment without a free one.
    pub(crate) fn take(&self) -> Option<u32> {
        self.waiters.take(&self.pool)
    }

    /// A tag; waits for one until the deadline.
    pub(crate) fn take_until(&self, deadline: Option<Instant>) -> Option<u32> {
        if let Some(tag) = self.spin() {
            return Some(tag);
        }
        let place = self.waiters.join(1, None, &self.pool);
        match self.waiters.sleep(&place, deadline, &self.pool)? {
            Granted::Tag(tag) => Some(tag),
            Granted::Batch(_) => unreachable!("one tag is wanted"),
        }
    }

    /// Tries for about as long as it takes to sleep and wake. Longer and longer pauses let a thread that takes and puts use its cache
    /// line; a yield lets one run that was interrupted while it held a tag, unless others wait and would be passed by it.
    fn spin(&self) -> Option<u32> {
        for round in 0..SPINS {
            if self.waiters.is_overdue() {
                return None;
            }
            for _ in 0..1 << round.min(MAX_PAUSES_LOG2) {
                std::hint::spin_loop();
            }
            if let Some(tag) = self.take() {
                return Some(tag);
            }
        }
        if self.waiters.has_waiters() {
            return None;
        }
        std::thread::yield_now();
        self.take()
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
                let granted = self.waiters.sleep(&place, deadline, &self.pool);
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
        let mut tags = vec![0; wanted];
        let taken = self.take_batch(&mut tags);
        if taken == wanted {
            return Ok(Some(tags));
        }
        // Kept, they could be the ones that another caller with a part of a batch waits for.
        self.put_batch(&tags[..taken]);
        let place = self.waiters.join(wanted, waker, &self.pool);
        if wanted > usable() {
            // The size became less before it joined.
            self.leave(&place);
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

    #[inline]
    pub(crate) fn put(&self, tag: u32) {
        self.waiters.put(tag, &self.pool);
    }

    pub(crate) fn put_batch(&self, tags: &[u32]) {
        self.waiters.put_batch(tags, &self.pool);
    }

    /// Ends a wait that its caller gives up.
    pub(crate) fn leave(&self, place: &Place) {
        if let Some(granted) = self.waiters.leave(place, &self.pool) {
            self.put_batch(&granted.into_tags());
        }
    }
}

impl Shared for Pool {
    #[inline]
    fn take(&self) -> (Option<u32>, bool) {
        // It looks into the cache of this CPU as well.
        self.take_shared()
    }

    #[inline]
    fn put(&self, tag: u32) -> bool {
        Pool::put(self, tag)
    }

    fn is_retired(&self, tag: u32) -> bool {
        tag >= self.size()
    }

    fn revoke(&self) {
        Pool::revoke(self);
    }

    fn calm(&self) {
        Pool::calm(self);
    }
}

/// The reserved tags. They are few and never cached.
pub(crate) struct Reserved {
    words: Bitmap,
    tags: u32,
}

impl Reserved {
    /// Tags 0..`tags`, all free.
    pub(crate) fn new(tags: u32) -> Self {
        let words = Bitmap::new(tags);
        (0..tags).for_each(|tag| words.put(tag));
        Self { words, tags }
    }

    pub(crate) fn has(&self, tag: u32) -> bool {
        tag < self.tags
    }

    pub(crate) fn tags(&self) -> u32 {
        self.tags
    }
}

impl Shared for Reserved {
    fn take(&self) -> (Option<u32>, bool) {
        (self.words.take(self.tags), false)
    }

    fn put(&self, tag: u32) -> bool {
        self.words.put(tag);
        false
    }

    fn is_retired(&self, _: u32) -> bool {
        false
    }

    fn revoke(&self) {}

    fn calm(&self) {}
}
