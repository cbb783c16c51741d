//! Free tags as bits of words in shards: any tag may lie in any shard, so a thread puts and takes in the shard of its own CPU, a cache
//! line that others touch only when theirs is empty.
//!
//! ```text
//! shard 0   block: 8 words = 256 tags of a cache line, a second block for tags 256.., ...
//! shard 1   the same tags again; a free tag has its bit in one shard
//! ```
//!
//! A word is that of `bitmap`: 32 tags in its low half and, in its high half, how often a tag was put into it.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};

/// Tags of a word.
const TAGS: u32 = u32::BITS;
const PUT: u64 = 1 << TAGS;
/// Words of a block.
const WORDS: usize = 8;
/// Tags of a block.
const BLOCK_TAGS: u32 = WORDS as u32 * TAGS;
/// A take without success reads all blocks twice, so that many tags have few shards.
const MAX_BLOCKS: usize = 8;
/// Tags that are moved at once.
pub(crate) const MAX_BATCH: usize = 32;

#[repr(align(64))]
struct Block([AtomicU64; WORDS]);

pub(crate) struct Shards {
    blocks: Box<[Block]>,
    /// Blocks from a shard to the next: even, since CPUs fetch cache lines in pairs.
    stride: usize,
    shards: usize,
}

/// Tags that a thread moves.
pub(crate) struct Moved {
    tags: [u32; MAX_BATCH + 1],
    len: usize,
}

impl Moved {
    pub(crate) fn new() -> Self {
        Self {
            tags: [0; MAX_BATCH + 1],
            len: 0,
        }
    }

    pub(crate) fn push(&mut self, tag: u32) {
        self.tags[self.len] = tag;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.tags[self.len])
    }

    pub(crate) fn tags(&self) -> &[u32] {
        &self.tags[..self.len]
    }
}

impl Shards {
    /// Space for this many tags, none of them free, in shards for up to this many CPUs.
    pub(crate) fn new(capacity: u32, cpus: usize) -> Self {
        let most = MAX_BLOCKS / Self::blocks_of(capacity);
        Self::with_shards(capacity, cpus.clamp(1, most.max(1)))
    }

    /// As `new`, in this many shards.
    pub(crate) fn with_shards(capacity: u32, shards: usize) -> Self {
        let stride = Self::blocks_of(capacity).next_multiple_of(2);
        let block = || Block(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            blocks: (0..stride * shards).map(|_| block()).collect(),
            stride,
            shards,
        }
    }

    /// Blocks of a shard that are read for this many tags.
    pub(crate) fn blocks_of(capacity: u32) -> usize {
        capacity.div_ceil(BLOCK_TAGS).max(1) as usize
    }

    /// Makes a tag free that is not. How often a tag was put into its word before.
    #[inline]
    pub(crate) fn put(&self, tag: u32, home: usize) -> u32 {
        let block = &self.shard(home % self.shards)[(tag / BLOCK_TAGS) as usize];
        let word = &block.0[(tag % BLOCK_TAGS / TAGS) as usize];
        let before = word.fetch_add(PUT + (1 << (tag % TAGS)), Ordering::SeqCst);
        debug_assert!(
            before & (1 << (tag % TAGS)) == 0,
            "tag {tag} was free already"
        );
        (before >> TAGS) as u32
    }

    /// As `put`, with one write for the tags of a word where there is one block.
    pub(crate) fn put_all(&self, tags: &[u32], home: usize) {
        if self.stride > 2 {
            return tags.iter().for_each(|&tag| {
                self.put(tag, home);
            });
        }
        let mut bits = [0_u32; 2 * WORDS];
        for tag in tags {
            bits[(tag / TAGS) as usize] |= 1 << (tag % TAGS);
        }
        let words = self.shard(home % self.shards).iter().flat_map(|b| &b.0);
        for (word, bits) in words.zip(bits).filter(|(_, bits)| *bits != 0) {
            let before = word.fetch_add(PUT + u64::from(bits), Ordering::SeqCst);
            debug_assert!(before & u64::from(bits) == 0, "a tag was free already");
        }
    }

    /// A free tag below `limit`, from the shard of `home` first. `None` only if there was a moment without one.
    pub(crate) fn take(&self, limit: u32, home: usize) -> Option<u32> {
        let mut before = None;
        loop {
            let mut puts = 0;
            for shard in self.order(home) {
                match self.take_of(shard, limit, home) {
                    Ok(tag) => return Some(tag),
                    Err(count) => puts += count,
                }
            }
            // A count only grows: an equal sum means equal counts, so that all words were empty between the passes.
            if before == Some(puts) {
                return None;
            }
            before = Some(puts);
        }
    }

