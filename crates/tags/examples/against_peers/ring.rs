//! A ring by which one thread hands tags to another.
//!
//! It passes them in lines of 16, so that the ring costs two transfers of a cache line for 16 tags: what is measured is the
//! allocator. `dpdk.c` knows the layout.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Tags of a line.
pub const LINE: usize = 16;
/// Lines of the longest ring, a power of two.
const LINES: usize = 8;

#[repr(C, align(128))]
#[derive(Default)]
struct Count(AtomicU64);

/// From one thread to one other.
#[repr(C)]
#[derive(Default)]
pub struct Ring {
    /// Lines that were filled, and all bits once the last was.
    filled: Count,
    /// Lines that were emptied.
    emptied: Count,
    slots: [[AtomicU32; LINE]; LINES],
    /// Lines that may be full at a time.
    lines: u64,
}

const CLOSED: u64 = 1 << 63;

impl Ring {
    /// One of `rings` rings that together hold the tags of all lines.
    pub fn of(rings: usize) -> Self {
        Self {
            lines: (LINES / rings).max(1) as u64,
            ..Self::default()
        }
    }

    /// Whether line `line` can be filled.
    pub fn has_space(&self, line: u64) -> bool {
        line < self.emptied.0.load(Ordering::Acquire) + self.lines
    }

    pub fn fill(&self, line: u64, tags: &[u32; LINE]) {
        let slots = &self.slots[line as usize % LINES];
        for (slot, tag) in slots.iter().zip(tags) {
            slot.store(*tag, Ordering::Relaxed);
        }
        self.filled.0.store(line + 1, Ordering::Release);
    }

    /// No line follows.
    pub fn close(&self) {
        self.filled.0.fetch_or(CLOSED, Ordering::Release);
    }

    /// How many lines were filled, and whether more follow.
    pub fn filled(&self) -> (u64, bool) {
        let filled = self.filled.0.load(Ordering::Acquire);
        (filled & !CLOSED, filled & CLOSED == 0)
    }

    pub fn tags(&self, line: u64) -> impl Iterator<Item = u32> {
        let slots = self.slots[line as usize % LINES].iter();
        slots.map(|slot| slot.load(Ordering::Relaxed))
    }

    pub fn empty(&self, lines: u64) {
        self.emptied.0.store(lines, Ordering::Release);
    }
}

/// Waits a moment for the other side: first without the kernel, since it runs on another CPU.
#[derive(Default)]
pub struct Pause(u32);

impl Pause {
    pub fn wait(&mut self) {
        self.0 += 1;
        match self.0 % 64 {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}
