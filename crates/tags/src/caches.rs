//! A cache of free tags for each possible CPU, in memory that is touched only for CPUs that ran a caller.
//!
//! ```text
//! count  most  pushes  refills  slots: count tags, the last is taken first
//! ├──4──┼──4──┼───4───┼───4───┼──4──┼──4──┼── … 44
//! ```
//!
//! Only restartable sequences write tags while the gate is open; while it is closed, and after `restart_all`, any thread
//! takes tags out with atomic instructions. A cache of zeros holds nothing and accepts nothing, and that is what a child of fork
//! finds.

use std::ptr::NonNull;

use crate::auto::Control;
use crate::rseq::{self, Popped, Rseq};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const SLOTS: usize = 44;
/// Tags that a cache has space for.
pub(crate) const MOST: u32 = SLOTS as u32;

#[repr(C, align(64))]
pub(crate) struct Cache {
    count: AtomicU32,
    /// Tags it may hold: 0 until a thread of its CPU asks for some, and after it was emptied.
    pub(crate) most: AtomicU32,
    /// Counted before a tag is put.
    pushes: AtomicU32,
    /// How often it was filled.
    pub(crate) refills: AtomicU32,
    slots: [AtomicU32; SLOTS],
}

/// The sequences' code has these offsets.
const _: () = {
    assert!(size_of::<Cache>() == 3 << 6);
    assert!(std::mem::offset_of!(Cache, count) == 0);
    assert!(std::mem::offset_of!(Cache, most) == 4);
    assert!(std::mem::offset_of!(Cache, pushes) == 8);
    assert!(std::mem::offset_of!(Cache, slots) == 16);
    assert!(std::mem::offset_of!(Control, gate) == 0);
    assert!(std::mem::offset_of!(Control, size) == 8);
};

/// A cache that was empty: the same twice was empty in between, since a sequence that puts a tag, seen from the same CPU, counts
/// and puts at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Empty {
    cache: usize,
    pushes: u32,
}

pub(crate) struct Caches {
    rseq: Rseq,
    /// `cpus` caches and one more, whose `most` is 1 except in a child of fork.
    memory: NonNull<Cache>,
    cpus: u32,
    /// CPUs whose cache was ever used, a bit each.
    touched: Box<[AtomicU64]>,
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
            memory: map(bytes(cpus))?,
            cpus,
            touched: (0..cpus.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        };
        this.at(cpus).most.store(1, Ordering::Relaxed);
        Some(this)
    }

    /// A tag of this CPU's cache, while the gate is open.
    #[inline(always)]
    pub(crate) fn pop(&self, control: &Control) -> Option<u32> {
        let popped = self.sequence(control);
        (popped.tag != rseq::NONE).then_some(popped.tag)
    }

    /// As `pop`, while the gate is open and this thread runs on a possible CPU: `Err` says which cache was empty.
    pub(crate) fn pop_or_empty(&self, control: &Control) -> Result<u32, Empty> {
        let Popped { tag, cache, pushes } = self.sequence(control);
        match tag {
            rseq::NONE => Err(Empty { cache, pushes }),
            tag => Ok(tag),
        }
    }

    /// Tags that the cache may hold which was empty.
    pub(crate) fn most(&self, empty: Empty) -> Option<u32> {
        let offset = empty.cache.checked_sub(self.memory.addr().get())?;
        let cache = self.cache(offset / size_of::<Cache>())?;
        Some(cache.most.load(Ordering::SeqCst))
    }

    #[inline(always)]
    fn sequence(&self, control: &Control) -> Popped {
        let control = std::ptr::from_ref(control).cast();
        let memory = self.memory.as_ptr().cast();
        // SAFETY: `rseq` was probed; `memory` has `cpus` caches of the layout above; a thread that writes one otherwise closed the gate and
        // called `restart_all` first.
        unsafe { rseq::pop(self.rseq.offset(), control, memory, self.cpus) }
    }

    /// Puts a tag below the size into this CPU's cache, while the gate is open. Whether it did.
    #[inline(always)]
    pub(crate) fn push(&self, control: &Control, tag: u32) -> bool {
        let control = std::ptr::from_ref(control).cast();
        let memory = self.memory.as_ptr().cast();
        // SAFETY: as in `pop`.
        unsafe { rseq::push(self.rseq.offset(), control, memory, self.cpus, tag) }
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
        self.touched[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::SeqCst);
    }

    /// Every cache that may hold a tag.
    pub(crate) fn touched(&self) -> impl Iterator<Item = &Cache> {
        (0..self.cpus)
            .filter(|cpu| {
                let word = self.touched[*cpu as usize / 64].load(Ordering::SeqCst);
                word & 1 << (cpu % 64) != 0
            })
            .map(|cpu| self.at(cpu))
    }

    /// After the gate was closed: on return, no sequence that saw it open will commit.
    pub(crate) fn restart_all(&self) {
        self.rseq.restart_all();
    }

    /// Whether this is a child of fork: it has none of the tags that were cached.
    pub(crate) fn is_wiped(&self) -> bool {
        self.at(self.cpus).most.load(Ordering::Relaxed) == 0
    }

    fn at(&self, cpu: u32) -> &Cache {
        // SAFETY: `memory` has `cpus` + 1 caches, zeros are valid ones, and it lives as long as this value.
        unsafe { self.memory.add(cpu as usize).as_ref() }
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        // SAFETY: `map` mapped these bytes, and nothing else has their address.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), bytes(self.cpus)) };
    }
}

impl Cache {
    /// Tags that it holds, roughly while the gate is open.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a tag out. The gate is closed, `restart_all` was called, and the gate stays closed until this returns: so `count` only
    /// decreases, and a slot below it keeps its tag.
    pub(crate) fn steal(&self) -> Option<u32> {
        let mut count = self.count.load(Ordering::SeqCst);
        loop {
            let last = count.checked_sub(1)?;
            let tag = self.slots[last as usize].load(Ordering::SeqCst);
            let order = (Ordering::SeqCst, Ordering::SeqCst);
            match self.count.compare_exchange(count, last, order.0, order.1) {
                Ok(_) => return Some(tag),
                Err(now) => count = now,
            }
        }
    }
}

fn bytes(cpus: u32) -> usize {
    (cpus as usize + 1) * size_of::<Cache>()
}

/// Zeros, a page's worth in memory once it is written, and zeros again in a child of fork.
fn map(bytes: usize) -> Option<NonNull<Cache>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel chooses; no memory of the process is changed.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is this function's own.
    let is_wiped = unsafe { libc::madvise(memory, bytes, libc::MADV_WIPEONFORK) } == 0;
    if !is_wiped {
        // SAFETY: as above; nothing refers to it.
        unsafe { libc::munmap(memory, bytes) };
        return None;
    }
    NonNull::new(memory.cast())
}
