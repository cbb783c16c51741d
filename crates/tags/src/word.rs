//! 32 tags in a word: a bit for each free tag in the low half and, in the high half, how often tags were put into it.
//!
//! Setting bits and counting is one addition, since a tag that is put is not free. A count only grows: two sums of the same words'
//! counts are equal only if each count is. So where a pass saw each word empty and the sum is the same afterwards, no tag was put into a
//! word since it was seen, and at the end of the pass all words were empty. [`find`] is that proof. (Counts wrap at 2^32: the proof
//! assumes that fewer tags are put during a pass.)

use crate::sync::{AtomicU64, Ordering};

/// Tags of a word.
pub(crate) const TAGS: u32 = u32::BITS;
const PUT: u64 = 1 << TAGS;

#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    /// None of its tags is free.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Makes tags free that are not; `first` is the word's first tag. How often tags were put before.
    #[inline]
    pub(crate) fn put(&self, bits: u32, first: u32) -> u32 {
        let before = self.0.fetch_add(PUT + u64::from(bits), Ordering::SeqCst);
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
            _ => Ok(self.0.fetch_and(!(PUT - 1), Ordering::SeqCst) as u32),
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
        self.0.load(Ordering::SeqCst)
    }

    #[inline]
    fn exchange(&self, seen: u64, new: u64) -> Result<(), u64> {
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        self.0
            .compare_exchange_weak(seen, new, order.0, order.1)
            .map(drop)
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
