//! Wake-ups on their way: for which tags, and how often those were made free since.

use crate::sync::{AtomicU64, Ordering};

/// More wake-ups than this are possible; puts do not see them and may wake a waiter for nothing.
const RECORDS: usize = 8;

/// Tag + 1 that a waiter on its way was woken for, and how often it was made free since in the upper half; 0 for none. The tag's
/// remainder is the index.
pub(crate) struct WakeUps([AtomicU64; RECORDS]);

impl WakeUps {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// A waiter is woken for this tag.
    pub(crate) fn record(&self, tag: u32) {
        self.of(tag).store(u64::from(tag) + 1, Ordering::Relaxed);
    }

    /// How often this tag was made free since a waiter was woken for it; `None` if no waiter on its way was.
    pub(crate) fn count_pass(&self, tag: u32) -> Option<u32> {
        let record = self.of(tag);
        let is_same = |value: u64| value as u32 == tag + 1;
        if !is_same(record.load(Ordering::Relaxed)) {
            return None;
        }
        let before = record.fetch_add(1 << u32::BITS, Ordering::Relaxed);
        is_same(before).then_some((before >> u32::BITS) as u32)
    }

    /// Clears the record of a wake-up. It may be that of another waiter, woken for the same tag later: a put wakes one more then.
    pub(crate) fn forget(&self, tag: u32) {
        let record = self.of(tag);
        if record.load(Ordering::Relaxed) as u32 == tag + 1 {
            record.store(0, Ordering::Relaxed);
        }
    }

    fn of(&self, tag: u32) -> &AtomicU64 {
        &self.0[tag as usize % RECORDS]
    }
}
