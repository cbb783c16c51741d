//! What the policies are made of: 32 tags in a word, words of one bit for each tag ([`Bitmap`]), the number of tags ([`Size`]), and
//! cache lines of their own ([`Apart`]).
//!
//! A word has a bit for each free tag in the low half and, in the high half, how often tags were put into it.
//!
//! Setting bits and counting is one addition, since a tag that is put is not free. A count only grows: two sums of the same words'
//! counts are equal only if each count is. So where a pass saw each word empty and the sum is the same afterwards, no tag was put into a
//! word since it was seen, and at the end of the pass all words were empty. [`find`] is that proof. (Counts wrap at 2^32: the proof
//! assumes that fewer tags are put during a pass.)

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering::SeqCst};

/// Tags of a word.
pub(crate) const TAGS: u32 = u32::BITS;
const PUT: u64 = 1 << TAGS;

/// None of its tags is free by default.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    /// Makes tags free that are not; `first` is the word's first tag. How often tags were put before.
    #[inline]
    pub(crate) fn put(&self, bits: u32, first: u32) -> u32 {
        let before = self.0.fetch_add(PUT + u64::from(bits), SeqCst);
        match before as u32 & bits {
            0 => (before >> TAGS) as u32,
            free => panic_free_already(first + free.trailing_zeros()),
        }
    }

    /// Takes the first free tag among these bits: its bit. `Err` is how often tags were put into the word, seen without one.
    #[inline]
    pub(crate) fn take(&self, among: u32) -> Result<u32, u32> {
        let mut seen = self.load();
        loop {
            let free = seen as u32 & among;
            if free == 0 {
                return Err((seen >> TAGS) as u32);
            }
            let bit = free.trailing_zeros();
            match self.exchange(seen, seen & !(1 << bit)) {
                Ok(()) => return Ok(bit),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes up to `most` free tags among these bits: their bits.
    #[inline]
    pub(crate) fn take_some(&self, among: u32, most: usize) -> u32 {
        let mut seen = self.load();
        loop {
            let mut taken = seen as u32 & among;
            while taken.count_ones() as usize > most {
                taken &= taken - 1;
            }
            if taken == 0 {
                return 0;
            }
            match self.exchange(seen, seen & !u64::from(taken)) {
                Ok(()) => return taken,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes all free tags, by one caller at a time: their bits. `Err` is how often tags were put into the word, seen without one.
    #[inline]
    pub(crate) fn take_all(&self) -> Result<u32, u32> {
        let seen = self.load();
        match seen as u32 {
            0 => Err((seen >> TAGS) as u32),
            _ => Ok(self.0.fetch_and(!(PUT - 1), SeqCst) as u32),
        }
    }

    /// The bits of the free tags.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.load() as u32
    }

    /// How often tags were put into it.
    #[inline]
    pub(crate) fn puts(&self) -> u32 {
        (self.load() >> TAGS) as u32
    }

    #[inline]
    fn load(&self) -> u64 {
        self.0.load(SeqCst)
    }

    #[inline]
    fn exchange(&self, seen: u64, new: u64) -> Result<(), u64> {
        let exchanged = self.0.compare_exchange_weak(seen, new, SeqCst, SeqCst);
        exchanged.map(drop)
    }
}

#[cold]
fn panic_free_already(tag: u32) -> ! {
    panic!("tag {tag} was free already");
}

/// What one look at each of some words saw.
pub(crate) struct Seen {
    /// 0 if none had a free tag.
    pub(crate) free: u64,
    /// The sum of their counts.
    pub(crate) puts: u64,
}

impl Seen {
    #[inline(always)]
    pub(crate) fn of(words: &[Word]) -> Self {
        let (mut free, mut sum) = (0, 0_u64);
        for word in words {
            let word = word.load();
            free += u64::from(word as u32);
            sum = sum.wrapping_add(word);
        }
        // Both sums have the same low halves: what is left are the counts, modulo 2^32 as each is.
        let puts = sum.wrapping_sub(free) >> TAGS;
        Self { free, puts }
    }
}

/// What `pass` finds, which looks at each word; `Err` is the sum of their counts, all seen empty. `puts` sums the counts again. `None`
/// only if there was a moment at which all words were empty.
#[inline]
pub(crate) fn find<T>(
    mut pass: impl FnMut() -> Result<T, u64>,
    mut puts: impl FnMut() -> u64,
) -> Option<T> {
    loop {
        match pass() {
            Ok(found) => return Some(found),
            Err(before) if before == puts() => return None,
            Err(_) => {}
        }
    }
}

/// The bits of tags below `limit` in a word, by the word's first tag.
#[inline]
pub(crate) fn below(limit: u32, first: u32) -> u32 {
    let tags = limit.saturating_sub(first).min(TAGS);
    ((1_u64 << tags) - 1) as u32
}

/// The bits of the tags of a range in a word, by the word's first tag.
#[inline]
pub(crate) fn within(tags: Range<u32>, first: u32) -> u32 {
    below(tags.end, first) & !below(tags.start, first)
}

/// Free tags as bits of words that are shared by all threads.
pub(crate) struct Bitmap(Box<[Word]>);

impl Bitmap {
    /// Space for this many tags, none of them free.
    pub(crate) fn new(capacity: u32) -> Self {
        let words = (0..capacity.div_ceil(TAGS)).map(|_| Word::default());
        Self(words.collect())
    }

    /// Makes a tag free that is not.
    pub(crate) fn put(&self, tag: u32) {
        self.0[(tag / TAGS) as usize].put(1 << (tag % TAGS), tag / TAGS * TAGS);
    }

    /// A free tag below `limit`. `None` only if there was a moment without one.
    pub(crate) fn take(&self, limit: u32) -> Option<u32> {
        let words = &self.0[..limit.div_ceil(TAGS) as usize];
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
            let among = within(range.clone(), first);
            let bit = self.0[(first / TAGS) as usize].take(among);
            Some(first + bit.ok()?)
        })
    }
}

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
        self.0.load(SeqCst) as u32
    }

    pub(crate) fn set(&self, tags: u32) {
        let next = |size: u64| Some((size & !(SET - 1)).wrapping_add(SET) | u64::from(tags));
        // The closure never refuses.
        let _ = self.0.fetch_update(SeqCst, SeqCst, next);
    }

    /// What `take` finds below a size that did not change meanwhile, or that is below the size at the end: otherwise a tag could be
    /// handed out after it was put above the size, and a tag that a larger size adds could be missed. `put` makes a tag free again
    /// that is above the size now.
    #[inline]
    pub(crate) fn take(&self, take: impl Fn(u32) -> Option<u32>, put: impl Fn(u32)) -> Option<u32> {
        let mut before = self.0.load(SeqCst);
        loop {
            let found = take(before as u32);
            let after = self.0.load(SeqCst);
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

/// On cache lines of its own, so that a write to it does not take a neighbour's line from another CPU.
#[repr(align(64))]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Apart<T>(pub T);
