// SPDX-License-Identifier: GPL-2.0-or-later
//! The memory that the plugin shares with the process that started QEMU: a file without a name, passed as a descriptor.
//!
//! All words are 64 bits in the host's byte order, at these offsets in bytes:
//! ```text
//!     0  "NFDELAY1"        40  offset of the counters       offset + vCPU x stride:
//!     8  layout, 7         48  vCPUs                            0 accesses        40 transfers, other node
//!    16  bytes in all      56  nodes                            8 cache hits      48 nanoseconds of delay
//!    24  config's offset   64  stride of a vCPU's counters     16 near            56 doorbell writes, near
//!    32  config's bytes    72  gate: 1 open, 0 closed          24 far             64 doorbell writes, far
//!                          80  state: 0 not loaded,            32 transfers,      72 transfers, same node,
//!                              1 closed, 2 open                   same cache         other cache
//!                          88  offset of the doorbells         80 nanoseconds of waiting for others
//!                          96  controllers there is room for   88 by node, ascending: misses to its memory, then
//!                         104  nanoseconds of simulated time      picoseconds waited for that, then lines that
//!                              that have passed                   another cache of the node had
//!                         112  offset of the transfers ([`transfers`])
//!                         120  slots there are for them
//!   offset of the doorbells: how many controllers there are, then for each: first guest physical address, bytes, stride, node
//! ```
//! Everything but the state, the time, the counters and the transfers is written before QEMU starts; the gate and the doorbells may change at any time.

use std::io;
use std::os::fd::RawFd;
use std::str::Utf8Error;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use thiserror::Error;

use crate::region::transfers::{SLOT_WORDS, Transfers};

pub mod transfers;

/// The first word, in the order of its bytes.
pub const MAGIC: [u8; 8] = *b"NFDELAY1";
/// The layout that is understood here.
pub const LAYOUT: u64 = 7;

const BYTES: usize = 16;
const CONFIG: usize = 24;
const CONFIG_BYTES: usize = 32;
const COUNTERS: usize = 40;
const VCPUS: usize = 48;
const NODES: usize = 56;
const STRIDE: usize = 64;
const GATE: usize = 72;
const STATE: usize = 80;
const DOORBELLS: usize = 88;
const CONTROLLERS: usize = 96;
const SIMULATED: usize = 104;
const TRANSFERS: usize = 112;
const SLOTS: usize = 120;
const HEADER: usize = 128;
/// Words of a vCPU before those by node.
const FIXED: usize = 11;
/// Words of a vCPU for each node: misses, picoseconds waited, lines of another cache.
const BY_NODE: usize = 3;

/// A region that cannot be used.
#[derive(Debug, Error)]
pub enum RegionError {
    /// The descriptor is not open, or cannot be mapped.
    #[error("cannot map region={fd}: {error}")]
    Map {
        /// The descriptor.
        fd: RawFd,
        error: io::Error,
    },
    /// The file has no room for the first words.
    #[error("region={fd}: {bytes} bytes are too few")]
    TooSmall {
        /// The descriptor.
        fd: RawFd,
        /// The size of its file.
        bytes: usize,
    },
    /// The first words are others.
    #[error(
        "the region is not of layout {LAYOUT}: the plugin and nearfar are of different versions"
    )]
    Layout,
    /// The parts do not fit the whole.
    #[error("the region's sizes contradict each other")]
    Sizes,
    /// The configuration is not UTF-8.
    #[error("the configuration is not text: {0}")]
    Text(Utf8Error),
}

/// The plugin's state, for the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Loaded; nothing is instrumented.
    Closed = 1,
    /// Memory accesses are looked at.
    Open = 2,
}

/// The mapped region. It stays mapped as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    base: *const u8,
    bytes: usize,
}

