//! The policy `Bitmap`: words of bits with deferred clears and a hint for each CPU, as the block layer has used since Linux 4.9
//! (lib/sbitmap.c, include/linux/sbitmap.h).
//!
//! ```text
//! take: the word of the CPU's hint ─► without a free tag: move what was put into it ─► next word
//! put:  a bit of the word's second word, no lock; the CPU's hint is the tag
//! ```
//!
//! As documented there: a word and its second word are on cache lines of their own; there are at least four words, so that threads
//! spread over them; a take that misses locks the word, moves all bits of the second word at once, and looks again (the lock came back
//! in 2024: without it a take could miss bits on their way). A take that gets its hint advances it.
//!
//! What differs:
//! - A word has up to 32 tags, not 64: the second word also counts puts. That count is what proves that a failed take met a moment without
//!   a free tag: each word was found empty under its lock, where no bit is on its way, and no count changed until all were.
//! - Wake-ups are not counted to a batch of clamp(N / 8, 1, 8) on each of eight queues: with a count, a tag could be free while a
//!   caller waits, for as long as the others hold theirs. The one queue of `waiters` groups them instead: no put wakes a waiter while
//!   one that was woken for the same tag is on its way, for up to eight tags.
//! - The kernel disables interrupts while it holds a word's lock. A thread that is preempted or stopped there keeps up to 32 tags on
//!   their way, and blocks takes that miss in that word; puts go on.

use std::ops::Range;
use std::sync::OnceLock;

use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicU32, Mutex, lock};
use crate::word::{self, Apart, Size, below, within};

const MIN_WORDS: u32 = 4;

pub(crate) struct Deferred {
    words: Box<[SplitWord]>,
    /// The tags of a word.
    word_tags: u32,
    hints: Box<[OnceLock<Box<Hint>>]>,
    size: Size,
    capacity: u32,
}

/// Where a CPU looks first.
type Hint = Apart<AtomicU32>;

struct SplitWord {
    /// A bit for each free tag that take finds.
    free: Apart<AtomicU32>,
    put: Apart<Put>,
}

#[derive(Default)]
struct Put {
    /// The tags that were put and not moved to `free`, and how often some were put.
    tags: word::Word,
    /// Held while bits are neither here nor there.
    moving: Mutex<()>,
}

impl Deferred {
    /// Tags from `reserved` on are free, those at or above `tags` not handed out.
    pub(crate) fn new(cpus: usize, (reserved, tags, capacity): (u32, u32, u32)) -> Self {
        let mut word_tags = word::TAGS;
        while word_tags > 1 && word_tags * MIN_WORDS > capacity {
            word_tags /= 2;
        }
        let word = |index: u32| {
            let start = index * word_tags;
            let free = within(reserved..capacity.min(start + word_tags), start);
            SplitWord {
                free: Apart(AtomicU32::new(free)),
                put: Apart::default(),
            }
        };
        Self {
            words: (0..capacity.div_ceil(word_tags)).map(word).collect(),
            word_tags,
            hints: (0..cpus.max(1)).map(|_| OnceLock::new()).collect(),
            size: Size::new(tags),
            capacity,
        }
    }

    /// A free tag for a thread of this CPU. `None` only if there was a moment without one.
    #[inline]
    pub(crate) fn take(&self, cpu: usize) -> Option<u32> {
        let hint = self.hint(cpu);
        let take = |size| self.take_from_hint(hint, size);
        self.size.take(take, |tag| self.put(cpu, tag))
    }

    fn take_from_hint(&self, hint: &Hint, limit: u32) -> Option<u32> {
        let first = match hint.0.load(Relaxed) {
            first if first < limit => first,
            _ => 0,
        };
        let found = self.take_from(first, limit);
        match found {
            None => hint.0.store(0, Relaxed),
            Some(tag) if tag == first => hint.0.store(tag + 1, Relaxed),
            Some(_) => {}
        }
        found
    }

