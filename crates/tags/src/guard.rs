use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::Tags;

/// A tag that is held; free again when this is dropped.
#[derive(Debug)]
#[must_use = "it is free again when this is dropped"]
pub struct Tag<'a> {
    tags: &'a Tags,
    number: u32,
}

impl<'a> Tag<'a> {
    pub(crate) fn new(tags: &'a Tags, number: u32) -> Self {
        Self { tags, number }
    }

    /// The tag, below the allocator's size when it was handed out.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The tag without its guard: [`Tags::put`] makes it free.
    pub fn into_number(self) -> u32 {
        ManuallyDrop::new(self).number
    }
}

impl Drop for Tag<'_> {
    fn drop(&mut self) {
        self.tags.put(self.number);
    }
}

/// As [`Tag`]; keeps the allocator alive.
#[derive(Debug)]
#[must_use = "it is free again when this is dropped"]
pub struct OwnedTag {
    tags: Arc<Tags>,
    number: u32,
}

impl OwnedTag {
    pub(crate) fn new(tags: Arc<Tags>, number: u32) -> Self {
        Self { tags, number }
    }

    /// The tag, below the allocator's size when it was handed out.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The allocator.
    pub fn tags(&self) -> &Arc<Tags> {
        &self.tags
    }
}

impl Drop for OwnedTag {
    fn drop(&mut self) {
        self.tags.put(self.number);
    }
}
