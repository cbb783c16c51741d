//! Free tags as bits of words in shards: any tag may lie in any shard, so a thread puts and takes in the shard of its own CPU, a cache
//! line that others touch only when theirs is empty.
//!
//! ```text
//! shard 0   block: 8 words = 256 tags of a cache line, a second block for tags 256.., ...
//! shard 1   the same tags again; a free tag has its bit in one shard
//! ```

use std::ops::Range;

use crate::sync::{AtomicU32, Ordering::Relaxed};
use crate::word::{self, Apart, Seen, TAGS, Word, below, within};

/// Words of a block.
const WORDS: usize = 8;
/// Tags of a block.
const BLOCK_TAGS: u32 = WORDS as u32 * TAGS;
/// A take without success reads all blocks twice, so that many tags have few shards.
const MAX_BLOCKS: usize = 8;
/// Tags that are moved at once.
pub(crate) const MAX_BATCH: usize = 44;

#[derive(Default)]
#[repr(align(64))]
struct Block([Word; WORDS]);

pub(crate) struct Shards {
    blocks: Box<[Block]>,
    /// Blocks from a shard to the next: even, since CPUs fetch cache lines in pairs.
    stride: usize,
    /// By shard: the word into which a tag was put last, where a take looks first.
    recent: Box<[Apart<AtomicU32>]>,
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

    /// Adds the tags that `take` writes to the start of this space, up to `most`; it returns how many.
    pub(crate) fn add(&mut self, most: usize, take: impl FnOnce(&mut [u32]) -> usize) {
        let space = &mut self.tags[self.len..];
        let most = most.min(space.len());
        self.len += take(&mut space[..most]);
    }

