//! The words as one word: bits in the low half, how often a tag was put in the high one. `shards.rs` has a model of its own.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering::SeqCst};

pub(crate) const MAX_BATCH: usize = 2;
const PUT: u64 = 1 << 32;

pub(crate) struct Shards(AtomicU64);

#[derive(Default)]
pub(crate) struct Moved(Vec<u32>);

impl Moved {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn push(&mut self, tag: u32) {
        self.0.push(tag);
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.0.pop()
    }

    pub(crate) fn tags(&self) -> &[u32] {
        &self.0
    }

    pub(crate) fn add(&mut self, most: usize, take: impl FnOnce(&mut [u32]) -> usize) {
        let mut space = vec![0; most];
        let taken = take(&mut space);
        self.0.extend(&space[..taken]);
    }

    pub(crate) fn remove_first(&mut self, count: usize) {
        self.0.drain(..count);
    }
}

impl Shards {
    pub(crate) fn new(_: u32, _: usize) -> Self {
        Self(AtomicU64::new(0))
    }

    /// 0: each put looks whether the gate may open.
    pub(crate) fn put(&self, tag: u32, _: usize) -> u32 {
        self.put_all(&[tag], 0);
        0
    }

    pub(crate) fn put_all(&self, tags: &[u32], _: usize) {
        let bits: u64 = tags.iter().map(|tag| 1 << tag).sum();
        let before = self.0.fetch_add(PUT + bits, SeqCst);
        assert!(before & bits == 0, "a tag of {tags:?} was free already");
    }

    pub(crate) fn take(&self, limit: u32, home: usize) -> Option<u32> {
        self.take_some(limit, home, 1).ok()?.pop()
    }

    pub(crate) fn take_some(&self, limit: u32, _: usize, most: usize) -> Result<Moved, u64> {
        let mut taken = 0;
        let take = |word: u64| {
            taken = word & below(limit);
            while taken.count_ones() as usize > most {
                taken &= taken - 1;
            }
            (taken != 0).then_some(word & !taken)
        };
        let word = self.0.fetch_update(SeqCst, SeqCst, take);
        word.map_err(|word| word >> 32)?;
        Ok(Moved((0..32).filter(|tag| taken & 1 << tag != 0).collect()))
    }

    pub(crate) fn is_home_empty(&self, _: usize) -> bool {
        self.0.load(SeqCst) as u32 == 0
    }

    pub(crate) fn free(&self, tags: Range<u32>) -> u32 {
        let among = below(tags.end) & !below(tags.start);
        (self.0.load(SeqCst) & among).count_ones()
    }
}

fn below(limit: u32) -> u64 {
    (1 << limit) - 1
}