    fn take_from(&self, first: u32, limit: u32) -> Option<u32> {
        let words = limit.div_ceil(self.word_tags);
        let (word, bit) = (first / self.word_tags, first % self.word_tags);
        let pass = || {
            let mut puts = 0_u64;
            for index in (word..words).chain(0..word) {
                let start = index * self.word_tags;
                let among = below(limit.min(start + self.word_tags), start);
                let from = if index == word { bit } else { 0 };
                match self.words[index as usize].take(among, from) {
                    Ok(bit) => return Ok(start + bit),
                    Err(count) => puts += u64::from(count),
                }
            }
            Err(puts)
        };
        let all = &self.words[..words as usize];
        word::find(pass, || all.iter().map(SplitWord::puts).sum())
    }

    /// Makes a tag free on this CPU.
    #[inline]
    pub(crate) fn put(&self, cpu: usize, tag: u32) {
        let word = &self.words[(tag / self.word_tags) as usize];
        let bit = tag % self.word_tags;
        word.put.0.tags.put(1 << bit, tag - bit);
        self.hint(cpu).0.store(tag, Relaxed);
    }

    /// The hint of a CPU, made when it is first used: each CPU begins elsewhere.
    fn hint(&self, cpu: usize) -> &Hint {
        let cpu = cpu % self.hints.len();
        self.hints[cpu].get_or_init(|| {
            let word = cpu % self.words.len();
            Box::new(Apart(AtomicU32::new(word as u32 * self.word_tags)))
        })
    }

    /// Sets the number of tags. Returns how many at or above it are held.
    pub(crate) fn resize(&self, tags: u32) -> u32 {
        self.size.set(tags);
        self.capacity - tags - self.count(tags..self.capacity)
    }

    pub(crate) fn size(&self) -> u32 {
        self.size.get()
    }

    /// Free tags, counted word by word.
    pub(crate) fn free(&self) -> u32 {
        self.count(0..self.size())
    }

    /// Counts the tags among these that are not held.
    fn count(&self, tags: Range<u32>) -> u32 {
        let starts = (0..).step_by(self.word_tags as usize);
        let words = self.words.iter().zip(starts);
        let free = words.map(|(word, start)| word.all_free() & within(tags.clone(), start));
        free.map(u32::count_ones).sum()
    }
}

impl SplitWord {
    /// A free tag among these bits, from a bit on if there is one; or the number of puts when there was none.
    fn take(&self, among: u32, from: u32) -> Result<u32, u32> {
        loop {
            let mut free = self.free.0.load(SeqCst) & among;
            while free != 0 {
                let bit = match free & (u32::MAX << from) {
                    0 => free.trailing_zeros(),
                    after => after.trailing_zeros(),
                };
                let before = self.free.0.fetch_and(!(1 << bit), SeqCst);
                if before & (1 << bit) != 0 {
                    return Ok(bit);
                }
                free = before & among;
            }
            if let Some(puts) = self.move_put(among) {
                return Err(puts);
            }
        }
    }

    /// Makes the tags that were put free to take. The number of puts if none of these bits is free.
    #[cold]
    fn move_put(&self, among: u32) -> Option<u32> {
        let Put { tags, moving } = &self.put.0;
        let _moving = lock(moving);
        loop {
            match tags.take_all() {
                Ok(put) => {
                    self.free.0.fetch_or(put, SeqCst);
                    if put & among != 0 {
                        return None;
                    }
                }
                Err(puts) => {
                    let free = self.free.0.load(SeqCst) & among;
                    return (free == 0).then_some(puts);
                }
            }
        }
    }

    fn puts(&self) -> u64 {
        self.put.0.tags.puts().into()
    }

    fn all_free(&self) -> u32 {
        let Put { tags, moving } = &self.put.0;
        let _moving = lock(moving);
        self.free.0.load(SeqCst) | tags.free()
    }
}
