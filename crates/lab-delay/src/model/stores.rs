// SPDX-License-Identifier: GPL-2.0-or-later
//! When lines that vCPUs hand to each other were stored to, in simulated time.
//!
//! vCPUs take turns of a window. One that polls a line may be up to a window ahead of the store that it polls for: the poll that
//! sees the store comes late by that. The transfer began at the store.
//!
//! ```text
//!  writer   ──────── store ·······
//!  reader   ─ poll ─ poll ─ poll ─ poll │ its next turn: poll, which sees the store
//!                       └─────── late ──────┘
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lines whose stores are known: few are handed over at a time.
const LINES: usize = 1024;

/// Of each line the last store, unless another line has taken its place.
#[derive(Debug)]
pub struct Stores {
    window_ps: u64,
    /// The line, and the vCPU's local time.
    last: Box<[[AtomicU64; 2]]>,
}

impl Stores {
    /// Of vCPUs that are at most so far ahead of one another.
    pub fn new(window_ps: u64) -> Self {
        Self {
            window_ps,
            last: (0..LINES).map(|_| Default::default()).collect(),
        }
    }

    /// A vCPU stores to a line.
    pub fn note(&self, line: u32, at_ps: u64) {
        let [of, at] = &self.last[line as usize % LINES];
        of.store(line.into(), Relaxed);
        at.store(at_ps, Relaxed);
    }

    /// When a line was stored to that a vCPU polls now; `now_ps` where that is longer ago than the vCPU can be ahead.
    pub fn seen_late(&self, line: u32, now_ps: u64) -> u64 {
        let [of, at] = &self.last[line as usize % LINES];
        let at_ps = at.load(Relaxed);
        let is_late = of.load(Relaxed) == u64::from(line)
            && now_ps.saturating_sub(at_ps) <= 2 * self.window_ps;
        if is_late { at_ps.min(now_ps) } else { now_ps }
    }
}
