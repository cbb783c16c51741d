//! What the waiters of a model wait for.

use crate::sync::{AtomicU32, Ordering};
use crate::waiters::Shared;

/// Two tags as bits of a word. No stronger order than that of a lock: the protocol's own fences have to do.
pub(crate) struct Word(pub(crate) AtomicU32);

impl Word {
    fn take(&self, among: u32) -> Option<u32> {
        let mut word = self.0.load(Ordering::Acquire);
        while word & among != 0 {
            let tag = (word & among).trailing_zeros();
            let order = (Ordering::Acquire, Ordering::Acquire);
            let without = word & !(1 << tag);
            match self.0.compare_exchange(word, without, order.0, order.1) {
                Ok(_) => return Some(tag),
                Err(now) => word = now,
            }
        }
        None
    }

    fn put(&self, tag: u32) {
        let before = self.0.fetch_or(1 << tag, Ordering::Release);
        assert!(before & (1 << tag) == 0, "tag {tag} was free already");
    }
}

impl Shared for Word {
    fn take(&self) -> (Option<u32>, bool) {
        (Word::take(self, u32::MAX), false)
    }

    fn put(&self, tag: u32) -> bool {
        Word::put(self, tag);
        false
    }
}

/// A word and a cache, which is used while nobody waits. A sequence that puts a tag into the cache commits or aborts; a
/// revocation is not one step: the tags are nowhere for a moment.
pub(crate) struct Cached {
    pub(crate) word: Word,
    /// Users of the closed gate, times 4, and a bit for each tag of the cache.
    pub(crate) gate: AtomicU32,
}

impl Cached {
    pub(crate) const USER: u32 = 4;

    pub(crate) fn put_cached(&self, tag: u32) -> bool {
        let add = |gate| (gate < Self::USER).then_some(gate | 1 << tag);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.gate.fetch_update(order.0, order.1, add).is_ok()
    }

    pub(crate) fn move_cached(&self) -> bool {
        let bits = self.gate.fetch_and(!(Self::USER - 1), Ordering::AcqRel) % Self::USER;
        if bits != 0 {
            self.word.0.fetch_or(bits, Ordering::Release);
        }
        bits != 0
    }
}

impl Shared for Cached {
    fn take(&self) -> (Option<u32>, bool) {
        if let Some(tag) = self.word.take(u32::MAX) {
            return (Some(tag), false);
        }
        let has_moved = self.move_cached();
        (self.word.take(u32::MAX), has_moved)
    }

    fn put(&self, tag: u32) -> bool {
        self.word.put(tag);
        false
    }

    fn revoke(&self) {
        self.gate.fetch_add(Self::USER, Ordering::AcqRel);
        self.move_cached();
    }

    fn calm(&self) {
        self.gate.fetch_sub(Self::USER, Ordering::AcqRel);
    }
}

/// A word of which only the tags below a size are handed out.
pub(crate) struct Resized {
    word: Word,
    size: AtomicU32,
}

impl Resized {
    /// No tag is free.
    pub(crate) fn new(size: u32) -> Self {
        Self {
            word: Word(AtomicU32::new(0)),
            size: AtomicU32::new(size),
        }
    }

    pub(crate) fn set(&self, size: u32) {
        self.size.store(size, Ordering::Release);
    }

    /// The bits of the free tags.
    pub(crate) fn free(&self) -> u32 {
        self.word.0.load(Ordering::Acquire)
    }
}

impl Shared for Resized {
    fn take(&self) -> (Option<u32>, bool) {
        let size = self.size.load(Ordering::Acquire);
        (self.word.take((1 << size) - 1), false)
    }

    fn put(&self, tag: u32) -> bool {
        self.word.put(tag);
        false
    }

    fn is_retired(&self, tag: u32) -> bool {
        tag >= self.size.load(Ordering::Acquire)
    }
}

/// A word, and tags that the next put moves into it as well: a cache that was full.
pub(crate) struct Spilling {
    pub(crate) word: Word,
    pub(crate) cached: AtomicU32,
}

impl Shared for Spilling {
    fn take(&self) -> (Option<u32>, bool) {
        (self.word.take(u32::MAX), false)
    }

    fn put(&self, tag: u32) -> bool {
        let moved = self.cached.swap(0, Ordering::AcqRel);
        self.word.put(tag);
        self.word.0.fetch_or(moved, Ordering::Release);
        moved != 0
    }
}