// SAFETY: what other threads and processes change is read and written through atomics only; the rest never changes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a descriptor and checks the layout.
    ///
    /// # Errors
    /// When it cannot be mapped or is not such a region.
    pub fn map(fd: RawFd) -> Result<Self, RegionError> {
        // SAFETY: an all-zero stat is a valid value, and fstat writes nothing else.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to the value above.
        if unsafe { libc::fstat(fd, &mut stat) } != 0 {
            let error = io::Error::last_os_error();
            return Err(RegionError::Map { fd, error });
        }
        let bytes = usize::try_from(stat.st_size).unwrap_or(0);
        if bytes < HEADER {
            return Err(RegionError::TooSmall { fd, bytes });
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(RegionError::Map { fd, error });
        }
        let region = Self {
            base: base.cast_const().cast(),
            bytes,
        };
        region.check().map(|()| region)
    }

    fn check(&self) -> Result<(), RegionError> {
        let (magic, layout) = (
            self.at(0).load(Relaxed).to_ne_bytes(),
            self.at(8).load(Relaxed),
        );
        if magic != MAGIC || layout != LAYOUT {
            return Err(RegionError::Layout);
        }
        let (stride, bytes) = (self.word(STRIDE), self.bytes);
        let counters = self
            .word(VCPUS)
            .checked_mul(stride)
            .and_then(|sum| sum.checked_add(self.word(COUNTERS)));
        let config = self.word(CONFIG).checked_add(self.word(CONFIG_BYTES));
        let doorbells = self
            .word(CONTROLLERS)
            .checked_mul(DOORBELL_WORDS * 8)
            .and_then(|sum| sum.checked_add(8)?.checked_add(self.word(DOORBELLS)));
        let slots = self.word(SLOTS).checked_add(1);
        let transfers = slots
            .and_then(|slots| slots.checked_mul(SLOT_WORDS * 8))
            .and_then(|sum| sum.checked_add(self.word(TRANSFERS)));
        let whole = self.word(BYTES) == bytes
            && doorbells.is_some_and(|end| end <= bytes)
            && self.word(DOORBELLS).is_multiple_of(8)
            && transfers.is_some_and(|end| end <= bytes)
            && self.word(TRANSFERS).is_multiple_of(8)
            && counters.is_some_and(|end| end <= bytes)
            && config.is_some_and(|end| end <= bytes)
            && self
                .word(NODES)
                .checked_mul(BY_NODE * 8)
                .is_some_and(|by_node| by_node <= stride.saturating_sub(FIXED * 8))
            && stride.is_multiple_of(8)
            && self.word(COUNTERS).is_multiple_of(8);
        if whole {
            Ok(())
        } else {
            Err(RegionError::Sizes)
        }
    }

    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: inside the mapping (asserted), which is page aligned and never unmapped.
        unsafe { &*self.base.add(offset).cast() }
    }

    fn word(&self, offset: usize) -> usize {
        usize::try_from(self.at(offset).load(Relaxed)).unwrap_or(usize::MAX)
    }

    /// The configuration's text.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub fn config(&self) -> Result<&str, RegionError> {
        let (offset, bytes) = (self.word(CONFIG), self.word(CONFIG_BYTES));
        // SAFETY: inside the mapping (checked when it was made); the host does not write it any more.
        let text = unsafe { std::slice::from_raw_parts(self.base.add(offset), bytes) };
        std::str::from_utf8(text).map_err(RegionError::Text)
    }

    /// Whether the host wants accesses looked at.
    pub fn gate(&self) -> bool {
        self.at(GATE).load(Relaxed) != 0
    }

    /// Writes the state, for the host.
    pub fn set_state(&self, state: State) {
        self.at(STATE).store(state as u64, Relaxed);
    }

    /// Writes how many nanoseconds of simulated time have passed, for the host.
    pub fn set_simulated_ns(&self, ns: u64) {
        self.at(SIMULATED).store(ns, Relaxed);
    }

    /// vCPUs there is room for.
    pub fn vcpus(&self) -> usize {
        self.word(VCPUS)
    }

    /// Nodes there is room for.
    pub fn nodes(&self) -> usize {
        self.word(NODES)
    }

    /// The doorbells of controllers, as the host sets them.
    pub fn doorbells(&self) -> Doorbells {
        let (offset, words) = (
            self.word(DOORBELLS),
            1 + self.word(CONTROLLERS) * DOORBELL_WORDS,
        );
        // SAFETY: inside the mapping (checked when it was made), aligned to a word, never unmapped.
        Doorbells::over(unsafe { std::slice::from_raw_parts(self.base.add(offset).cast(), words) })
    }

    /// The table of transfers, which all vCPUs share.
    pub fn transfers(&self) -> Transfers {
        let words = (1 + self.word(SLOTS)) * SLOT_WORDS;
        let offset = self.word(TRANSFERS);
        // SAFETY: inside the mapping (checked when it was made), aligned to a word, never unmapped.
        Transfers::over(unsafe { std::slice::from_raw_parts(self.base.add(offset).cast(), words) })
    }

    /// The counters of a vCPU.
    ///
    /// # Panics
    /// When there is no room for that vCPU.
    pub fn counters(&self, vcpu: usize) -> Counters {
        assert!(vcpu < self.vcpus());
        let offset = self.word(COUNTERS) + vcpu * self.word(STRIDE);
        // SAFETY: inside the mapping (checked when it was made), aligned to a word, never unmapped.
        Counters::over(unsafe {
            let words = FIXED + BY_NODE * self.nodes();
            std::slice::from_raw_parts(self.base.add(offset).cast(), words)
        })
    }
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// Loads and stores.
    Accesses = 0,
    /// Served by the modelled last-level cache. What neither hit it nor cost anything was served by the filter before it.
    CacheHits = 1,
    /// Memory of the vCPU's own node.
    Near = 2,
    /// Memory of another node.
    Far = 3,
    /// Lines from another vCPU of the same last-level cache.
    TransfersSame = 4,
    /// Lines from another node.
    TransfersOther = 5,
    /// Nanoseconds waited.
    DelayNs = 6,
    /// Doorbell writes to controllers of the vCPU's node.
    DoorbellsNear = 7,
    /// Doorbell writes to controllers of other nodes.
    DoorbellsFar = 8,
    /// Lines from another last-level cache of the node.
    TransfersSameNode = 9,
    /// Nanoseconds of [`Self::DelayNs`] that were for others that used a memory or a link.
    WaitNs = 10,
}

