// SPDX-License-Identifier: GPL-2.0-or-later
//! A word for each line of the guest's memory: an eighth of it, of which the host backs only what the guest touches.

use std::io;
use std::sync::atomic::AtomicU64;

use thiserror::Error;

/// The host refuses the address space for the table.
#[derive(Debug, Error)]
#[error("no room for a table of {count} cache lines: {error}")]
pub struct LinesError {
    /// Lines of the guest's memory.
    pub count: usize,
    pub error: io::Error,
}

/// The table, all zero at first.
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
