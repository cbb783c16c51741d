// SPDX-License-Identifier: GPL-2.0-or-later
//! The lines of the guest's memory: where each is, the word that is kept of it, the last-level caches that hold it, and who wrote it.
//!
//! A cache is set-associative, of line numbers, and replaces the least recently used one.
//!
//! A set is `ways` words, the most recently used first (16 ways are one line of the host's own cache). A line is kept
//! as its number plus one; 0 is an empty way.
//!
//! A line's word says who wrote the line last and which last-level caches have a copy, and that makes the next access cost: MESI
//! between these caches, with the private caches of the vCPUs of one told apart only by who wrote last.
//!
//! ```text
//!   63                            15   14      13      12       11 ... 0      (a word a line)
//!  ┌────────────────────────────────┬───────┬───────┬────────┬─────────────┐
//!  │ caches with a copy, by number  │ core  │ dirty │ shared │ writer + 1  │
//!  └────────────────────────────────┴───────┴───────┴────────┴─────────────┘
//!    dirty: memory is older than the writer's copy; shared: another core of the writer's cache read it since;
//!    core: another vCPU of the writer's core did
//!
//!                      the cache has it                    the cache has it not
//!  read    wrote: other vCPU of the core, not read yet     dirty elsewhere     ──► transfer, other cache
//!            ──► transfer, same core                       otherwise           ──► memory
//!          wrote: other core of the cache, not shared yet
//!            ──► transfer, same cache
//!          otherwise ──► hit
//!  write   copies elsewhere ──► transfer, other cache      copies elsewhere    ──► transfer, other cache
//!          wrote: itself, not shared; or no vCPU       otherwise           ──► memory
//!            ──► hit
//!          wrote: other vCPU of the core, not shared
//!            ──► transfer, same core
//!          otherwise ──► transfer, same cache
//! ```
//! A write leaves the line dirty and only here, a read leaves it shared: by the writer's core, by its cache, or by others.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use thiserror::Error;

use crate::config::{LINE_BYTES, Range};

/// A place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The line, counted through all memory without its holes.
    pub line: u32,
    /// The node's position.
    pub node: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    bytes: u64,
    first_line: u32,
    node: usize,
}

/// The memory map.
#[derive(Clone, Debug)]
pub struct Memory {
    pieces: Vec<Piece>,
    lines: u32,
}

impl Memory {
    /// A map of ranges that ascend and do not overlap; `position` is that of a node by its number.
    pub fn new(ranges: &[Range], position: impl Fn(u32) -> usize) -> Self {
        let mut lines = 0;
        let mut pieces = Vec::with_capacity(ranges.len());
        for &Range { start, bytes, node } in ranges {
            pieces.push(Piece {
                start,
                bytes,
                first_line: lines,
                node: position(node),
            });
            lines += (bytes / LINE_BYTES) as u32;
        }
        Self { pieces, lines }
    }

    /// Lines in all.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// The position of a line's node.
    pub fn of_line(&self, line: u32) -> usize {
        let after = self
            .pieces
            .partition_point(|piece| piece.first_line <= line);
        self.pieces[after.max(1) - 1].node
    }

    /// What is at an address; `None` for a hole.
    pub fn spot(&self, physical: u64) -> Option<Spot> {
        let after = self.pieces.partition_point(|piece| piece.start <= physical);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        let offset = physical - piece.start;
        let line = piece.first_line + (offset / LINE_BYTES) as u32;
        (offset < piece.bytes).then_some(Spot {
            line,
            node: piece.node,
        })
    }
}

/// The host refuses the address space for the table.
#[derive(Debug, Error)]
#[error("no room for a table of {count} cache lines: {error}")]
pub struct LinesError {
    /// Lines of the guest's memory.
    pub count: usize,
    pub error: io::Error,
}

/// A word for each line, all zero at first: an eighth of the guest's memory, of which the host backs only what the guest touches.
#[derive(Debug)]
pub struct Lines {
    words: *const AtomicU64,
    count: usize,
}

// SAFETY: the table is reached through atomics only.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// A table for so many lines.
    ///
    /// # Errors
    /// When the host refuses the address space.
    pub fn new(count: u32) -> Result<Self, LinesError> {
        let count = (count as usize).max(1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let words =
            unsafe { libc::mmap(std::ptr::null_mut(), count * 8, protection, flags, -1, 0) };
        if words == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(LinesError { count, error });
        }
        Ok(Self {
            words: words.cast_const().cast(),
            count,
        })
    }

    /// A line's word.
    ///
    /// # Panics
    /// For a line beyond the table.
    #[inline]
    pub fn word(&self, line: u32) -> &AtomicU64 {
        assert!((line as usize) < self.count);
        // SAFETY: inside the mapping (asserted), which lives as long as the table and was zeroed by the kernel.
        unsafe { &*self.words.add(line as usize) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: mapped with this size in `new`; no reference outlives the table.
        unsafe { libc::munmap(self.words.cast_mut().cast(), self.count * 8) };
    }
}

