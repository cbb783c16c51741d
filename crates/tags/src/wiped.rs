//! Memory that a child of fork finds empty (MADV_WIPEONFORK, Linux 4.14).

use std::ptr::{self, NonNull};

/// Zeros, at an address of a page of their own, which take memory once they are written. `None` where the kernel cannot, and under Miri.
pub(crate) fn map(bytes: usize) -> Option<NonNull<u8>> {
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
/// `map` mapped these bytes, and nothing refers to them any more.
pub(crate) unsafe fn unmap(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller says.
    unsafe { libc::munmap(memory.as_ptr().cast(), bytes) };
}
