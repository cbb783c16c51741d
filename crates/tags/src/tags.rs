//! The allocator and its public forms.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::fork::Process;
use crate::guard::{Kind, Wait};
use crate::pool::{Pool, Reserved};
use crate::sync::lock;
use crate::waiters::{MAX_PASSES, Shared as _, Supply};
use crate::{Batch, BuildError, Builder, Get, GetBatch, GetOwned, OwnedTag, Policy, Steals, Tag};

/// The tags 0..N and who may have them next.
///
/// Any number of threads share it by reference, by [`Arc`], or as a `static`:
///
/// ```
/// use std::sync::LazyLock;
/// use nearfar_tags::Tags;
///
/// static TAGS: LazyLock<Tags> = LazyLock::new(|| Tags::new(255).expect("255 tags are possible"));
///
/// let tag = TAGS.get();
/// assert!(tag.number() < 255);
/// ```
///
/// # Waiting
/// Callers that wait are served in the order of their arrival. While a woken waiter is on its way, a thread that runs may take a tag
/// before it. A waiter that was woken and found no tag is overdue, and so is the first waiter once a tag that one was woken for was
/// put 1000 times more, or 1000 tags were put while all waiters were on their way, and every task or batch from its first wait on. While a waiter is overdue, each tag that is put goes to the
/// first waiter, and no other thread sees it.
///
/// So an overdue waiter at position k has a tag after k puts at most, and any waiter, even if none of them ever runs, after 10,000 k
/// puts (1002 k of the same tag). A batch counts as many times as it wants tags.
///
/// # Fork
/// In a forked child the tags belong to the parent: getting one panics, putting one and dropping a guard or a future does nothing. The
/// child can make an allocator of its own.
pub struct Tags {
    pub(crate) supply: Supply<Pool>,
    pub(crate) reserved: Supply<Reserved>,
    /// Held while the size changes.
    resize: Mutex<()>,
    capacity: u32,
    policy: Policy,
    pub(crate) process: Process,
}

/// Counts since the allocator was made. Each is counted where it is rare: a get from a cache at hand counts nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// How often tags of another cache were taken.
    pub steals: Steals,
    /// How often a cache was filled from the shared pool.
    pub refills: u64,
    /// How often a caller waited.
    pub waits: u64,
}

/// A size that an allocator cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResizeError {
    tags: u32,
    least: u32,
    capacity: u32,
}

impl ResizeError {
    /// The size that is not possible.
    pub fn tags(&self) -> u32 {
        self.tags
    }