/// A vCPU's counters. Only its own thread writes them, so adding needs no locked instruction.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    counts: &'static [AtomicU64; FIXED],
    /// The misses, then the waits, then the transfers.
    by_node: &'static [AtomicU64],
}

impl Counters {
    /// Counters in given words.
    ///
    /// # Panics
    /// For fewer than eleven.
    pub fn over(words: &'static [AtomicU64]) -> Self {
        let (counts, by_node) = words.split_first_chunk().expect("eleven words at least");
        Self { counts, by_node }
    }

    /// Adds to a count, and returns what it was.
    #[inline(always)]
    pub fn add(&self, count: Count, amount: u64) -> u64 {
        add(&self.counts[count as usize], amount)
    }

    /// Counts a miss to the memory of a node, by its position, and how long others kept it waiting.
    pub fn miss_to(&self, position: usize, wait_ps: u64) {
        self.add_by_node(0, position, 1);
        self.add_by_node(1, position, wait_ps);
    }

    /// Counts a line that another cache of the node at a position had.
    pub fn transfer_from(&self, position: usize) {
        self.add_by_node(2, position, 1);
    }

    fn add_by_node(&self, kind: usize, position: usize, amount: u64) {
        let nodes = self.by_node.len() / BY_NODE;
        if let Some(word) = self.by_node.get(kind * nodes + position) {
            add(word, amount);
        }
    }

    /// A count.
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }
}

#[inline(always)]
fn add(word: &AtomicU64, amount: u64) -> u64 {
    let before = word.load(Relaxed);
    word.store(before.wrapping_add(amount), Relaxed);
    before
}

/// Words of a controller: first guest physical address, bytes, stride, node.
const DOORBELL_WORDS: usize = 4;

/// The doorbells of all controllers, device registers that a driver writes to submit work, in words that another process may change.
#[derive(Clone, Copy, Debug)]
pub struct Doorbells {
    /// How many controllers there are.
    count: &'static AtomicU64,
    controllers: &'static [AtomicU64],
}

impl Doorbells {
    /// Doorbells in given words: the number of controllers, then `DOORBELL_WORDS` for each.
    ///
    /// # Panics
    /// Without any word.
    pub fn over(words: &'static [AtomicU64]) -> Self {
        let (count, controllers) = words.split_first().expect("a word for the number");
        Self { count, controllers }
    }

    /// Whether there can be any.
    pub fn can_exist(&self) -> bool {
        !self.controllers.is_empty()
    }

    /// The node of the controller whose doorbell is at a guest physical address.
    pub fn node(&self, physical: u64) -> Option<u32> {
        let count = usize::try_from(self.count.load(Acquire)).unwrap_or(usize::MAX);
        let rows = self.controllers.chunks_exact(DOORBELL_WORDS).take(count);
        let words = rows.map(|row| [0, 1, 2, 3].map(|position: usize| row[position].load(Relaxed)));
        for [start, bytes, stride, node] in words {
            let offset = physical.wrapping_sub(start);
            if offset < bytes && stride != 0 && offset.is_multiple_of(stride) {
                return u32::try_from(node).ok();
            }
        }
        None
    }
}
