//! Free tags as bits of words that are shared by all threads.

use std::ops::Range;

use crate::word::{TAGS, Word, below, find};

pub(crate) struct Bitmap {
    words: Box<[Word]>,
}

impl Bitmap {
    /// Space for this many tags, none of them free.
    pub(crate) fn new(capacity: u32) -> Self {
        let words = (0..capacity.div_ceil(TAGS)).map(|_| Word::new());
        Self {
            words: words.collect(),
        }
    }

    /// Makes a tag free that is not.
    pub(crate) fn put(&self, tag: u32) {
        self.words[(tag / TAGS) as usize].put(1 << (tag % TAGS), tag / TAGS * TAGS);
    }

    /// A free tag below `limit`. `None` only if there was a moment without one.
    pub(crate) fn take(&self, limit: u32) -> Option<u32> {
        let words = &self.words[..limit.div_ceil(TAGS) as usize];
        let pass = || {
            let mut puts = 0;
            for (word, first) in words.iter().zip((0..).step_by(TAGS as usize)) {
                match word.take(below(limit, first)) {
                    Ok(bit) => return Ok(first + bit),
                    Err(count) => puts += u64::from(count),
                }
            }
            Err(puts)
        };
        find(pass, || {
            words.iter().map(|word| u64::from(word.puts())).sum()
        })
    }

    /// The first free tag of a range. `None` proves nothing.
    pub(crate) fn take_in(&self, range: Range<u32>) -> Option<u32> {
        let first = range.start / TAGS * TAGS;
        let mut firsts = (first..range.end).step_by(TAGS as usize);
        firsts.find_map(|first| {
            let among = below(range.end, first) & !below(range.start, first);
            let bit = self.words[(first / TAGS) as usize].take(among);
            Some(first + bit.ok()?)
        })
    }
}