    /// The sizes that are.
    pub fn possible(&self) -> RangeInclusive<u32> {
        self.least..=self.capacity
    }
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tags, least, capacity) = (self.tags, self.least, self.capacity);
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

    /// The builder was checked.
    pub(crate) fn of(builder: &Builder, capacity: u32) -> Self {
        Self {
            supply: Supply::new(Pool::new(builder, capacity), MAX_PASSES),
            reserved: Supply::new(Reserved::new(builder.reserved), MAX_PASSES),
            resize: Mutex::new(()),
            capacity,
            policy: builder.policy,
            process: Process::current(),
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

    /// A tag, or `None` if there was none for that long. Zero does not wait; a time beyond the clock's range is no limit.
    pub fn get_timeout(&self, timeout: Duration) -> Option<Tag<'_>> {
        self.take_timeout(timeout).map(|tag| Tag::new(self, tag))
    }

    /// A tag, once the future is ready, under any executor. A future that is dropped gives its place, or its tag, to the next. One that is neither polled nor
    /// dropped keeps its place, and the tag that is handed to it.
    pub fn get_async(&self) -> Get<'_> {
        Get(Wait::new(self, Kind::Ordinary))
    }

    /// As `try_get`, with a guard that keeps the allocator alive.
    pub fn try_get_owned(self: &Arc<Self>) -> Option<OwnedTag> {
        let tag = self.try_take()?;
        Some(OwnedTag::new(self.clone(), tag))
    }

    /// As `get`, with a guard that keeps the allocator alive.
    pub fn get_owned(self: &Arc<Self>) -> OwnedTag {
        OwnedTag::new(self.clone(), self.take())
    }

    /// As `get_timeout`, with a guard that keeps the allocator alive.
    pub fn get_owned_timeout(self: &Arc<Self>, timeout: Duration) -> Option<OwnedTag> {
        let tag = self.take_timeout(timeout)?;
        Some(OwnedTag::new(self.clone(), tag))
    }

    /// As `get_async`, with a future and a guard that keep the allocator alive.
    pub fn get_owned_async(self: &Arc<Self>) -> GetOwned {
        GetOwned(Wait::new(self.clone(), Kind::Ordinary))
    }

    /// Up to `most` tags; fewer, or none, if there was a moment without another free one.
    pub fn try_get_batch(&self, most: usize) -> Batch<'_> {
        self.process.assert();
        let most = most.min(self.capacity as usize);
        Batch::new(self, self.supply.take_up_to(most))
    }

    /// Exactly `tags` tags; waits for them. `None` if there are fewer that are not reserved, or `resize` leaves fewer meanwhile.
    ///
    /// The caller gets all at once: while it waits it keeps no tag unless it is the first waiter, so two callers that hold no
    /// other tags cannot wait for each other.
    pub fn get_batch(&self, tags: usize) -> Option<Batch<'_>> {
        self.get_batch_until(Kind::Ordinary, tags, None)
    }

    /// As `get_batch`; also `None` if there were not as many for that long.
    pub fn get_batch_timeout(&self, tags: usize, timeout: Duration) -> Option<Batch<'_>> {
        let deadline = Instant::now().checked_add(timeout);
        self.get_batch_until(Kind::Ordinary, tags, deadline)
    }

    fn get_batch_until(
        &self,
        kind: Kind,
        wanted: usize,
        deadline: Option<Instant>,
    ) -> Option<Batch<'_>> {
        self.process.assert();
        let usable = || self.usable(kind);
        let tags = match kind {
            Kind::Ordinary => self.supply.take_all_until(wanted, usable, deadline),
            Kind::Reserved => self.reserved.take_all_until(wanted, usable, deadline),
        };
        Some(Batch::new(self, tags?))
    }

    /// As `get_batch`, once the future is ready. A future that is dropped gives what it was given to the next.
    pub fn get_batch_async(&self, tags: usize) -> GetBatch<'_> {
        let (wait, wanted) = (Wait::new(self, Kind::Ordinary), tags);
        GetBatch { wait, wanted }
    }

    /// As `try_get`, without a guard: the caller puts it back with `put`.
    #[inline]
    pub fn try_take(&self) -> Option<u32> {
        match self.supply.pool.auto.take_cached() {
            None => self.try_take_shared(),
            tag => tag,
        }
    }

    #[inline(never)]
    fn try_take_shared(&self) -> Option<u32> {
        self.process.assert();
        self.supply.take()
    }

    /// As `get`, without a guard.
    pub fn take(&self) -> u32 {
        self.try_take().unwrap_or_else(|| self.supply.wait())
    }

    /// As `get_timeout`, without a guard.
    pub fn take_timeout(&self, timeout: Duration) -> Option<u32> {
        self.try_take()
            .or_else(|| self.supply.take_timeout(timeout))
    }

    /// As `try_get_batch`, without guards and memory: fills `tags` from its start and returns how many there are.
    pub fn try_take_batch(&self, tags: &mut [u32]) -> usize {
        self.process.assert();
        self.supply.take_batch(tags)
    }

    /// Makes a tag free that `take`, `try_take`, or `take_timeout` returned, or that a guard was dissolved into.
    ///
    /// # Panics
    /// If there is no such tag, or it is in the shared words already. A tag that is not held is not noticed everywhere: it, or another
    /// one, is handed out twice or lost then.
    #[inline]
    pub fn put(&self, tag: u32) {
        // A cache refuses what is no tag.
        if self.reserved.pool.has(tag) || !self.supply.pool.auto.put_cached(tag) {
            self.put_shared(tag);
        }
    }

    fn put_shared(&self, tag: u32) {
        assert!(tag < self.capacity, "there is no tag {tag}");
        match (self.process.has_forked(), self.reserved.pool.has(tag)) {
            (true, _) => {}
            (false, true) => self.reserved.put(tag),
            (false, false) => self.supply.put(tag),
        }
    }

    /// As `put` for each of them, with one look at waiters.
    ///
    /// # Panics
    /// As `put`. If there is no such tag, none of them is free then; otherwise some may be, and no waiter was woken for them.
    pub fn put_batch(&self, tags: &[u32]) {
        let mut are_ordinary = true;
        for &tag in tags {
            assert!(tag < self.capacity, "there is no tag {tag}");
            are_ordinary &= !self.reserved.pool.has(tag);
        }
        if self.process.has_forked() {
            return;
        }
        match are_ordinary {
            true => self.supply.put_batch(tags),
            false => tags.iter().for_each(|&tag| self.put(tag)),
        }
    }

    /// The tags that [`Builder::reserved`] keeps for who asks for them here; `None` if there are none.
    pub fn reserved(&self) -> Option<ReservedTags<'_>> {
        let has_some = self.reserved.pool.tags != 0;
        has_some.then_some(ReservedTags { tags: self })
    }

    /// Sets the number of tags, the reserved ones counted, and returns how many at or above it are still held. Those stay valid; they
    /// are not handed out once they are put, until the number is raised again. Tags that become free by this are given to waiters.
    ///
    /// # Errors
    /// More than the capacity, or none that is not reserved.
    pub fn resize(&self, tags: u32) -> Result<u32, ResizeError> {
        self.process.assert();
        let least = self.reserved.pool.tags + 1;
        if !(least..=self.capacity).contains(&tags) {
            let capacity = self.capacity;
            return Err(ResizeError {
                tags,
                least,
                capacity,
            });
        }
        let one_at_a_time = lock(&self.resize);
        let held = self.supply.pool.resize(tags);
        let retired = self.supply.take_retired();
        for &tag in &retired {
            // The waiters are served below.
            self.supply.pool.put(tag);
        }
        drop(one_at_a_time);
        let usable = (tags + 1 - least) as usize;
        self.supply.end_larger(usable);
        self.supply.serve();
        Ok(held - retired.len() as u32)
    }

    /// The number of tags, the reserved ones counted.
    pub fn size(&self) -> u32 {
        self.supply.pool.size()
    }

    /// Up to how many tags `resize` may grow.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many tags that are not reserved were free while they were counted. 0 in a forked child.
    pub fn free(&self) -> u32 {
        match self.process.has_forked() {
            true => 0,
            false => self.supply.pool.free(),
        }
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// What it did so far; nothing in a forked child.
    pub fn statistics(&self) -> Statistics {
        if self.process.has_forked() {
            return Statistics::default();
        }
        let mut statistics = self.supply.pool.statistics();
        statistics.waits = self.supply.waits();
        statistics
    }

    /// How many tags of a kind there are, free or not.
    pub(crate) fn usable(&self, kind: Kind) -> usize {
        let reserved = self.reserved.pool.tags;
        match kind {
            Kind::Ordinary => (self.size() - reserved) as usize,
            Kind::Reserved => reserved as usize,
        }
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

/// The reserved tags of an allocator that has some, in the forms of [`Tags`]. Guards and [`Tags::put`] make them free again.
#[derive(Clone, Copy, Debug)]
pub struct ReservedTags<'a> {
    tags: &'a Tags,
}

impl<'a> ReservedTags<'a> {
    /// How many there are, free or not.
    pub fn size(&self) -> u32 {
        self.tags.reserved.pool.tags
    }

    /// As [`Tags::try_get`].
    pub fn try_get(&self) -> Option<Tag<'a>> {
        self.try_take().map(|tag| Tag::new(self.tags, tag))
    }

    /// As [`Tags::get`].
    pub fn get(&self) -> Tag<'a> {
        Tag::new(self.tags, self.take())
    }

    /// As [`Tags::get_timeout`].
    pub fn get_timeout(&self, timeout: Duration) -> Option<Tag<'a>> {
        self.take_timeout(timeout)
            .map(|tag| Tag::new(self.tags, tag))
    }

    /// As [`Tags::get_async`].
    pub fn get_async(&self) -> Get<'a> {
        Get(Wait::new(self.tags, Kind::Reserved))
    }

    /// As [`Tags::try_get_batch`].
    pub fn try_get_batch(&self, most: usize) -> Batch<'a> {
        self.tags.process.assert();
        let most = most.min(self.size() as usize);
        Batch::new(self.tags, self.tags.reserved.take_up_to(most))
    }

    /// As [`Tags::get_batch`].
    pub fn get_batch(&self, tags: usize) -> Option<Batch<'a>> {
        self.tags.get_batch_until(Kind::Reserved, tags, None)
    }

    /// As [`Tags::get_batch_timeout`].
    pub fn get_batch_timeout(&self, tags: usize, timeout: Duration) -> Option<Batch<'a>> {
        let deadline = Instant::now().checked_add(timeout);
        self.tags.get_batch_until(Kind::Reserved, tags, deadline)
    }

    /// As [`Tags::get_batch_async`].
    pub fn get_batch_async(&self, tags: usize) -> GetBatch<'a> {
        let (wait, wanted) = (Wait::new(self.tags, Kind::Reserved), tags);
        GetBatch { wait, wanted }
    }

    /// As [`Tags::try_take`].
    pub fn try_take(&self) -> Option<u32> {
        self.tags.process.assert();
        self.tags.reserved.take()
    }

    /// As [`Tags::take`].
    pub fn take(&self) -> u32 {
        self.try_take().unwrap_or_else(|| self.tags.reserved.wait())
    }

    /// As [`Tags::take_timeout`].
    pub fn take_timeout(&self, timeout: Duration) -> Option<u32> {
        (self.try_take()).or_else(|| self.tags.reserved.take_timeout(timeout))
    }

    /// As [`Tags::try_take_batch`].
    pub fn try_take_batch(&self, tags: &mut [u32]) -> usize {
        self.tags.process.assert();
        self.tags.reserved.take_batch(tags)
    }
}
