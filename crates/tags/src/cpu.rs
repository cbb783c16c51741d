//! The CPUs of this machine, by number.

/// The CPU that runs this thread; it may run on another one when this returns.
#[inline]
pub(crate) fn current() -> usize {
    // Miri has no CPUs: each thread is on one of its own.
    if cfg!(miri) {
        return crate::sync::thread_number();
    }
    // SAFETY: sched_getcpu has no arguments and writes no memory.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// CPUs that may come online, 1 where the system does not say.
pub(crate) fn possible() -> usize {
    configured(libc::_SC_NPROCESSORS_CONF)
}

/// CPUs that are online, 1 where the system does not say.
pub(crate) fn online() -> usize {
    configured(libc::_SC_NPROCESSORS_ONLN)
}

fn configured(name: libc::c_int) -> usize {
    // SAFETY: sysconf takes any name; an unknown one returns -1.
    let count = unsafe { libc::sysconf(name) };
    usize::try_from(count).unwrap_or(0).max(1)
}
