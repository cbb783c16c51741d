//! A ring by which one thread hands tags to another.
//!
//! A line holds up to 31 tags and how many they are: 0 until the side that takes tags has filled it, and again when the side that puts
//! them has emptied it. So the ring costs a few transfers of a cache line for a line of tags: what is measured is the allocator.
//! `dpdk.c` knows the layout.

use std::sync::atomic::{AtomicU16, Ordering};

/// Tags of a line at most.
const MOST: usize = 31;
/// Lines of the longest ring, a power of two.
const LINES: usize = 4;
/// Instead of tags: no line follows.
const CLOSED: u16 = u16::MAX;

#[repr(C, align(128))]
#[derive(Default)]
pub struct Line {
    filled: AtomicU16,
    tags: [AtomicU16; MOST],
}

/// From one thread to one other.
#[repr(C)]
pub struct Ring {
    lines: [Line; LINES],
    /// Lines in use, a power of two.
    len: u64,
    /// Tags of a line.
    pub line: u64,
    /// How often a side looks for a line before it lets another thread run: one that has the CPU for itself gains nothing by a yield,
    /// and to others that share it the time would count as that of the allocator.
    looks: u64,
}

impl Ring {
    /// One of 1, 2 or 4 rings, which hold 120 to 124 tags together.
    pub fn of(rings: usize) -> Self {
        let (len, line, looks) = match rings {
            1 => (4, 31, 64),
            2 => (2, 31, 1),
            _ => (2, 15, 1),
        };
        Self {
            lines: Default::default(),
            len,
            line,
            looks,
        }
    }

    pub fn at(&self, line: u64) -> &Line {
        &self.lines[(line % self.len) as usize]
    }
}

impl Line {
    /// Whether it can be filled.
    pub fn is_empty(&self) -> bool {
        self.filled.load(Ordering::Acquire) == 0
    }

    pub fn set(&self, index: u64, tag: u32) {
        self.tags[index as usize].store(tag as u16, Ordering::Relaxed);
    }

    pub fn fill(&self, tags: u64) {
        self.filled.store(tags as u16, Ordering::Release);
    }

    /// No line follows this one.
    pub fn close(&self) {
        self.filled.store(CLOSED, Ordering::Release);
    }

    /// How many tags it has, `None` if it is the end.
    pub fn filled(&self) -> Option<u64> {
        let filled = self.filled.load(Ordering::Acquire);
        (filled != CLOSED).then_some(filled.into())
    }

    pub fn tags(&self, filled: u64) -> impl Iterator<Item = u32> {
        let tags = self.tags[..filled as usize].iter();
        tags.map(|tag| tag.load(Ordering::Relaxed).into())
    }

    pub fn empty(&self) {
        self.filled.store(0, Ordering::Release);
    }
}

/// Waits a moment for the other side, which runs on another CPU.
#[derive(Default)]
pub struct Pause(u64);

impl Pause {
    pub fn wait(&mut self, ring: &Ring) {
        self.0 += 1;
        match self.0 % ring.looks {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}
