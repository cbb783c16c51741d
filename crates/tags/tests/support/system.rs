#![allow(dead_code, reason = "each test and example uses a part")]
//! System calls on threads of this process, for tests and examples.

use std::io;

/// A thread of this process, as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadId(pub libc::pid_t);

impl ThreadId {
    pub fn current() -> Self {
        // SAFETY: gettid has no arguments.
        Self(unsafe { libc::gettid() })
    }

    /// Sends a signal; a thread that ended is ignored.
    pub fn signal(self, signal: libc::c_int) {
        // SAFETY: tgkill reads no memory of the caller, and only this process can be its target.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.0, signal) };
    }
}

/// Calls `handler` upon a signal. Interrupted system calls are restarted.
///
/// # Safety
/// The handler calls async-signal-safe functions only.
pub unsafe fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: zeroed is a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is initialised; the caller answers for the handler.
    let result = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert_eq!(result, 0, "sigaction: {}", io::Error::last_os_error());
}

/// Lets the calling thread run on one CPU only, or on all again.
pub fn run_on(cpu: Option<u32>) {
    let cpus = match cpu {
        Some(cpu) => cpu..cpu + 1,
        None => 0..libc::CPU_SETSIZE as u32,
    };
    // SAFETY: zeroed is a valid cpu_set_t: an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        // SAFETY: the number is below CPU_SETSIZE, the set is initialised.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // SAFETY: `set` is initialised and has the size that is given. A CPU that is offline is an error that changes nothing.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}
