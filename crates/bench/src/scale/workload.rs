//! What a task does again and again. Each does what a test of will-it-scale does, which its description names.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock, ftruncate, open};
use rustix::mm::{
    Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munlock, munmap,
};
use serde::{Deserialize, Serialize};

/// Memory that [`Workload::PageAlloc`] takes and gives back at a time: more than the kernel keeps for each CPU.
const ALLOC_BYTES: usize = 2 << 20;
/// Memory that [`Workload::Lru`] locks at a time: a sixteenth of what a user may lock by default (RLIMIT_MEMLOCK).
const LOCKED_BYTES: usize = 512 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Workload {
    /// Writes a page of a private file mapping, gives it back, reads the file's page: tlb_flush1.
    TlbFlush,
    /// Writes each page of a new anonymous mapping: page_fault1.
    PageFault,
    /// Writes each page of a new private file mapping: page_fault2.
    PageFaultFile,
    /// Takes and releases a write lock of a file: lock1.
    FileLock,
    /// Maps and unmaps anonymous memory: mmap1.
    Mmap,
    /// Fills 2 MiB of anonymous memory in one call and gives it back in another.
    PageAlloc,
    /// Locks 512 KiB into memory in one call and unlocks it in another, which moves each page between lists of its node
    /// (`mlock_folio` and `munlock_folio` in mm/mlock.c).
    Lru,
}

impl Workload {
    /// In the order of the variants, and as serde has them.
    pub(super) const NAMES: [&str; 7] = [
        "tlb_flush",
        "page_fault",
        "page_fault_file",
        "file_lock",
        "mmap",
        "page_alloc",
        "lru",
    ];

    pub(super) fn of(name: &str) -> Option<Self> {
        serde_json::from_value(name.into()).ok()
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether a task needs a file.
    pub(super) fn has_file(self) -> bool {
        matches!(self, Self::TlbFlush | Self::PageFaultFile | Self::FileLock)
    }

    /// Bytes that a task holds at most, of a mapping of this size.
    pub(super) fn resident(self, bytes: u64) -> u64 {
        match self {
            Self::FileLock | Self::Mmap => 0,
            Self::PageAlloc => ALLOC_BYTES as u64,
            Self::Lru => LOCKED_BYTES as u64,
            // The file's pages stay in the page cache.
            Self::TlbFlush | Self::PageFault => bytes,
            Self::PageFaultFile => 2 * bytes,
        }
    }

    /// Makes what a task needs. A file's pages are in memory then, as they are once a task has been through it.
    pub(super) fn prepare(self, bytes: usize, directory: &Path) -> io::Result<PreparedWorkload> {
        let file = match self.has_file() {
            false => None,
            true => {
                let file = unnamed_file(directory, bytes)?;
                if self != Self::FileLock {
                    let mapped = Mapped::private(&file, bytes)?;
                    for offset in (0..bytes).step_by(rustix::param::page_size()) {
                        mapped.read(offset);
                    }
                }
                Some(file)
            }
        };
        let workload = self;
        Ok(PreparedWorkload {
            workload,
            bytes,
            file,
        })
    }
}

/// A workload that can begin.
pub(super) struct PreparedWorkload {
    workload: Workload,
    bytes: usize,
    file: Option<File>,
}

impl PreparedWorkload {
    /// Works until the process ends. Counts operations: pages, or calls that lock or map.
    pub(super) fn run(self, counter: &AtomicU64) -> io::Result<Infallible> {
        let bytes = self.bytes;
        let file = || {
            self.file
                .as_ref()
                .ok_or(io::Error::from(io::ErrorKind::NotFound))
        };
        let mut count = Count { counter, count: 0 };
        match self.workload {
            Workload::TlbFlush => tlb_flush(file()?, bytes, &mut count),
            Workload::PageFault => loop {
                write_pages(&Mapped::anonymous(bytes)?, &mut count);
            },
            Workload::PageFaultFile => {
                let file = file()?;
                loop {
                    write_pages(&Mapped::private(file, bytes)?, &mut count);
                }
            }
            Workload::FileLock => {
                let file = file()?;
                loop {
                    fcntl_lock(file, FlockOperation::LockExclusive)?;
                    fcntl_lock(file, FlockOperation::Unlock)?;
                    count.add(2);
                }
            }
            Workload::Mmap => loop {
                drop(Mapped::anonymous(bytes)?);
                count.add(1);
            },
            Workload::PageAlloc => page_alloc(&mut count),
            Workload::Lru => lru(&mut count),
        }
    }
}

/// A counter that only its task writes.
struct Count<'a> {
    counter: &'a AtomicU64,
    count: u64,
}

