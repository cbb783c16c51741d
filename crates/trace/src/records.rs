//! What the kernel writes into a ring: records one behind the other (`struct perf_event_header`, perf_event_open(2)).
//!
//! ```text
//!  header            body of a sample of TID | TIME | RAW; with a call chain, that is before the RAW part
//! ┌─────┬────┬────┐ ┌─────┬─────┬──────┬──────┬───────────────────┬─────┐
//! │type │misc│size│ │ pid │ tid │ time │ size │ the event's bytes │ pad │
//! │ u32 │ u16│ u16│ │ u32 │ u32 │ u64  │ u32  │                   │     │
//! └─────┴────┴────┘ └─────┴─────┴──────┴──────┴───────────────────┴─────┘
//! ```
//!
//! A record may begin at the end of the ring and go on at its start; then it is copied together. Sizes are checked though
//! the kernel wrote them: a record that does not add up ends the walk, is counted, and never reads beyond the ring.
//!
//! The kernel and this process share a ring buffer, one a CPU:
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

use perf_event_open_sys::bindings::{
    PERF_RECORD_COMM, PERF_RECORD_LOST, PERF_RECORD_MMAP, PERF_RECORD_SAMPLE, PERF_RECORD_THROTTLE,
    perf_event_mmap_page,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::session::Mapping;

/// Bytes of a record's header.
const HEADER: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample<'a> {
    /// The process in whose context it happened, as this process' pid namespace numbers it.
    pub pid: i32,
    pub tid: i32,
    /// When, on the clock of the session (CLOCK_MONOTONIC).
    pub time_ns: u64,
    /// Addresses of the kernel's call chain, 8 bytes each, innermost first, with markers; empty without
    /// [`Layout::callers`].
    chain: &'a [u8],
    /// The event's own bytes, laid out as its [`Format`](crate::format::Format) says; the kernel may add up to 7 bytes.
    pub event: &'a [u8],
}

/// What samples have besides thread, time and the event's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The kernel's call chain (PERF_SAMPLE_CALLCHAIN), between time and the event's bytes.
    pub callers: bool,
}

impl<'a> Sample<'a> {
    /// Without a call chain.
    pub fn new(pid: i32, tid: i32, time_ns: u64, event: &'a [u8]) -> Self {
        let chain = &[];
        Self {
            pid,
            tid,
            time_ns,
            chain,
            event,
        }
    }

    /// The addresses of the kernel's call chain, innermost first.
    pub fn callers(&self) -> impl Iterator<Item = u64> {
        let (words, _) = self.chain.as_chunks();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        // Markers between the parts of a chain are the highest numbers (PERF_CONTEXT_MAX, include/uapi/linux/perf_event.h).
        words.filter(|address| *address < 4095_u64.wrapping_neg())
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    Sample(Sample<'a>),
    /// A task got a name, as a rule because it became another program.
    Named {
        pid: i32,
        tid: i32,
        /// When: names of a task come from every CPU it was on.
        time_ns: u64,
        name: &'a [u8],
    },
    /// A task mapped code.
    Mapped(Mapping),
    /// The ring was full: so many records were not written.
    Lost(u64),
    /// The kernel paused the event because it was too frequent.
    Throttled,
    /// A kind that this version does not use.
    Other,
    /// Bytes that are no record; where their size is wrong, nothing behind them can be read.
    Damaged,
}

/// Visits the records in the filled part of a ring, which is in one piece or (second part not empty) in two. `scratch`
/// holds records that are in two pieces.
pub fn walk(
    parts: [&[u8]; 2],
    layout: Layout,
    scratch: &mut Vec<u8>,
    visit: &mut dyn FnMut(Record<'_>),
) {
    let [first, second] = parts;
    let total = first.len() + second.len();
    let mut at = 0;
    while at < total {
        let Some(size) = whole(parts, at, HEADER, scratch).map(header_size) else {
            return visit(Record::Damaged);
        };
        if size < HEADER {
            return visit(Record::Damaged);
        }
        let Some(record) = whole(parts, at, size, scratch) else {
            return visit(Record::Damaged);
        };
        visit(record_of(record, layout));
        at += size;
    }
}

/// So many bytes from there on, in one piece.
fn whole<'a>(
    parts: [&'a [u8]; 2],
    at: usize,
    length: usize,
    scratch: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    let [first, second] = parts;
    if at >= first.len() {
        let at = at - first.len();
        return second.get(at..at + length);
    }
    if at + length <= first.len() {
        return first.get(at..at + length);
    }
    let beyond = second.get(..at + length - first.len())?;
    scratch.clear();
    scratch.extend_from_slice(&first[at..]);
    scratch.extend_from_slice(beyond);
    Some(scratch)
}

fn header_size(header: &[u8]) -> usize {
    usize::from(u16::from_ne_bytes([header[6], header[7]]))
}

fn record_of(record: &[u8], layout: Layout) -> Record<'_> {
    let mut body = Body(&record[HEADER..]);
    let read = match u32::from_ne_bytes([record[0], record[1], record[2], record[3]]) {
        PERF_RECORD_SAMPLE => sample(&mut body, layout).map(Record::Sample),
        PERF_RECORD_COMM => named(&mut body),
        PERF_RECORD_MMAP => mapped(&mut body).map(Record::Mapped),
        // The event's number stands first.
        PERF_RECORD_LOST => body.u64().and_then(|_| body.u64()).map(Record::Lost),
        PERF_RECORD_THROTTLE => Some(Record::Throttled),
        _ => Some(Record::Other),
    };
    read.unwrap_or(Record::Damaged)
}

fn sample<'a>(body: &mut Body<'a>, layout: Layout) -> Option<Sample<'a>> {
    let (pid, tid) = (body.u32()?.cast_signed(), body.u32()?.cast_signed());
    let time_ns = body.u64()?;
    let chain = match layout.callers {
        true => {
            let count = usize::try_from(body.u64()?).ok()?;
            body.take(count.checked_mul(8)?)?
        }
        false => &[],
    };
    let size = body.u32()? as usize;
    Some(Sample {
        pid,
        tid,
        time_ns,
        chain,
        event: body.take(size)?,
    })
}

/// Process, task and name; at the end, as in every record that is no sample, process, task and time again
/// (`sample_id_all`).
fn named<'a>(body: &mut Body<'a>) -> Option<Record<'a>> {
    let (pid, tid) = (body.u32()?.cast_signed(), body.u32()?.cast_signed());
    let (rest, time) = body.0.split_last_chunk()?;
    let name = rest.split(|&byte| byte == 0).next()?;
    Some(Record::Named {
        pid,
        tid,
        time_ns: u64::from_ne_bytes(*time),
        name,
    })
}

/// Process, task, address, bytes, offset in the file, and the file.
fn mapped(body: &mut Body<'_>) -> Option<Mapping> {
    let _ = (body.u32()?, body.u32()?);
    let (start, bytes, file_offset) = (body.u64()?, body.u64()?, body.u64()?);
    let file = body.0.split(|&byte| byte == 0).next()?;
    Some(Mapping {
        start,
        end: start.checked_add(bytes)?,
        file_offset,
        file: String::from_utf8_lossy(file).into_owned(),
    })
}

struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_ne_bytes)
    }
}

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
        walk([first, second], self.layout, scratch, visit);
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
