// SPDX-License-Identifier: GPL-2.0-or-later
//! Functions of the C library as QEMU calls them, in simulated time. The plugin's file is also preloaded (ld.so(8),
//! `LD_PRELOAD`), so these are found before the library's own; loading it twice gives one copy.
//!
//! | function | in simulated time |
//! |---|---|
//! | `clock_gettime` | the monotonic clock shows a vCPU's local time to its thread, the machine's time to others |
//! | `ppoll` | of the main loop: its timeout is in simulated time |
//! | `pthread_cond_wait`, `_signal`, `_broadcast` | who waits, and who wakes whom at which local time |
//! | `g_free` (GLib) | while a reset is on its way nothing is freed, see [`keep_memory`] |
//! | `write` | a vCPU's notice to the main loop, which goes on before the vCPU does |
//!
//! Without a plugin, and while the gate is closed, they do what the library's do. One does more then: a vCPU leaves guest code by
//! `siglongjmp` (`__longjmp_chk`), at `pause` as well, and lets other threads run (time.rs, `leaves_guest_code`).

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use libc::{
    clockid_t, nfds_t, pollfd, pthread_cond_t, pthread_mutex_t, sigset_t, ssize_t, timespec,
};

use crate::plugin;
use crate::time::Waited;

/// More descriptors than QEMU's main loop has.
const MOST_FDS: usize = 1024;
const NS: u64 = 1_000_000_000;

/// The C library's own functions.
mod original {
    use super::*;

    macro_rules! originals {
        ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
            $(pub(super) fn $name() -> unsafe extern "C" fn($($argument),*) -> $result {
                static FOUND: AtomicUsize = AtomicUsize::new(0);
                if FOUND.load(Relaxed) == 0 {
                    FOUND.store(next(concat!(stringify!($name), "\0")), Relaxed);
                }
                // SAFETY: the C library declares its function of this name with this type.
                unsafe { mem::transmute(FOUND.load(Relaxed)) }
            })*
        };
    }

    originals! {
        clock_gettime: fn(clockid_t, *mut timespec) -> c_int;
        ppoll: fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
        pthread_cond_wait: fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
        pthread_cond_signal: fn(*mut pthread_cond_t) -> c_int;
        pthread_cond_broadcast: fn(*mut pthread_cond_t) -> c_int;
        g_free: fn(*mut c_void) -> ();
        write: fn(c_int, *const c_void, usize) -> ssize_t;
        __longjmp_chk: fn(*mut c_void, c_int) -> !;
    }
}

/// The next function of a name after this file's. Conditions have two versions on x86-64; QEMU is linked to the newer one.
fn next(name: &str) -> usize {
    let symbol = name.as_ptr().cast();
    // SAFETY: looks names up among the process' libraries.
    let found = unsafe {
        let newer = libc::dlvsym(libc::RTLD_NEXT, symbol, c"GLIBC_2.3.2".as_ptr());
        match newer.is_null() {
            true => libc::dlsym(libc::RTLD_NEXT, symbol),
            false => newer,
        }
    };
    assert!(!found.is_null(), "{name:?} is not in the C library");
    found as usize
}

/// Whether QEMU calls the functions of this file.
pub fn is_effective() -> bool {
    // SAFETY: looks a name up among the process' libraries.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"clock_gettime".as_ptr()) };
    std::ptr::eq(found, clock_gettime as *const c_void)
}

/// The host's monotonic clock.
pub(super) fn host_ns() -> u64 {
    host_clock_ns(libc::CLOCK_MONOTONIC)
}

/// The same without corrections of its frequency.
pub(super) fn host_raw_ns() -> u64 {
    host_clock_ns(libc::CLOCK_MONOTONIC_RAW)
}

fn host_clock_ns(clock: clockid_t) -> u64 {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The C library reads the time stamp counter for it, which faults in a vCPU's thread.
    // SAFETY: the pointer is to the value above; the monotonic clock exists on every Linux.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    time.tv_sec as u64 * NS + time.tv_nsec as u64
}

/// What the time stamp counter shows to this thread.
pub(super) fn ticks() -> u64 {
    plugin::time().map_or(0, |time| time.ticks())
}

/// Whether this is QEMU's first thread, which runs its main loop.
pub(super) fn is_main_thread() -> bool {
    thread_local! {
        static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
    }
    IS_MAIN.get().unwrap_or_else(|| {
        // SAFETY: both only read numbers.
        let is_main = unsafe { libc::gettid() == libc::getpid() };
        IS_MAIN.set(Some(is_main));
        is_main
    })
}

/// Makes an event descriptor readable.
pub(super) fn signal(event: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the bytes are eight, as an event descriptor takes. If its counter is full, it is readable already.
    unsafe { original::write()(event, one.as_ptr().cast(), one.len()) };
}

static KEEPS_MEMORY: AtomicBool = AtomicBool::new(false);

