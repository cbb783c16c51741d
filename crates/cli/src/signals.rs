//! Ctrl-C: a flag that long work looks at, so that it can leave the system as it was.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use nearfar_lab::guest::SAME_REQUEST;
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level;

/// What ends work that can be ended.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// No signal has come.
const NONE: u64 = u64::MAX;

/// A flag that SIGINT, SIGTERM and SIGHUP set. A second one, [`SAME_REQUEST`] after the first or later, ends the process at
/// once: the journal then still holds what has to be undone.
pub fn cancel_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    // Registering fails only for signals that cannot be caught, which these are not; without it the default action is still
    // a safe one.
    let _ = cancel_on(&ENDING, &flag);
    flag
}

/// Sets the flag at the first of these signals. A later one ends the process with exit code 128 and its number.
///
/// # Errors
/// When the system refuses a handler.
pub fn cancel_on(signals: &[i32], flag: &Arc<AtomicBool>) -> io::Result<()> {
    let (begun, first_ms) = (Instant::now(), Arc::new(AtomicU64::new(NONE)));
    for &signal in signals {
        let (flag, first_ms) = (Arc::clone(flag), Arc::clone(&first_ms));
        let handler = move || {
            let now_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(NONE - 1);
            match first_ms.compare_exchange(NONE, now_ms, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => flag.store(true, Ordering::SeqCst),
                Err(first_ms) if is_repetition(first_ms, now_ms) => {}
                Err(_) => low_level::exit(128 + signal),
            }
        };
        // SAFETY: the handler reads a clock (clock_gettime), changes atomics and may call _exit: all are safe in a signal
        // handler (signal-safety(7)). It neither allocates nor panics.
        unsafe { low_level::register(signal, handler) }?;
    }
    Ok(())
}

fn is_repetition(first_ms: u64, now_ms: u64) -> bool {
    u128::from(now_ms.saturating_sub(first_ms)) < SAME_REQUEST.as_millis()
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

/// A pipe that has something to read after one of these signals: a wait for it ends at once.
pub fn pipe_of(signals: &[i32]) -> io::Result<OwnedFd> {
    let (ended, end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    for &signal in signals {
        low_level::pipe::register(signal, end.try_clone()?)?;
    }
    Ok(ended)
}

/// Such a pipe instead of [`cancel_flag`].
pub fn cancel_pipe() -> io::Result<OwnedFd> {
    cancel_on(&ENDING, &Arc::default())?;
    pipe_of(&ENDING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_soon_after_the_first_is_the_same_request() {
        let same_ms = SAME_REQUEST.as_millis() as u64;
        assert!(is_repetition(1000, 1000) && is_repetition(1000, 999 + same_ms));
        assert!(!is_repetition(1000, 1000 + same_ms));
    }
}
