//! A cache of free tags for each possible CPU, in memory that is touched only for CPUs that ran a caller.
//!
//! ```text
//! front  most  count  refills  moves  slots: count tags, the last is taken first
//! ├──4──┼──4──┼──4──┼───4───┼──4──┼──4──┼──4──┼── … 43
//! ```
//!
//! A tag that is put while the front is empty goes there, and is the next that is taken: a thread that puts what it took writes and
//! reads one word, whose address needs no look at `count`. The front is a tag + 1, all ones while it is empty, and 0 while the cache
//! may hold nothing.
//!
//! Only restartable sequences write tags while the gate is open; while it is closed, and after `restart_all`, any thread
//! takes tags out with atomic instructions. Where the kernel refuses to restart sequences, that holds for the cache of a CPU on which
//! the thread ran since the gate was closed: a thread that was in a sequence there was preempted, and starts it again. A cache of zeros holds
//! nothing and accepts nothing, and that is what a child of fork finds.

use std::ptr::NonNull;

use crate::auto::Control;
use crate::fork::{map_wiped, unmap};
use crate::rseq::{self, Rseq};
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicU32, AtomicU64};

const SLOTS: usize = 43;
/// Tags that a cache has space for, the front counted.
pub(crate) const MOST: u32 = SLOTS as u32 + 1;

#[repr(C, align(64))]
pub(crate) struct Cache {
    /// The front, in the low half, and how many tags it may hold: 0 until a thread of its CPU asks for some, and after it was emptied.
    /// Sequences write the low half while it is not 0.
    front_and_most: AtomicU64,
    count: AtomicU32,
    /// How often it was filled.
    pub(crate) refills: AtomicU32,
    /// The last `Moves`.
    moves: AtomicU32,
    slots: [AtomicU32; SLOTS],
}

/// The sequences' code has these offsets.
const _: () = {
    assert!(size_of::<Cache>() == 3 << 6);
    assert!(std::mem::offset_of!(Cache, front_and_most) == 0);
    assert!(std::mem::offset_of!(Cache, count) == 8);
    assert!(std::mem::offset_of!(Cache, slots) == 20);
    assert!(std::mem::offset_of!(Control, gate) == 0);
    assert!(std::mem::offset_of!(Control, size) == 8);
    assert!(std::mem::offset_of!(Control, reach) == 16);
    assert!(std::mem::offset_of!(Reach, memory) == 0);
    assert!(std::mem::offset_of!(Reach, cpus) == 8);
    assert!(std::mem::offset_of!(Control, landed) == 128);
};

/// The front while it is empty.
const NO_FRONT: u64 = u32::MAX as u64;

/// Which way tags move between a cache and the words.
#[derive(Clone, Copy)]
pub(crate) enum Moves {
    Refill = 1,
    Spill = 2,
}

/// Where the sequences find the caches of a [`Control`].
#[repr(C)]
pub(crate) struct Reach {
    memory: *mut Cache,
    cpus: u32,
    /// From the thread pointer to the thread's area; 0 where there are no caches.
    offset: isize,
}

// SAFETY: the address is that of caches that are made of atomics, and whose owner lives where the `Control` does.
unsafe impl Send for Reach {}
// SAFETY: as above.
unsafe impl Sync for Reach {}

impl Reach {
    /// No caches.
    pub(crate) const NONE: Self = Self {
        memory: std::ptr::null_mut(),
        cpus: 0,
        offset: 0,
    };
}

/// What the restartable sequences do, on the cache of the CPU that runs this thread.
impl Control {
    #[inline(always)]
    fn sequences(&self) -> Option<(isize, *const u64)> {
        let offset = self.reach.offset;
        (offset != 0).then(|| (offset, std::ptr::from_ref(self).cast()))
    }