    /// Removes the first tags.
    pub(crate) fn remove_first(&mut self, count: usize) {
        self.tags.copy_within(count..self.len, 0);
        self.len -= count;
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
        Self {
            blocks: (0..stride * shards).map(|_| Block::default()).collect(),
            stride,
            recent: (0..shards).map(|_| Apart::default()).collect(),
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
        let shard = self.shard_of(home);
        let recent = &self.recent[shard].0;
        if recent.load(Relaxed) != tag / TAGS {
            recent.store(tag / TAGS, Relaxed);
        }
        let block = &self.shard(shard)[(tag / BLOCK_TAGS) as usize];
        let word = &block.0[(tag % BLOCK_TAGS / TAGS) as usize];
        word.put(1 << (tag % TAGS), tag / TAGS * TAGS)
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
        let words = self.shard(self.shard_of(home)).iter().flat_map(|b| &b.0);
        let words = words.zip((0..).step_by(TAGS as usize));
        for ((word, first), bits) in words.zip(bits).filter(|(_, bits)| *bits != 0) {
            word.put(bits, first);
        }
    }

    /// A free tag below `limit`, from the shard of `home` first. `None` only if there was a moment without one.
    pub(crate) fn take(&self, limit: u32, home: usize) -> Option<u32> {
        let shard = self.shard_of(home);
        let recent = self.recent[shard].0.load(Relaxed);
        let block = &self.shard(shard)[recent as usize / WORDS];
        if let Some(tag) = block.take_word(recent as usize % WORDS, limit, recent * TAGS) {
            return Some(tag);
        }
        let pass = || {
            let mut puts = 0;
            let tag = self.find(limit, home, |block, first| {
                block.take(limit, first).map_err(|count| puts += count).ok()
            });
            tag.ok_or(puts)
        };
        word::find(pass, || self.puts(limit))
    }

    /// The sum of the words' counts.
    #[inline]
    pub(crate) fn puts(&self, limit: u32) -> u64 {
        let blocks = limit.div_ceil(BLOCK_TAGS) as usize;
        let shards = self.blocks.chunks_exact(self.stride);
        let blocks = shards.flat_map(|shard| &shard[..blocks]);
        blocks.map(|block| Seen::of(&block.0).puts).sum()
    }

    /// A free tag of a shard, or the sum of its words' counts when each was seen empty.
    #[inline]
    pub(crate) fn take_of(&self, shard: usize, limit: u32, home: usize) -> Result<u32, u64> {
        let mut puts = 0;
        let tag = self.find_in(shard, limit, home, |block, first| {
            block.take(limit, first).map_err(|count| puts += count).ok()
        });
        tag.ok_or(puts)
    }

    /// One pass: the sum of the counts if it saw no free tag below `limit`. The same sum from two passes means that there was a moment
    /// without a free tag between them.
    #[inline]
    pub(crate) fn pass(&self, limit: u32) -> Option<u64> {
        let blocks = limit.div_ceil(BLOCK_TAGS) as usize;
        let (mut free, mut puts) = (0, 0);
        for shard in self.blocks.chunks_exact(self.stride) {
            for block in &shard[..blocks] {
                let seen = Seen::of(&block.0);
                free |= seen.free;
                puts += seen.puts;
            }
        }
        (free == 0 || !self.has_free(limit)).then_some(puts)
    }

    #[cold]
    fn has_free(&self, limit: u32) -> bool {
        let has_free = |block: &Block, first| block.has_free(limit, first).then_some(());
        self.find(limit, 0, has_free).is_some()
    }

    /// Moves up to `most` free tags below `limit` out of the first block that has any; or what `pass` found.
    #[inline]
    pub(crate) fn take_some(&self, limit: u32, home: usize, most: usize) -> Result<Moved, u64> {
        loop {
            if let Some(puts) = self.pass(limit) {
                return Err(puts);
            }
            let moved = self.move_out(limit, home, most);
            if moved.len != 0 {
                return Ok(moved);
            }
        }
    }

    #[inline(never)]
    fn move_out(&self, limit: u32, home: usize, most: usize) -> Moved {
        let moved = self.find(limit, home, |block, first| {
            let moved = match Seen::of(&block.0).free {
                0 => return None,
                _ => block.move_out(limit, first, most),
            };
            (moved.len != 0).then_some(moved)
        });
        moved.unwrap_or_else(Moved::new)
    }

    /// Whether no tag is free in the shard of `home`.
    #[inline]
    pub(crate) fn is_home_empty(&self, home: usize) -> bool {
        let blocks = self.shard(self.shard_of(home));
        blocks.iter().all(|block| Seen::of(&block.0).free == 0)
    }

    /// Free tags among these. One that moves from shard to shard meanwhile counts once, or not.
    pub(crate) fn free(&self, tags: Range<u32>) -> u32 {
        let of_word = |word: usize| {
            let shards = self.blocks.chunks_exact(self.stride);
            let free = shards.map(|shard| shard[word / WORDS].0[word % WORDS].free());
            let free = free.fold(0, |all, free| all | free);
            (free & within(tags.clone(), word as u32 * TAGS)).count_ones()
        };
        (0..self.stride * WORDS).map(of_word).sum()
    }

    #[inline]
    fn shard(&self, shard: usize) -> &[Block] {
        &self.blocks[shard * self.stride..][..self.stride]
    }

    #[inline]
    fn shard_of(&self, home: usize) -> usize {
        match home < self.shards {
            true => home,
            false => home % self.shards,
        }
    }

    /// The first answer of `look` to a block with tags below `limit` and its first tag, from the shard of `home` on.
    #[inline]
    fn find<T>(
        &self,
        limit: u32,
        home: usize,
        mut look: impl FnMut(&Block, u32) -> Option<T>,
    ) -> Option<T> {
        let mut shard = self.shard_of(home);
        for _ in 0..self.shards {
            let found = self.find_in(shard, limit, home, &mut look);
            if found.is_some() {
                return found;
            }
            let next = shard + 1;
            shard = if next == self.shards { 0 } else { next };
        }
        None
    }

    /// As `find`, in one shard. CPUs that share it begin at different blocks.
    #[inline]
    fn find_in<T>(
        &self,
        shard: usize,
        limit: u32,
        home: usize,
        mut look: impl FnMut(&Block, u32) -> Option<T>,
    ) -> Option<T> {
        let blocks = limit.div_ceil(BLOCK_TAGS) as usize;
        let of_shard = &self.shard(shard)[..blocks];
        let mut block = match blocks {
            0 | 1 => 0,
            blocks => home / self.shards % blocks,
        };
        for _ in 0..blocks {
            let found = look(&of_shard[block], block as u32 * BLOCK_TAGS);
            if found.is_some() {
                return found;
            }
            block = if block + 1 == blocks { 0 } else { block + 1 };
        }
        None
    }
}

impl Block {
    fn has_free(&self, limit: u32, first: u32) -> bool {
        let mut words = self.0.iter().zip((first..).step_by(TAGS as usize));
        words.any(|(word, first)| word.free() & below(limit, first) != 0)
    }

    /// Takes up to `most` tags, those of the fullest words: tags that were taken together are often put together, so that few words,
    /// which another CPU wrote last, are written for many tags.
    fn move_out(&self, limit: u32, first: u32, most: usize) -> Moved {
        let mut moved = Moved::new();
        while moved.len < most.div_ceil(2) {
            let among = |index: usize| below(limit, first + index as u32 * TAGS);
            let free = |index: usize| self.0[index].free() & among(index);
            let Some(index) = (0..WORDS).max_by_key(|index| free(*index).count_ones()) else {
                break;
            };
            let mut bits = self.0[index].take_some(among(index), most - moved.len);
            if bits == 0 {
                break;
            }
            while bits != 0 {
                moved.push(first + index as u32 * TAGS + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        moved
    }

    /// A free tag, or the sum of the words' counts when each was seen empty; `first` is the block's first tag.
    #[inline]
    fn take(&self, limit: u32, first: u32) -> Result<u32, u64> {
        let Seen { free, puts } = Seen::of(&self.0);
        if free == 0 {
            return Err(puts);
        }
        // A word that is empty by now had the count that was added, or the next pass sees a higher one.
        let mut words = 0..WORDS;
        let tag = words.find_map(|index| self.take_word(index, limit, first + index as u32 * TAGS));
        tag.ok_or(puts)
    }

    /// A free tag of the word `index`, whose first tag is `first`.
    #[inline]
    fn take_word(&self, index: usize, limit: u32, first: u32) -> Option<u32> {
        let bit = self.0[index].take(below(limit, first)).ok()?;
        Some(first + bit)
    }
}
