//! A counter for each task, in memory that parent and tasks share.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes from one counter to the next: two cache lines of the largest known size, for processors that fetch pairs of them.
const STRIDE: usize = 256;

pub(super) struct Counters {
    file: File,
    start: NonNull<u8>,
    count: usize,
}

// SAFETY: the mapping belongs to this value, and is only ever accessed as atomic numbers.
unsafe impl Sync for Counters {}

impl Counters {
    /// All 0. Children inherit the descriptor.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let file: File = memfd_create("nearfar-scale", MemfdFlags::empty())?.into();
        ftruncate(&file, (count * STRIDE) as u64)?;
        Self::map(file, count)
    }

    /// Those that the parent has as this descriptor.
    pub(super) fn inherited(descriptor: i32, count: usize) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(path)?;
        match file.metadata()?.len() == (count * STRIDE) as u64 {
            true => Self::map(file, count),
            false => Err(io::Error::other("the counters have another size")),
        }
    }

    fn map(file: File, count: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = count * STRIDE;
        // SAFETY: a new mapping where the kernel likes; nothing that exists is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, start, count })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub(super) fn of(&self, task: usize) -> Option<&AtomicU64> {
        (task < self.count).then(|| {
            let place = self.start.as_ptr().wrapping_add(task * STRIDE);
            // SAFETY: within the mapping, aligned, only ever accessed atomically, and mapped as long as `self` is borrowed.
            unsafe { AtomicU64::from_ptr(place.cast()) }
        })
    }

    pub(super) fn read(&self) -> Vec<u64> {
        let all = (0..self.count).filter_map(|task| self.of(task));
        all.map(|it| it.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; what `of` gave out borrows `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * STRIDE) };
    }
}