/// From a request for a reset until it has come, QEMU frees nothing by `g_free`. A reset frees the plugin's callbacks while no vCPU
/// executes (`plugin_reset_destroy__locked` in plugins/core.c), but one that becomes idle or busy just then may be about to call
/// them (`qemu_wait_io_event` in system/cpus.c), and QEMU 10.0.2 died of that once in some thousand guests on a busy host. What else
/// is not freed in these moments stays for good: some hundred bytes.
pub fn keep_memory(keeps: bool) {
    KEEPS_MEMORY.store(keeps, Relaxed);
}

/// # Safety
/// As for GLib's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn g_free(memory: *mut c_void) {
    if !KEEPS_MEMORY.load(Relaxed) {
        // SAFETY: with the caller's argument.
        unsafe { original::g_free()(memory) }
    }
}

/// # Safety
/// As for clock_gettime(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, shown: *mut timespec) -> c_int {
    match plugin::time() {
        Some(time) if matches!(clock, libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_RAW) => {
            let ns = time.monotonic_ns();
            // SAFETY: the caller passes a place for the time.
            unsafe {
                (*shown).tv_sec = (ns / NS) as libc::time_t;
                (*shown).tv_nsec = (ns % NS) as libc::c_long;
            }
            0
        }
        // SAFETY: with the caller's arguments.
        _ => unsafe { original::clock_gettime()(clock, shown) },
    }
}

/// # Safety
/// As for ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let poll = original::ppoll();
    let all = count as usize;
    let time = plugin::time().filter(|_| is_main_thread() && all < MOST_FDS);
    let Some(time) = time else {
        // SAFETY: with the caller's arguments.
        return unsafe { poll(fds, count, timeout, mask) };
    };
    // SAFETY: the caller passes so many descriptors, and a time or null.
    let (fds, timeout) = unsafe {
        let fds = match all {
            0 => &mut [],
            _ => std::slice::from_raw_parts_mut(fds, all),
        };
        (fds, timeout.as_ref())
    };
    let timeout_ns = timeout.map(|it| it.tv_sec as u64 * NS + it.tv_nsec as u64);
    let mut polled = fds.to_vec();
    let waited = time.main_loop_waits(timeout_ns, |event, host_ns| {
        polled.truncate(all);
        polled.push(pollfd {
            fd: event,
            events: libc::POLLIN,
            revents: 0,
        });
        let host = host_ns.map(|ns| timespec {
            tv_sec: (ns / NS) as libc::time_t,
            tv_nsec: (ns % NS) as libc::c_long,
        });
        let host = host.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the vector has one descriptor more than the caller's; the time lives until the call returns.
        let ready = unsafe { poll(polled.as_mut_ptr(), count + 1, host, mask) };
        let is_own = polled[all].revents != 0;
        if is_own {
            let mut counter = 0u64;
            // SAFETY: an event descriptor is read as eight bytes.
            unsafe { libc::read(event, (&raw mut counter).cast(), 8) };
        }
        match ready - c_int::from(is_own && ready > 0) {
            0 => Waited::Nothing,
            others => Waited::Events(others),
        }
    });
    for (fd, polled) in fds.iter_mut().zip(&polled) {
        fd.revents = polled.revents;
    }
    match waited {
        Waited::Events(ready) => ready,
        Waited::Nothing => 0,
    }
}

/// # Safety
/// As for pthread_cond_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_wait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
) -> c_int {
    if let Some(time) = plugin::time() {
        time.waits_for(condition as usize);
    }
    // SAFETY: with the caller's arguments.
    unsafe { original::pthread_cond_wait()(condition, mutex) }
}

/// # Safety
/// As for pthread_cond_signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_signal(condition: *mut pthread_cond_t) -> c_int {
    if let Some(time) = plugin::time() {
        time.wakes(condition as usize, true);
    }
    // SAFETY: with the caller's arguments.
    unsafe { original::pthread_cond_signal()(condition) }
}

/// # Safety
/// As for pthread_cond_broadcast(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_broadcast(condition: *mut pthread_cond_t) -> c_int {
    if let Some(time) = plugin::time() {
        time.wakes(condition as usize, false);
    }
    // SAFETY: with the caller's arguments.
    unsafe { original::pthread_cond_broadcast()(condition) }
}

/// # Safety
/// As for write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: usize) -> ssize_t {
    // SAFETY: with the caller's arguments.
    let written = unsafe { original::write()(fd, bytes, count) };
    // An event descriptor takes eight bytes.
    if count == 8
        && let Some(time) = plugin::time()
    {
        time.has_notified();
    }
    written
}

/// # Safety
/// As for siglongjmp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __longjmp_chk(environment: *mut c_void, value: c_int) -> ! {
    if let Some(time) = plugin::time() {
        time.leaves_guest_code();
    }
    // SAFETY: with the caller's arguments; nothing here is dropped.
    unsafe { original::__longjmp_chk()(environment, value) }
}
