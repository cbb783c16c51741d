//! Whether this process is a forked child of the one that made an allocator.
//!
//! After a fork both processes would hand out the same tags, and locks may be held by threads that the child does not have. The kernel
//! clears a page of this process in a forked child (MADV_WIPEONFORK, Linux 4.14). Before that, and under Miri, a child is not noticed.
//! A child that shares its parent's memory (`vfork`, `posix_spawn`) is no copy and is not affected.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that made an allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    page: &'static AtomicU32,
    number: u32,
}

impl Process {
    /// This process.
    pub(crate) fn current() -> Self {
        static PAGE: OnceLock<&AtomicU32> = OnceLock::new();
        /// Numbers that were given to this process or to those it is forked from.
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let page = *PAGE.get_or_init(wiped_page);
        let mut number = page.load(Ordering::Relaxed);
        if number == 0 {
            let new = NUMBERS.fetch_add(1, Ordering::Relaxed);
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            number = match page.compare_exchange(0, new, order.0, order.1) {
                Ok(_) => new,
                Err(other) => other,
            };
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

/// A number in a page that is 0 in a forked child; in ordinary memory where the kernel cannot do that.
fn wiped_page() -> &'static AtomicU32 {
    static UNWIPED: AtomicU32 = AtomicU32::new(0);
    if cfg!(miri) {
        return &UNWIPED;
    }
    let size = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping wherever the kernel likes; nothing else refers to it.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return &UNWIPED;
    }
    // SAFETY: the advice is for the mapping made above, whose address nothing else has.
    if unsafe { libc::madvise(page, size, libc::MADV_WIPEONFORK) } != 0 {
        return &UNWIPED;
    }
    // SAFETY: the mapping is aligned to a page, filled with zeros, a valid `AtomicU32`, and never unmapped.
    unsafe { &*page.cast::<AtomicU32>() }
}
