//! Whether this process is a forked child of the one that made an allocator, and memory that such a child finds empty.
//!
//! After a fork both processes would hand out the same tags, and locks may be held by threads that the child does not have. The kernel
//! clears a page of this process in a forked child (MADV_WIPEONFORK, Linux 4.14). Before that, and under Miri, a child is not noticed.
//! A child that shares its parent's memory (`vfork`, `posix_spawn`) is no copy and is not affected.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The process that made an allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    page: &'static AtomicU32,
    number: u32,
}

impl Process {
    /// This process.
    pub(crate) fn current() -> Self {
        /// Numbers that were given to this process or to those it is forked from.
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let page = page();
        let mut number = page.load(Ordering::Relaxed);
        if number == 0 {
            let new = NUMBERS.fetch_add(1, Ordering::Relaxed);
            let exchanged = page.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
            number = exchanged.map_or_else(|other| other, |_| new);
        }
        Self { page, number }
    }

    /// Whether the process that runs is another one.
    #[inline]
    pub(crate) fn has_forked(&self) -> bool {
        self.page.load(Ordering::Relaxed) != self.number
    }

    /// # Panics
    /// In a forked child.
    #[inline]
    pub(crate) fn assert(&self) {
        if self.has_forked() {
            panic_in_child();
        }
    }
}

#[cold]
fn panic_in_child() -> ! {
    panic!("these tags are its parent's: a forked child makes an allocator of its own");
}

/// A number that is 0 in a forked child; an ordinary one where the kernel cannot do that.
///
/// Several threads may map a page for it at the same time, and the first is kept. A lock or a `OnceLock` would be held for ever in a
/// child that is forked meanwhile by another thread; such a child finds no page here, or one that is wiped, and in both cases its own.
fn page() -> &'static AtomicU32 {
    static UNWIPED: AtomicU32 = AtomicU32::new(0);
    static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let mapped = map_wiped(size_of::<AtomicU32>());
        let new = match mapped {
            Some(mapped) => mapped.as_ptr().cast(),
            None => ptr::from_ref(&UNWIPED).cast_mut(),
        };
        let order = (Ordering::AcqRel, Ordering::Acquire);
        page = match PAGE.compare_exchange(ptr::null_mut(), new, order.0, order.1) {
            Ok(_) => new,
            Err(other) => {
                if let Some(mapped) = mapped {
                    // SAFETY: mapped above; no reference to it was made.
                    unsafe { unmap(mapped, size_of::<AtomicU32>()) };
                }
                other
            }
        };
    }
    // SAFETY: `UNWIPED`, or a mapping that is aligned to a page, filled with zeros, a valid `AtomicU32`, and never unmapped once it is in
    // `PAGE`.
    unsafe { &*page }
}

/// Zeros, at an address of a page of their own, which take memory once they are written. `None` where the kernel cannot, and under Miri.
pub(crate) fn map_wiped(bytes: usize) -> Option<NonNull<u8>> {
    if cfg!(miri) {
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel chooses; no memory of the process is changed.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let mapped = NonNull::new(memory.cast())?;
    // SAFETY: the advice is for the mapping made above, whose address nothing else has.
    if unsafe { libc::madvise(memory, bytes, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; no reference to it was made.
        unsafe { unmap(mapped, bytes) };
        return None;
    }
    Some(mapped)
}

/// # Safety
/// `map_wiped` mapped these bytes, and nothing refers to them any more.
pub(crate) unsafe fn unmap(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller says.
    unsafe { libc::munmap(memory.as_ptr().cast(), bytes) };
}
