//! The free tags of an allocator, kept as its policy says.

use crate::bitmap::Bitmap;
use crate::builder::Builder;
use crate::statistics::Statistics;
use crate::sync::{AtomicU32, Ordering};

/// Every policy is one of these.
pub(crate) struct Pool {
    words: Bitmap,
    /// Tags at or above it are not handed out.
    limit: AtomicU32,
}

impl Pool {
    pub(crate) fn new(builder: &Builder, capacity: u32) -> Self {
        let words = Bitmap::new(capacity);
        (builder.reserved..builder.tags).for_each(|tag| words.put(tag));
        Self {
            words,
            limit: AtomicU32::new(builder.tags),
        }
    }

    /// A free tag. `None` only if there was a moment without one, tags that another thread moves counted as held.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        self.words.take(self.limit.load(Ordering::SeqCst), 0)
    }

    /// Makes a tag free by the shortest way, without a look at waiters: false, and nothing done, where the policy has no such way or
    /// somebody waits (between `revoke` and `calm`).
    #[inline]
    pub(crate) fn put_cached(&self, tag: u32) -> bool {
        let _ = tag;
        false
    }

    /// Makes a tag free. The caller looks at waiters before and after. Between `revoke` and `calm` the tag is where `take` of any
    /// thread finds it.
    pub(crate) fn put(&self, tag: u32) {
        self.words.put(tag);
    }

    /// Somebody is about to wait: makes every free tag reachable by `take` of any thread, now and until each `revoke` had its `calm`.
    /// Tags that another thread was moving meanwhile are reachable as well when this returns, or that thread calls `put`.
    pub(crate) fn revoke(&self) {}

    /// A waiter has ended its wait: one for each `revoke`.
    pub(crate) fn calm(&self) {}

    /// Sets the number of tags. Those above it that are held or cached come back and stay.
    pub(crate) fn resize(&self, tags: u32) {
        self.limit.store(tags, Ordering::SeqCst);
    }

    pub(crate) fn size(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    /// Free tags, roughly: others take and put meanwhile.
    pub(crate) fn free(&self) -> u32 {
        self.words.free(self.size())
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}