    /// A free tag of a shard, or the sum of its words' counts when it saw them empty.
    #[inline]
    pub(crate) fn take_of(&self, shard: usize, limit: u32, home: usize) -> Result<u32, u64> {
        let mut puts = 0;
        for block in self.block_order(limit, home) {
            let words = &self.shard(shard)[block].0;
            for (index, word) in words.iter().enumerate() {
                let first = block as u32 * BLOCK_TAGS + index as u32 * TAGS;
                let mut seen = word.load(Ordering::SeqCst);
                while seen as u32 != 0 {
                    let free = seen as u32 & below(limit, first);
                    if free == 0 {
                        break;
                    }
                    let bit = free.trailing_zeros();
                    match exchange(word, seen, seen & !(1 << bit)) {
                        Ok(()) => return Ok(first + bit),
                        Err(now) => seen = now,
                    }
                }
                puts += seen >> TAGS;
            }
        }
        Err(puts)
    }

    /// Moves up to `most` free tags below `limit` out of the first shard that has any; none proves nothing.
    pub(crate) fn take_some(&self, limit: u32, home: usize, most: usize) -> Moved {
        let mut moved = Moved::new();
        for shard in self.order(home) {
            for block in self.block_order(limit, home) {
                for (index, word) in self.shard(shard)[block].0.iter().enumerate() {
                    let first = block as u32 * BLOCK_TAGS + index as u32 * TAGS;
                    let mut bits = take_bits(word, below(limit, first), most - moved.len);
                    while bits != 0 {
                        moved.push(first + bits.trailing_zeros());
                        bits &= bits - 1;
                    }
                    if moved.len == most {
                        return moved;
                    }
                }
            }
            if moved.len != 0 {
                break;
            }
        }
        moved
    }

    /// Free tags among these, counted word by word.
    pub(crate) fn free(&self, tags: Range<u32>) -> u32 {
        let among = |first| below(tags.end, first) & !below(tags.start, first);
        let of = |index: usize, block: &Block| -> u32 {
            let first = (index % self.stride) as u32 * BLOCK_TAGS;
            let words = block.0.iter().zip((first..).step_by(TAGS as usize));
            words
                .map(|(word, first)| word.load(Ordering::SeqCst) as u32 & among(first))
                .map(u32::count_ones)
                .sum()
        };
        self.blocks.iter().enumerate().map(|(i, b)| of(i, b)).sum()
    }

    #[inline]
    fn shard(&self, shard: usize) -> &[Block] {
        &self.blocks[shard * self.stride..][..self.stride]
    }

    #[inline]
    fn order(&self, home: usize) -> impl Iterator<Item = usize> {
        let first = home % self.shards;
        (first..self.shards).chain(0..first)
    }

    /// Blocks with tags below `limit`; CPUs that share a shard begin at different ones.
    #[inline]
    fn block_order(&self, limit: u32, home: usize) -> impl Iterator<Item = usize> {
        let blocks = limit.div_ceil(BLOCK_TAGS) as usize;
        let first = home / self.shards % blocks.max(1);
        (first..blocks).chain(0..first)
    }
}

fn exchange(word: &AtomicU64, seen: u64, new: u64) -> Result<(), u64> {
    word.compare_exchange_weak(seen, new, Ordering::SeqCst, Ordering::SeqCst)
        .map(drop)
}

/// Takes up to `most` of these bits.
fn take_bits(word: &AtomicU64, bits: u32, most: usize) -> u32 {
    let mut seen = word.load(Ordering::SeqCst);
    loop {
        let mut taken = seen as u32 & bits;
        while taken.count_ones() as usize > most {
            taken &= taken - 1;
        }
        if taken == 0 {
            return 0;
        }
        match exchange(word, seen, seen & !u64::from(taken)) {
            Ok(()) => return taken,
            Err(now) => seen = now,
        }
    }
}

/// The bits of a word that are tags below `limit`, by the word's first tag.
#[inline]
fn below(limit: u32, first: u32) -> u32 {
    let tags = limit.saturating_sub(first).min(TAGS);
    ((1_u64 << tags) - 1) as u32
}
