use std::time::{Duration, Instant};

use crate::future::Kind;
use crate::{Batch, Get, GetBatch, Tag, Tags};

/// The reserved tags of an allocator that has some, in the forms of [`Tags`]. Guards and [`Tags::put`] make them free again.
#[derive(Clone, Copy, Debug)]
pub struct ReservedTags<'a> {
    tags: &'a Tags,
}

impl<'a> ReservedTags<'a> {
    pub(crate) fn new(tags: &'a Tags) -> Self {
        Self { tags }
    }

    /// How many there are, free or not.
    pub fn size(&self) -> u32 {
        self.tags.reserved_supply().pool.tags()
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
        Get::new(self.tags, Kind::Reserved)
    }

    /// As [`Tags::try_get_batch`].
    pub fn try_get_batch(&self, most: usize) -> Batch<'a> {
        let mut tags = vec![0; most.min(self.size() as usize)];
        let taken = self.try_take_batch(&mut tags);
        tags.truncate(taken);
        Batch::new(self.tags, tags)
    }

    /// As [`Tags::get_batch`].
    pub fn get_batch(&self, tags: usize) -> Option<Batch<'a>> {
        self.get_batch_until(tags, None)
    }

    /// As [`Tags::get_batch_timeout`].
    pub fn get_batch_timeout(&self, tags: usize, timeout: Duration) -> Option<Batch<'a>> {
        self.get_batch_until(tags, Instant::now().checked_add(timeout))
    }

    fn get_batch_until(&self, wanted: usize, deadline: Option<Instant>) -> Option<Batch<'a>> {
        self.tags.process().assert();
        let supply = self.tags.reserved_supply();
        let usable = || self.size() as usize;
        let tags = supply.take_all_until(wanted, usable, deadline)?;
        Some(Batch::new(self.tags, tags))
    }

    /// As [`Tags::get_batch_async`].
    pub fn get_batch_async(&self, tags: usize) -> GetBatch<'a> {
        GetBatch::new(self.tags, Kind::Reserved, tags)
    }

    /// As [`Tags::try_take`].
    pub fn try_take(&self) -> Option<u32> {
        self.tags.process().assert();
        self.tags.reserved_supply().take()
    }

    /// As [`Tags::take`].
    pub fn take(&self) -> u32 {
        self.try_take().unwrap_or_else(|| {
            let tag = self.tags.reserved_supply().take_until(None);
            tag.expect("a wait without a deadline ends with a tag")
        })
    }

    /// As [`Tags::take_timeout`].
    pub fn take_timeout(&self, timeout: Duration) -> Option<u32> {
        let tag = self.try_take();
        if tag.is_some() || timeout.is_zero() {
            return tag;
        }
        let deadline = Instant::now().checked_add(timeout);
        self.tags.reserved_supply().take_until(deadline)
    }

    /// As [`Tags::try_take_batch`].
    pub fn try_take_batch(&self, tags: &mut [u32]) -> usize {
        self.tags.process().assert();
        self.tags.reserved_supply().take_batch(tags)
    }
}