impl Count<'_> {
    fn add(&mut self, operations: u64) {
        self.count += operations;
        self.counter.store(self.count, Ordering::Relaxed);
    }
}

fn tlb_flush(file: &File, bytes: usize, count: &mut Count<'_>) -> io::Result<Infallible> {
    let page = rustix::param::page_size();
    loop {
        let mapped = Mapped::private(file, bytes)?;
        for offset in (0..bytes).step_by(page) {
            mapped.write(offset, 1);
            mapped.give_back(offset, page)?;
            if mapped.read(offset) != 0 {
                return Err(io::Error::other(
                    "a page that was given back kept its content",
                ));
            }
            count.add(1);
        }
    }
}

fn page_alloc(count: &mut Count<'_>) -> io::Result<Infallible> {
    let mapped = Mapped::anonymous(ALLOC_BYTES)?;
    // Pages one by one: a huge page has a lock of its own less often.
    mapped.advise(0, ALLOC_BYTES, Advice::LinuxNoHugepage)?;
    let pages = (ALLOC_BYTES / rustix::param::page_size()) as u64;
    loop {
        mapped.advise(0, ALLOC_BYTES, Advice::LinuxPopulateWrite)?;
        mapped.give_back(0, ALLOC_BYTES)?;
        count.add(pages);
    }
}

fn lru(count: &mut Count<'_>) -> io::Result<Infallible> {
    let mapped = Mapped::anonymous(LOCKED_BYTES)?;
    mapped.advise(0, LOCKED_BYTES, Advice::LinuxNoHugepage)?;
    let pages = (LOCKED_BYTES / rustix::param::page_size()) as u64;
    loop {
        mapped.lock_and_unlock()?;
        count.add(pages);
    }
}

fn write_pages(mapped: &Mapped, count: &mut Count<'_>) {
    for offset in (0..mapped.bytes).step_by(rustix::param::page_size()) {
        mapped.write(offset, 1);
        count.add(1);
    }
}

/// A file that no directory has.
///
/// # Errors
/// Where the file system has none (O_TMPFILE), or this user may not write there.
pub(super) fn unnamed_file(directory: &Path, bytes: usize) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
    let file = open(directory, flags, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&file, bytes as u64)?;
    Ok(file.into())
}

/// Memory that is unmapped when dropped.
struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapped {
    fn anonymous(bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping where the kernel likes; nothing that exists is replaced.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        Self::new(start, bytes)
    }

    fn private(file: &File, bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping where the kernel likes; nothing that exists is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) }?;
        Self::new(start, bytes)
    }

    fn new(start: *mut std::ffi::c_void, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    fn write(&self, offset: usize, value: u8) {
        assert!(offset < self.bytes);
        // SAFETY: within the mapping, which is writable and belongs to this value; volatile, as no reference to it exists.
        unsafe { self.start.add(offset).write_volatile(value) }
    }

    fn read(&self, offset: usize) -> u8 {
        assert!(offset < self.bytes);
        // SAFETY: as in `write`.
        unsafe { self.start.add(offset).read_volatile() }
    }

    /// The content is that of the file again, or 0.
    fn give_back(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.advise(offset, bytes, Advice::LinuxDontNeed)
    }

    fn lock_and_unlock(&self) -> io::Result<()> {
        let start = self.start.as_ptr().cast();
        // SAFETY: exactly this value's mapping; locking changes no content.
        unsafe {
            mlock(start, self.bytes)?;
            munlock(start, self.bytes)?;
        }
        Ok(())
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> io::Result<()> {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: a part of this value's mapping, to whose content no reference exists.
        unsafe {
            madvise(
                self.start.as_ptr().wrapping_add(offset).cast(),
                bytes,
                advice,
            )
        }?;
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, to which no reference exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
