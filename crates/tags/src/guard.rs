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

    /// The tag with a guard that keeps its allocator alive.
    ///
    /// # Panics
    /// If `tags` is another allocator.
    pub fn into_owned(self, tags: &Arc<Tags>) -> OwnedTag {
        let is_own = std::ptr::eq(self.tags, Arc::as_ptr(tags));
        assert!(is_own, "tag {} is of another allocator", self.number);
        OwnedTag::new(tags.clone(), self.into_number())
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

    /// The tag without its guard: [`Tags::put`] makes it free.
    pub fn into_number(self) -> u32 {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the field is dropped once: what `this` holds is never dropped.
        unsafe { std::ptr::drop_in_place(&mut this.tags) };
        this.number
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
