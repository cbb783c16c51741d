//! The primitives of every protocol here. Models replace this module by loom's: they include a protocol's file with `#[path]` and
//! have a `crate::sync` of their own, so the file that is modelled is the one that runs.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

/// Nothing that panics while a lock is held leaves what it protects half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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

const CLEAR: u32 = 0;
const ASLEEP: u32 = 1;
const SET: u32 = 2;

/// What a waiting thread sleeps on: set by any thread, waited for and cleared by one.
///
/// It is not `std::thread::park`: the caller's own code may use the thread's only token, and a wait here must neither consume nor
/// leave one.
#[derive(Debug, Default)]
pub(crate) struct Event(AtomicU32);

impl Event {
    /// What was written before is seen by the thread that waits.
    pub(crate) fn set(&self) {
        if self.0.swap(SET, Ordering::AcqRel) == ASLEEP {
            futex_wake(&self.0);
        }
    }

    /// Waits until the event is set, and clears it. False at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        loop {
            if self.is_set() {
                return true;
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                // Not asleep any more, or `set` would make a system call for nothing.
                let _ = self.change(ASLEEP, CLEAR);
                return self.is_set();
            }
            if self.change(CLEAR, ASLEEP) != Err(SET) {
                futex_wait(&self.0, ASLEEP, left);
            }
        }
    }

    /// Whether it was set; clears it.
    pub(crate) fn is_set(&self) -> bool {
        self.change(SET, CLEAR).is_ok()
    }

    fn change(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// Sleeps while `word` is `value`: until a wake, a signal, for no reason, or for `timeout`.
fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| libc::timespec {
        // A time too long for the kernel's clock ends early: the caller looks at the clock.
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is a borrowed, aligned 32-bit integer, `timeout` null or a timespec that lives until the call returns; the kernel
    // only reads both. Every result (woken, changed before, signal, timeout) means the same to the caller: look again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout);
    }
}

/// Ends the sleep of one thread that sleeps on `word`.
fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel takes the address as a key and does not follow it, so it may even be freed meanwhile.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1);
    }
}
