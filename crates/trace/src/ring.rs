//! The ring buffer that the kernel and this process share, one a CPU.
//!
//! ```text
//!           page 0                 pages 1 .. 2^n
//! ┌──────────────────────────┬──────────────────────────────────────┐
//! │ data_head   data_tail    │ ....tail▒▒▒▒▒▒▒▒▒▒▒▒▒▒head.......... │
//! └──────────────────────────┴──────────────────────────────────────┘
//!   written by     written        the kernel writes from head on, never beyond tail:
//!   the kernel     by us          what it has no room for it counts as lost
//! ```
//!
//! Head and tail count bytes without end; their place is the remainder by the size, which is a power of two.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::bindings::perf_event_mmap_page;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::records::{self, Layout, Record};

/// A mapped ring. Dropping it unmaps it.
pub(crate) struct Ring {
    page: NonNull<perf_event_mmap_page>,
    /// Bytes of the first page, after which the data begins.
    header: usize,
    /// Bytes of data, a power of two.
    size: usize,
    layout: Layout,
}

// SAFETY: the mapping belongs to this value alone, no thread is tied to it, and reading takes it mutably.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring of so many bytes of data, a power of two and a multiple of the page.
    pub(crate) fn map(event: BorrowedFd<'_>, size: usize, layout: Layout) -> io::Result<Self> {
        let header = rustix::param::page_size();
        debug_assert!(size.is_power_of_two() && size.is_multiple_of(header));
        // Writable: only then does the kernel respect the tail instead of overwriting what was not read yet.
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes; nothing that exists is replaced.
        let page = unsafe {
            mmap(
                ptr::null_mut(),
                header + size,
                protection,
                MapFlags::SHARED,
                event,
                0,
            )
        }?;
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            page,
            header,
            size,
            layout,
        })
    }

    /// Visits every record that has been written since the last time, and gives the room back.
    pub(crate) fn drain(&mut self, scratch: &mut Vec<u8>, visit: &mut dyn FnMut(Record<'_>)) {
        // SAFETY: both are u64 in the mapped first page, aligned, and only ever accessed atomically.
        let (head, tail) = unsafe {
            let page = self.page.as_ptr();
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        };
        // Pairs with the kernel's barrier before it moves the head: the records up to there are whole.
        let until = head.load(Ordering::Acquire);
        let from = tail.load(Ordering::Relaxed);
        if until == from {
            return;
        }
        let data = self.page.cast::<u8>().as_ptr().wrapping_add(self.header);
        let [first, second] = spans(from, until, self.size).map(|(start, length)| {
            // SAFETY: within the mapped data by `spans`; the kernel leaves what is between tail and head alone until the
            // tail moves, which it does below, when the slices are gone.
            unsafe { std::slice::from_raw_parts(data.wrapping_add(start), length) }
        });
        records::walk([first, second], self.layout, scratch, visit);
        // Pairs with the kernel reading the tail before it writes: we are done with these bytes.
        tail.store(until, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the whole mapping made in `map`, to which no reference is left.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), self.header + self.size) };
    }
}

/// Where the bytes from `from` to `until` are in a ring: start and length of the two parts, the second empty where they
/// are in one piece. Never beyond the ring, whatever the two counts are.
fn spans(from: u64, until: u64, size: usize) -> [(usize, usize); 2] {
    let length = usize::try_from(until.wrapping_sub(from))
        .unwrap_or(usize::MAX)
        .min(size);
    // A power of two divides 2^64, so the remainder is right even when the counts wrap around.
    let start = (from % size as u64) as usize;
    let first = length.min(size - start);
    [(start, first), (0, length - first)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_wraps_around_is_in_two_parts() {
        assert_eq!(spans(8, 24, 64), [(8, 16), (0, 0)]);
        assert_eq!(spans(56, 72, 64), [(56, 8), (0, 8)]);
        assert_eq!(spans(64, 128, 64), [(0, 64), (0, 0)], "a full ring");
        assert_eq!(
            spans(u64::MAX - 7, 8, 64),
            [(56, 8), (0, 8)],
            "counts that wrap around themselves"
        );
    }

    proptest! {
        #[test]
        fn no_span_leaves_the_ring_and_both_together_are_what_was_written(from: u64, length in 0u64..4096, power in 3u32..12) {
            let size = 1usize << power;
            let [(a, first), (b, second)] = spans(from, from.wrapping_add(length), size);
            prop_assert!(a + first <= size && b + second <= size);
            prop_assert!(second == 0 || (a + first == size && b == 0));
            prop_assert_eq!((first + second) as u64, length.min(size as u64));
        }
    }
}
