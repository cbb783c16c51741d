// SPDX-License-Identifier: GPL-2.0-or-later
//! Who wrote a line last, which last-level caches have a copy, and what that makes the next access cost: MESI between these
//! caches, with the private caches of the vCPUs of one told apart only by who wrote last.
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
