//! Child processes that do not outlive the process that starts them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Lets the kernel send this signal to what `command` starts, when this process ends first.
///
/// The kernel sends it when the *thread* that started the process ends (prctl(2), `PR_SET_PDEATHSIG`): start it from one that
/// lives as long as the child has to.
pub fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = getpid();
    // SAFETY: between fork and exec only system calls are made that are async-signal-safe (signal-safety(7)), and nothing is
    // allocated.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            // It may have ended before that call, and then there is no signal.
            match getppid() == Some(parent) {
                true => Ok(()),
                false => Err(io::ErrorKind::Interrupted.into()),
            }
        });
    }
}
