//! Processes that end with a lease.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nearfar_proc::{TaskId, tasks};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::UndoStatus;

/// The variable that holds the token.
const VARIABLE: &str = "NEARFAR_RESOURCE";
/// How long a killed process may take to end: one in an uninterruptible wait does not.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Passes over /proc: between two of them what is left can start more.
const MAX_PASSES: u32 = 20;

/// A process of a lease. Dropping this leaves it running.
#[derive(Debug)]
pub struct Process {
    /// Its pipes.
    pub child: Child,
    task: Option<TaskId>,
}

impl Process {
    /// Its number and start time; `None` where it had ended before that could be read.
    pub(super) fn task(&self) -> Option<TaskId> {
        self.task
    }

    /// Writes a line to its standard input and reads one of its standard output. Both have to be pipes.
    ///
    /// # Errors
    /// When one is not, or the process has ended.
    pub fn ask(&mut self, line: &str) -> io::Result<String> {
        let none = || io::Error::other("the process has no pipes");
        let (input, output) = (&mut self.child.stdin, &mut self.child.stdout);
        let output = output.as_mut().ok_or_else(none)?;
        writeln!(input.as_mut().ok_or_else(none)?, "{line}")?;
        let (mut answer, mut byte) = (Vec::new(), [0]);
        // Unbuffered: what follows the line is the next answer's.
        while output.read(&mut byte)? == 1 && byte != *b"\n" {
            answer.push(byte[0]);
        }
        match byte {
            [b'\n'] => Ok(String::from_utf8_lossy(&answer).into_owned()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

pub(super) fn start(mut command: Command, token: &str) -> io::Result<Process> {
    command.env(VARIABLE, token);
    let owner = rustix::process::getpid();
    // SAFETY: between fork and exec only system calls are made that are async-signal-safe (signal-safety(7)).
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have ended before that call, and then there is no signal.
            match rustix::process::getppid() == Some(owner) {
                true => Ok(()),
                false => Err(io::ErrorKind::Interrupted.into()),
            }
        });
    }
    let child = command.spawn()?;
    let task = tasks::stat(child.id() as i32).ok().map(|stat| stat.id);
    Ok(Process { child, task })
}

/// Ends the process that was started then, and all that have the token.
pub(super) fn end(token: &str, started: Option<TaskId>) -> io::Result<UndoStatus> {
    let variable = format!("{VARIABLE}={token}");
    let mut status = UndoStatus::Gone;
    for _ in 0..MAX_PASSES {
        let mut found = Vec::new();
        for pid in tasks::processes()? {
            let is_it = || is_started(pid, started) || has(pid, variable.as_bytes());
            if !is_it() {
                continue;
            }
            let Some(process) = open(pid)? else { continue };
            // Once more, now that the number cannot be given to another process unnoticed.
            if is_it() {
                found.push(process);
            }
        }
        if found.is_empty() {
            return Ok(status);
        }
        status = UndoStatus::Removed;
        for process in &found {
            match pidfd_send_signal(process, Signal::KILL) {
                Err(error) if error != rustix::io::Errno::SRCH => return Err(error.into()),
                _ => {}
            }
        }
        let until = Instant::now() + END_WITHIN;
        for process in &found {
            wait(process, until)?;
        }
    }
    Err(io::Error::other(
        "it starts new processes faster than they can be ended",
    ))
}

fn is_started(pid: i32, started: Option<TaskId>) -> bool {
    let alive =
        |task: TaskId| tasks::stat(pid).is_ok_and(|stat| stat.id == task && !stat.is_ended());
    started.is_some_and(|task| task.tid == pid && alive(task))
}

/// Whether a process has this in its environment; no where that cannot be read, and of one that has ended.
fn has(pid: i32, variable: &[u8]) -> bool {
    let mut environment = Vec::new();
    tasks::open(pid, "environ").is_ok_and(|mut file| file.read_to_end(&mut environment).is_ok())
        && environment
            .split(|&byte| byte == 0)
            .any(|one| one == variable)
}

fn open(pid: i32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid) else {
        return Ok(None);
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn wait(process: &OwnedFd, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let mut poll = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which outlives the call.
    match unsafe { libc::poll(&mut poll, 1, left.as_millis() as libc::c_int) } {
        0 => Err(io::Error::other("it was killed and has not ended")),
        _ => Ok(()),
    }
}
