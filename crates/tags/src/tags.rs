use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bitmap::Bitmap;
use crate::builder::Builder;
use crate::pool::Pool;
use crate::waiters::{Waiters, Wake};
use crate::{Batch, BuildError, Get, OwnedTag, Policy, Statistics, Tag};

/// The tags 0..N and who may have them next.
///
/// Any number of threads share it by reference, by [`Arc`], or as a `static` [`LazyLock`](std::sync::LazyLock).
pub struct Tags {
    pool: Pool,
    waiters: Waiters,
    reserved: Bitmap,
    reserved_tags: u32,
    capacity: u32,
    policy: Policy,
}

/// A size that an allocator cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResizeError {
    tags: u32,
    least: u32,
    capacity: u32,
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tags,
            least,
            capacity,
        } = self;
        write!(f, "{tags} tags: {least} to {capacity} are possible")
    }
}

impl std::error::Error for ResizeError {}

impl Tags {
    /// `tags` tags under the policy `Auto`.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(tags: u32) -> Result<Self, BuildError> {
        Self::builder(tags).build()
    }

    /// An allocator of `tags` tags, the reserved ones counted.
    pub fn builder(tags: u32) -> Builder {
        Builder::new(tags)
    }

    pub(crate) fn from_parts(
        pool: Pool,
        reserved: Bitmap,
        builder: &Builder,
        capacity: u32,
    ) -> Self {
        Self {
            pool,
            waiters: Waiters::default(),
            reserved,
            reserved_tags: builder.reserved,
            capacity,
            policy: builder.policy,
        }
    }

    /// A tag, or `None` if there was a moment without a free one.
    #[inline]
    pub fn try_get(&self) -> Option<Tag<'_>> {
        self.try_take().map(|tag| Tag::new(self, tag))
    }

    /// A tag; waits for one.
    pub fn get(&self) -> Tag<'_> {
        Tag::new(self, self.take())
    }

    /// A tag, or `None` if none was handed over in time.
    pub fn get_timeout(&self, timeout: Duration) -> Option<Tag<'_>> {
        self.take_timeout(timeout).map(|tag| Tag::new(self, tag))
    }

    /// A tag, once the future is ready. A future that is dropped gives its place, or its tag, to the next.
    pub fn get_async(&self) -> Get<'_> {
        Get::new(self)
    }

    /// As `try_get`, with a guard that keeps the allocator alive.
    pub fn try_get_owned(self: &Arc<Self>) -> Option<OwnedTag> {
        let tag = self.try_take()?;
        Some(OwnedTag::new(self.clone(), tag))
    }

    /// Up to `most` tags; fewer, or none, if there was a moment without another free one.
    pub fn try_get_batch(&self, most: usize) -> Batch<'_> {
        let mut tags = Vec::with_capacity(most.min(self.capacity as usize));
        while tags.len() < most
            && let Some(tag) = self.try_take()
        {
            tags.push(tag);
        }
        Batch::new(self, tags)
    }

    /// As `try_get`, without a guard: the caller puts it back with `put`.
    #[inline]
    pub fn try_take(&self) -> Option<u32> {
        self.pool.take()
    }

    /// As `get`, without a guard.
    pub fn take(&self) -> u32 {
        self.take_until(None)
            .expect("a wait without a deadline ends with a tag")
    }

    /// As `get_timeout`, without a guard.
    pub fn take_timeout(&self, timeout: Duration) -> Option<u32> {
        self.take_until(Instant::now().checked_add(timeout))
    }

    fn take_until(&self, deadline: Option<Instant>) -> Option<u32> {
        if let Some(tag) = self.try_take() {
            return Some(tag);
        }
        let entry = self.waiters.enqueue(Wake::Thread(std::thread::current()));
        self.after_enqueue();
        self.waiters.sleep(&entry, deadline)
    }

    /// A tag may have become free, or into a cache, before the waiter was seen.
    pub(crate) fn after_enqueue(&self) {
        self.pool.revoke();
        self.waiters.serve(|| self.pool.take());
    }

    /// Makes a tag free that `take`, `try_take`, or `take_timeout` returned, or that a guard was dissolved into.
    ///
    /// # Panics
    /// If there is no such tag. A tag that is not held is not noticed in a build without debug assertions: it will be handed out
    /// twice.
    #[inline]
    pub fn put(&self, tag: u32) {
        assert!(tag < self.capacity, "there is no tag {tag}");
        if tag < self.reserved_tags {
            return self.reserved.put(tag);
        }
        if !self.pool.put_cached(tag) {
            self.pool.put(tag);
            self.waiters.serve(|| self.pool.take());
        }
    }

    /// A reserved tag, if one is free; [`put`](Self::put) makes it free again.
    pub fn try_take_reserved(&self) -> Option<u32> {
        self.reserved.take(self.reserved_tags, 0)
    }

    /// Sets the number of tags, the reserved ones counted. Tags at or above it that are held stay valid; they are not handed out
    /// again once they are put.
    ///
    /// # Errors
    /// More than the capacity, or none that is not reserved.
    pub fn resize(&self, tags: u32) -> Result<(), ResizeError> {
        let least = self.reserved_tags + 1;
        if !(least..=self.capacity).contains(&tags) {
            let capacity = self.capacity;
            return Err(ResizeError {
                tags,
                least,
                capacity,
            });
        }
        self.pool.resize(tags);
        self.waiters.serve(|| self.pool.take());
        Ok(())
    }

    /// The number of tags, the reserved ones counted.
    pub fn size(&self) -> u32 {
        self.pool.size()
    }

    /// Up to how many tags `resize` may grow.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many tags that are not reserved were free while they were counted.
    pub fn free(&self) -> u32 {
        self.pool.free()
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// What it did so far.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            waits: self.waiters.waits(),
            hand_overs: self.waiters.hand_overs(),
            ..self.pool.statistics()
        }
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tags")
            .field("policy", &self.policy)
            .field("size", &self.size())
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}
