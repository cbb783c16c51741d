// SPDX-License-Identifier: GPL-2.0-or-later
//! A set-associative cache of line numbers that replaces the least recently used one.
//!
//! A set is `ways` words, the most recently used first (16 ways are one line of the host's own cache). A line is kept
//! as its number plus one; 0 is an empty way.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
