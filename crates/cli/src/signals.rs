//! Ctrl-C: a flag that long work looks at, so that it can leave the system as it was.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A flag that SIGINT, SIGTERM and SIGHUP set. A second signal of the same kind ends the process at once: the journal
/// then still holds what has to be undone.
pub fn cancel_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal finds the flag unset and only sets it. Registering fails only for signals
        // that cannot be caught, which these are not; without it the default action is still a safe one.
        let _ = signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            Arc::clone(&flag),
        );
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}

/// A flag that any of these signals sets, each time it comes, and that does nothing else.
pub fn flag_of(signals: &[i32]) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        // As above: fails only for signals that cannot be caught.
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}

/// The same as a pipe, which has something to read after a signal: a wait for it ends at once.
pub fn cancel_pipe() -> io::Result<OwnedFd> {
    let (ended, end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
        signal_hook::low_level::pipe::register(signal, end.try_clone()?)?;
    }
    Ok(ended)
}
