//! Free tags as bits of words that are shared by all threads.
//!
//! A word holds 32 tags in its low half and, in its high half, how often a tag was put into it. Setting a bit and counting is one
//! addition, since a tag that is put is not free. The counts let a get prove that there was a moment without a free tag: two passes
//! that see every word empty and no count changed.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};

/// Tags of a word.
const TAGS: u32 = u32::BITS;
const PUT: u64 = 1 << TAGS;

pub(crate) struct Bitmap {
    words: Box<[AtomicU64]>,
}

impl Bitmap {
    /// Space for this many tags, none of them free.
    pub(crate) fn new(capacity: u32) -> Self {
        let words = (0..capacity.div_ceil(TAGS)).map(|_| AtomicU64::new(0));
        Self {
            words: words.collect(),
        }
    }

    /// Makes a tag free that is not.
    pub(crate) fn put(&self, tag: u32) {
        let word = &self.words[(tag / TAGS) as usize];
        let before = word.fetch_add(PUT + (1 << (tag % TAGS)), Ordering::SeqCst);
        assert!(
            before & (1 << (tag % TAGS)) == 0,
            "tag {tag} was free already"
        );
    }

    /// A free tag below `limit`, from the word of `home` first. `None` only if there was a moment without one.
    pub(crate) fn take(&self, limit: u32, home: usize) -> Option<u32> {
        let words = limit.div_ceil(TAGS) as usize;
        if words == 0 {
            return None;
        }
        let first = home % words;
        let order = || (first..words).chain(0..first);
        let mut before = match self.pass(limit, order()) {
            Pass::Tag(tag) => return Some(tag),
            Pass::Empty(puts) => puts,
        };
        loop {
            match self.pass(limit, order()) {
                Pass::Tag(tag) => return Some(tag),
                Pass::Empty(puts) if puts == before => return None,
                Pass::Empty(puts) => before = puts,
            }
        }
    }

    /// The first free tag of a range. `None` proves nothing.
    pub(crate) fn take_in(&self, range: Range<u32>) -> Option<u32> {
        if range.is_empty() {
            return None;
        }
        let words = range.start / TAGS..range.end.div_ceil(TAGS);
        words.into_iter().find_map(|index| {
            let index = index as usize;
            self.take_of(index, mask(range.end, index) & !mask(range.start, index))
                .ok()
        })
    }

    /// A free tag of a word among these bits, or the word without one.
    fn take_of(&self, index: usize, bits: u64) -> Result<u32, u64> {
        let mut word = self.words[index].load(Ordering::SeqCst);
        while word & bits != 0 {
            let bit = (word & bits).trailing_zeros();
            let without = word & !(1 << bit);
            let order = (Ordering::SeqCst, Ordering::SeqCst);
            match self.words[index].compare_exchange_weak(word, without, order.0, order.1) {
                Ok(_) => return Ok(index as u32 * TAGS + bit),
                Err(now) => word = now,
            }
        }
        Err(word)
    }

    /// One pass over the words: a tag, or the sum of their counts where all are empty. A count only grows: an equal sum means equal
    /// counts.
    fn pass(&self, limit: u32, order: impl Iterator<Item = usize>) -> Pass {
        let mut puts = 0_u64;
        for index in order {
            match self.take_of(index, mask(limit, index)) {
                Ok(tag) => return Pass::Tag(tag),
                Err(word) => puts += word >> TAGS,
            }
        }
        Pass::Empty(puts)
    }
}

enum Pass {
    Tag(u32),
    Empty(u64),
}

/// The bits of a word that are tags below `limit`.
fn mask(limit: u32, index: usize) -> u64 {
    let below = limit.saturating_sub(index as u32 * TAGS).min(TAGS);
    (1_u64 << below) - 1
}
