// SPDX-License-Identifier: GPL-2.0-or-later
//! Doorbells: device registers that a driver writes to submit work.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};

/// Words of a controller: first guest physical address, bytes, stride, node.
pub const WORDS: usize = 4;

/// The doorbells of all controllers, in words that another process may change.
#[derive(Clone, Copy, Debug)]
pub struct Doorbells {
    /// How many controllers there are.
    count: &'static AtomicU64,
    controllers: &'static [AtomicU64],
}

impl Doorbells {
    /// Doorbells in given words: the number of controllers, then [`WORDS`] for each.
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
        let rows = self.controllers.chunks_exact(WORDS).take(count);
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
