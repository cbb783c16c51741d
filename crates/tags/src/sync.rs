//! The primitives of every protocol here. Models replace this module by loom's: they include a protocol's file with `#[path]` and
//! have a `crate::sync` of their own, so the file that is modelled is the one that runs.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use crate::event::Event;

/// Orders a put before what follows. Each put ends with an atomic read-modify-write, be it that of a lock, which is a full barrier on
/// x86 already.
#[inline(always)]
pub(crate) fn fence_after_put() {
    if cfg!(all(target_arch = "x86_64", not(miri))) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Microseconds of the monotonic clock. Without an initializer that a signal handler or a child of fork could wait for.
pub(crate) fn now_us() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to `now`, which outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// A number of this thread, the lowest ones first.
pub(crate) fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