/// One node's last-level cache.
#[derive(Debug)]
pub struct Cache {
    ways: usize,
    sets: usize,
    entries: Box<[AtomicU32]>,
}

/// What a look into the cache found and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// The line was there.
    pub hit: bool,
    /// The line that had to go for it.
    pub evicted: Option<u32>,
}

impl Cache {
    /// An empty cache; `sets` and `ways` of 0 are taken as 1.
    pub fn new(sets: usize, ways: usize) -> Self {
        let (sets, ways) = (sets.max(1), ways.max(1));
        Self {
            ways,
            sets,
            entries: (0..sets * ways).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Makes a line the most recently used of its set.
    pub fn touch(&self, line: u32) -> Touch {
        let first = line as usize % self.sets * self.ways;
        let set = &self.entries[first..first + self.ways];
        let own = line + 1;
        let mut moved = own;
        for way in set {
            let old = way.load(Relaxed);
            if moved != old {
                way.store(moved, Relaxed);
            }
            if old == own {
                return Touch {
                    hit: true,
                    evicted: None,
                };
            }
            if old == 0 {
                return Touch {
                    hit: false,
                    evicted: None,
                };
            }
            moved = old;
        }
        Touch {
            hit: false,
            evicted: Some(moved - 1),
        }
    }
}

const WRITER: u64 = 0xfff;
const SHARED: u64 = 1 << 12;
const DIRTY: u64 = 1 << 13;
/// Another vCPU of the writer's core has read it.
const CORE: u64 = 1 << 14;
const COPIES: u32 = 15;

/// A line's word.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Word(pub u64);

/// Who accesses a line, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accessor {
    /// The vCPU.
    pub vcpu: u16,
    /// Its last-level cache.
    pub cache: usize,
    /// Whether that cache found the line.
    pub present: bool,
    /// Whether the line's writer is of the same cache.
    pub with_writer: bool,
    /// Whether its core is this one, or the vCPU itself the writer.
    pub in_writers_core: bool,
}

/// What an access costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    /// Nothing.
    Hit,
    /// The delay of the memory's node.
    Memory,
    /// A line from another vCPU of the core.
    TransferCore,
    /// A line from another core of the same cache.
    TransferSame,
    /// A line from another cache.
    TransferOther,
}

impl Word {
    /// What a vCPU's write leaves.
    pub fn written(vcpu: u16, cache: usize) -> Self {
        Self(u64::from(vcpu + 1) | DIRTY | copy(cache))
    }

    /// The vCPU that wrote last.
    pub fn writer(self) -> Option<u16> {
        (self.0 & WRITER).checked_sub(1).map(|vcpu| vcpu as u16)
    }

    /// The same with the copy of a cache dropped.
    pub fn without(self, cache: usize) -> Self {
        let left = self.0 & !copy(cache);
        // Without copies the line is in memory only, and its writer is not recorded.
        Self(if left >> COPIES == 0 { 0 } else { left })
    }

    /// Whether a cache has a copy.
    pub fn at(self, cache: usize) -> bool {
        self.0 & copy(cache) != 0
    }

    /// Whether memory is older than a copy.
    pub fn is_dirty(self) -> bool {
        self.has(DIRTY)
    }

    fn elsewhere(self, cache: usize) -> bool {
        (self.0 & !copy(cache)) >> COPIES != 0
    }

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
}

fn copy(cache: usize) -> u64 {
    1 << (COPIES as usize + cache).min(63)
}

/// A load: its cost, and the word it leaves.
pub fn read(word: Word, by: Accessor) -> (Cost, Word) {
    let here = Word(word.0 | copy(by.cache));
    if by.present && word.at(by.cache) {
        let own = word.writer().is_none_or(|writer| writer == by.vcpu);
        return match own || word.has(SHARED) || !by.with_writer {
            true => (Cost::Hit, word),
            false if by.in_writers_core && word.has(CORE) => (Cost::Hit, word),
            false if by.in_writers_core => (Cost::TransferCore, Word(here.0 | CORE)),
            false => (Cost::TransferSame, Word(here.0 | SHARED)),
        };
    }
    match word.has(DIRTY) && word.elsewhere(by.cache) {
        true => (Cost::TransferOther, Word((here.0 & !DIRTY) | SHARED)),
        // A line whose last copies were here and left is as if never touched.
        false if !word.elsewhere(by.cache) => (Cost::Memory, Word(copy(by.cache))),
        false => (Cost::Memory, here),
    }
}

/// A store: its cost, and the word it leaves.
pub fn write(word: Word, by: Accessor) -> (Cost, Word) {
    let left = Word::written(by.vcpu, by.cache);
    let cost = if word.elsewhere(by.cache) {
        Cost::TransferOther
    } else if !(by.present && word.at(by.cache)) {
        Cost::Memory
    } else if !by.with_writer || (word.writer() == Some(by.vcpu) && !word.has(SHARED)) {
        Cost::Hit
    } else if by.in_writers_core && !word.has(SHARED) {
        Cost::TransferCore
    } else {
        Cost::TransferSame
    };
    (cost, left)
}
