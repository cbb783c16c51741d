//! The number of tags of an allocator whose takes and puts lock nothing.

use crate::sync::{AtomicU64, Ordering};

/// Above the number of tags, how often it was set: a take that sees the same value before and after its search saw one size.
const SET: u64 = 1 << u32::BITS;

#[repr(transparent)]
pub(crate) struct Size(AtomicU64);

impl Size {
    pub(crate) fn new(tags: u32) -> Self {
        Self(AtomicU64::new(tags.into()))
    }

    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst) as u32
    }

    pub(crate) fn set(&self, tags: u32) {
        let next = |size: u64| Some((size & !(SET - 1)).wrapping_add(SET) | u64::from(tags));
        // The closure never refuses.
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }

    /// What `take` finds below a size that did not change meanwhile, or that is below the size at the end: otherwise a tag could be
    /// handed out after it was put above the size, and a tag that a larger size adds could be missed. `put` makes a tag free again
    /// that is above the size now.
    #[inline]
    pub(crate) fn take(&self, take: impl Fn(u32) -> Option<u32>, put: impl Fn(u32)) -> Option<u32> {
        let mut before = self.0.load(Ordering::SeqCst);
        loop {
            let found = take(before as u32);
            let after = self.0.load(Ordering::SeqCst);
            if before == after {
                return found;
            }
            match found {
                Some(tag) if tag < after as u32 => return found,
                Some(tag) => put(tag),
                None => {}
            }
            before = after;
        }
    }
}
