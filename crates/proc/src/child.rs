//! Child processes that do not outlive the process that starts them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};

use crate::error_text;

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

/// What a program prints.
///
/// # Errors
/// It cannot be run, or fails: with what it says.
pub fn output(program: &str, words: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(words).output();
    let cannot_run = |error: io::Error| {
        let reason = error_text(&error);
        io::Error::new(error.kind(), format!("cannot run {program}: {reason}"))
    };
    let output = output.map_err(cannot_run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words = words.join(" ");
    Err(io::Error::other(format!(
        "{program} {words}: {}",
        said.trim()
    )))
}

/// Waits until a child has ended. It gets SIGTERM, once, when `cancel` is set meanwhile: it has to undo what it changed.
///
/// # Errors
/// The system cannot wait for it.
pub fn wait_or_end(child: &mut Child, cancel: &AtomicBool) -> io::Result<ExitStatus> {
    const LOOK: Duration = Duration::from_millis(20);
    let mut is_ended = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if cancel.load(Ordering::SeqCst) && !is_ended {
            is_ended = true;
            // It may have ended since.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        sleep(LOOK);
    }
}
