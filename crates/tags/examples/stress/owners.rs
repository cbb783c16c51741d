//! Who holds each tag, as the threads under test say.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A thread, or the signal handlers of all threads. Not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(pub u32);

pub const HANDLER: Owner = Owner(u32::MAX);

pub struct Owners {
    owners: Box<[AtomicU32]>,
    duplicates: AtomicU64,
}

impl Owners {
    pub fn new(tags: u32) -> Self {
        Self {
            owners: (0..tags).map(|_| AtomicU32::new(0)).collect(),
            duplicates: AtomicU64::new(0),
        }
    }

    /// After a tag was taken. Async-signal-safe.
    pub fn claim(&self, tag: u32, owner: Owner) {
        self.replace(tag, 0, owner.0);
    }

    /// Before it is put.
    pub fn release(&self, tag: u32, owner: Owner) {
        self.replace(tag, owner.0, 0);
    }

    /// Another thread, or the thread itself instead of its handler, will put it.
    pub fn pass(&self, tag: u32, from: Owner, to: Owner) {
        self.replace(tag, from.0, to.0);
    }

    fn replace(&self, tag: u32, expected: u32, owner: u32) {
        // Relaxed: an order that comes from here could hide one that the allocator lacks.
        let before = self.owners[tag as usize].swap(owner, Ordering::Relaxed);
        if before != expected {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often a tag was not held by its expected owner.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }
}