    /// A tag, while the gate is open.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<u32> {
        let (offset, control) = self.sequences()?;
        // SAFETY: an offset says that `rseq` was probed, and `reach` that there are `cpus` caches of the layout above; a thread that
        // writes one otherwise closed the gate and called `restart_all` first.
        let tag = unsafe { rseq::pop(offset, control) };
        (tag != rseq::NONE).then_some(tag)
    }

    /// Puts a tag below the size, while the gate is open. Whether it did.
    #[inline(always)]
    pub(crate) fn push(&self, tag: u32) -> bool {
        let sequences = self.sequences();
        // SAFETY: as in `pop`.
        sequences.is_some_and(|(offset, control)| unsafe { rseq::push(offset, control, tag) })
    }

    /// Takes some tags at once, while the gate is open, up to the length of `tags`; returns how many.
    pub(crate) fn pop_some(&self, tags: &mut [u32]) -> usize {
        let most = tags.len() as u32;
        self.sequences().map_or(0, |(offset, control)| {
            // SAFETY: as in `pop`; `tags` has that length.
            unsafe { rseq::pop_some(offset, control, tags.as_mut_ptr(), most) as usize }
        })
    }

    /// As `push` for the first ones of these tags; returns how many. None if one of them is not below the size.
    pub(crate) fn push_some(&self, tags: &[u32]) -> usize {
        let count = tags.len() as u32;
        self.sequences().map_or(0, |(offset, control)| {
            // SAFETY: as in `pop`; `tags` has that length.
            unsafe { rseq::push_some(offset, control, tags.as_ptr(), count) as usize }
        })
    }

    /// At a moment when the cache is empty and the gate open: how many tags it may hold, and `landed`.
    pub(crate) fn sight(&self) -> Option<(u32, u64)> {
        let (offset, control) = self.sequences()?;
        // SAFETY: as in `pop`.
        unsafe { rseq::sight(offset, control) }
    }
}

pub(crate) struct Caches {
    rseq: Rseq,
    /// `cpus` caches and one more, whose `most` is 1 except in a child of fork.
    memory: NonNull<Cache>,
    cpus: u32,
    /// CPUs whose cache was ever used, a bit each.
    touched: Box<[AtomicU64]>,
    /// The kernel refused to restart sequences.
    is_refused: AtomicU32,
}

// SAFETY: the memory belongs to this value, and the caches in it are made of atomics; sequences write those of their CPU only.
unsafe impl Send for Caches {}
// SAFETY: as above.
unsafe impl Sync for Caches {}

impl Caches {
    /// `None` where there are no restartable sequences, or no memory that a child of fork finds empty (Linux 4.14).
    pub(crate) fn new(cpus: usize) -> Option<Self> {
        let rseq = Rseq::probe()?;
        let cpus = u32::try_from(cpus).ok().filter(|cpus| *cpus <= 1 << 16)?;
        let this = Self {
            rseq,
            memory: map_wiped(bytes(cpus))?.cast(),
            cpus,
            touched: (0..cpus.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            is_refused: AtomicU32::new(0),
        };
        this.at(cpus).claim(1);
        Some(this)
    }

    /// What sequences read.
    pub(crate) fn reach(&self) -> Reach {
        Reach {
            memory: self.memory.as_ptr(),
            cpus: self.cpus,
            offset: self.rseq.offset,
        }
    }

    /// The CPU that runs this thread; it may run on another one when this returns.
    #[inline]
    pub(crate) fn cpu(&self) -> usize {
        self.rseq.cpu() as usize
    }

    /// The cache of a CPU, if it is a possible one.
    pub(crate) fn cache(&self, cpu: usize) -> Option<&Cache> {
        let cpu = u32::try_from(cpu).ok().filter(|cpu| *cpu < self.cpus)?;
        Some(self.at(cpu))
    }

    /// From now on `touched` includes the cache of this CPU.
    pub(crate) fn touch(&self, cpu: usize) {
        self.touched[cpu / 64].fetch_or(1 << (cpu % 64), SeqCst);
    }

    /// Every cache that may hold a tag.
    pub(crate) fn touched(&self) -> impl Iterator<Item = &Cache> {
        self.touched_cpus().map(|cpu| self.at(cpu))
    }

    fn touched_cpus(&self) -> impl Iterator<Item = u32> {
        (0..self.cpus).filter(|cpu| {
            let word = self.touched[*cpu as usize / 64].load(SeqCst);
            word & 1 << (cpu % 64) != 0
        })
    }

    /// After the gate was closed: on true, no sequence that saw it open will commit. On false the caches are not usable from now on.
    pub(crate) fn restart_all(&self) -> bool {
        let tries = if self.is_refused() { 1 } else { rseq::TRIES };
        let is_done = self.rseq.restart_all(tries);
        if !is_done {
            self.is_refused.store(1, SeqCst);
        }
        is_done
    }

    /// After the gate was closed, where `restart_all` is refused: calls `empty` with each cache to which no sequence that saw the gate
    /// open will commit, since this thread runs on its CPU. That is the cache of this CPU, and of each one that the thread may run on.
    #[cold]
    pub(crate) fn visit(&self, mut empty: impl FnMut(&Cache)) {
        let mut run = || {
            if let Some(cache) = self.cache(self.cpu()) {
                empty(cache);
            }
        };
        run();
        rseq::visit(self.touched_cpus().map(|cpu| cpu as usize), run);
    }

    /// Whether tags may be cached: not in a child of fork, which has none of the tags that were cached, nor after `restart_all` was
    /// refused.
    pub(crate) fn is_usable(&self) -> bool {
        self.at(self.cpus).most() != 0 && !self.is_refused()
    }

    fn is_refused(&self) -> bool {
        self.is_refused.load(SeqCst) != 0
    }

    /// Whether a tag may be in a cache though all were emptied, since `restart_all` was refused.
    #[inline]
    pub(crate) fn has_unreached(&self) -> bool {
        self.is_refused() && self.touched().any(|cache| cache.len() != 0)
    }

    fn at(&self, cpu: u32) -> &Cache {
        // SAFETY: `memory` has `cpus` + 1 caches, zeros are valid ones, and it lives as long as this value.
        unsafe { self.memory.add(cpu as usize).as_ref() }
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        // SAFETY: `new` mapped these bytes, and nothing else has their address.
        unsafe { unmap(self.memory.cast(), bytes(self.cpus)) };
    }
}

impl Cache {
    /// Tags that it may hold.
    pub(crate) fn most(&self) -> u32 {
        (self.front_and_most.load(SeqCst) >> u32::BITS) as u32
    }

