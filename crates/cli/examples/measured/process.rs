//! Processes that run to their end, and what they cost.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What one process cost, with the children that it waited for.
#[derive(Clone, Copy)]
pub struct Cost {
    pub wall: Duration,
    pub cpu: Duration,
    pub peak_kib: i64,
}

/// Runs a command to its end; one that fails is an error.
pub fn run(command: &mut Command) -> io::Result<Cost> {
    let start = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers lead to live variables; the child is ours and nothing else waits for it.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
    let wall = start.elapsed();
    if waited < 0 || !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        return Err(io::Error::other(format!("{command:?} failed")));
    }
    let seconds = |time: libc::timeval| {
        Duration::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64)
    };
    Ok(Cost {
        wall,
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        peak_kib: usage.ru_maxrss,
    })
}