    /// Lets it hold this many tags. False, and nothing done, if it may hold some already.
    pub(crate) fn claim(&self, most: u32) -> bool {
        let claimed = u64::from(most) << u32::BITS | NO_FRONT;
        let exchanged = (self.front_and_most).compare_exchange(0, claimed, SeqCst, SeqCst);
        exchanged.is_ok()
    }

    /// Tags that it holds, roughly while the gate is open.
    pub(crate) fn len(&self) -> u32 {
        let front = self.front_and_most.load(Relaxed) as u32;
        self.count.load(Relaxed) + u32::from(!matches!(front, 0 | u32::MAX))
    }

    /// Notes which way tags move now. Whether they moved that way the last time as well: then this CPU only takes, or only puts, and
    /// what is left behind moves next.
    pub(crate) fn moves_again(&self, moves: Moves) -> bool {
        let last = self.moves.load(Relaxed);
        self.moves.store(moves as u32, Relaxed);
        last == moves as u32
    }

    /// Lets it hold nothing from now on: how many tags it might hold, and the tag in front. The gate is as for `steal`.
    pub(crate) fn withdraw(&self) -> (u32, Option<u32>) {
        let before = self.front_and_most.swap(0, SeqCst);
        let front = before as u32;
        let tag = (!matches!(front, 0 | u32::MAX)).then(|| front - 1);
        ((before >> u32::BITS) as u32, tag)
    }

    /// Takes a tag out of the slots. The gate is closed, `restart_all` was called or this is in
    /// `visit`, and the gate stays closed until this returns: so `count` only decreases, and a slot below it keeps its tag.
    pub(crate) fn steal(&self) -> Option<u32> {
        let mut count = self.count.load(SeqCst);
        loop {
            let last = count.checked_sub(1)?;
            let tag = self.slots[last as usize].load(SeqCst);
            match self.count.compare_exchange(count, last, SeqCst, SeqCst) {
                Ok(_) => return Some(tag),
                Err(now) => count = now,
            }
        }
    }
}

fn bytes(cpus: u32) -> usize {
    (cpus as usize + 1) * size_of::<Cache>()
}
