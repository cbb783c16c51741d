//! Processes that end with a lease.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_proc::{TaskId, tasks};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::outcome::UndoResult;

/// The variable that holds the token.
const VARIABLE: &str = "NEARFAR_RESOURCE";
/// How long a killed process may take to end: one in an uninterruptible wait does not.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer may take: a server that works on a request for longer is treated as stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const CANCEL_CHECK: Duration = Duration::from_millis(50);
/// How long a process may take to begin a program that it executes, where nothing stops it.
const EXEC_WITHIN: Duration = Duration::from_millis(500);
const EXEC_CHECK: Duration = Duration::from_millis(1);
/// How often an environment has to be found empty or cut off.
const READS_OF_INCOMPLETE: u32 = 10;
/// More than most environments have.
const ENVIRONMENT_BYTES: usize = 256 << 10;
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
    /// When one is not, the process has ended or does not answer within a minute, or `cancel` is set.
    pub fn ask(&mut self, line: &str, cancel: &AtomicBool) -> io::Result<String> {
        let pid = self.pid();
        let until = Instant::now() + ANSWER_WITHIN;
        let answer = self.answer(line, cancel, until);
        answer.map_err(|error| io::Error::new(error.kind(), format!("process {pid}: {error}")))
    }

    fn answer(&mut self, line: &str, cancel: &AtomicBool, until: Instant) -> io::Result<String> {
        let none = || io::Error::other("it has no pipes");
        let (input, output) = (&mut self.child.stdin, &mut self.child.stdout);
        let output = output.as_mut().ok_or_else(none)?;
        writeln!(input.as_mut().ok_or_else(none)?, "{line}")?;
        let (mut answer, mut byte) = (Vec::new(), [0]);
        // Unbuffered: what follows the line is the next answer's.
        loop {
            until_readable(output, cancel, until)?;
            match output.read(&mut byte)? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended")),
                _ if byte == *b"\n" => return Ok(String::from_utf8_lossy(&answer).into_owned()),
                _ => answer.push(byte[0]),
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

pub(super) fn start(mut command: Command, token: &str) -> io::Result<Process> {
    command.env(VARIABLE, token);
    nearfar_proc::child::end_with_parent(&mut command, Signal::KILL);
    let child = command.spawn()?;
    let task = tasks::stat(child.id() as i32).ok().map(|stat| stat.id);
    Ok(Process { child, task })
}

/// Ends the process that was started then, and all that have the token.
pub(super) fn end(token: &str, started: Option<TaskId>) -> io::Result<UndoResult> {
    let variable = format!("{VARIABLE}={token}");
    let mut status = UndoResult::Gone;
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
            reap_ended(started)?;
            return Ok(status);
        }
        status = UndoResult::Removed;
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

/// Reaps the process that was started, where it ended by itself.
fn reap_ended(started: Option<TaskId>) -> io::Result<()> {
    let Some(task) = started else { return Ok(()) };
    let is_it = || tasks::stat(task.tid).is_ok_and(|stat| stat.id == task);
    match is_it().then(|| open(task.tid)).transpose()?.flatten() {
        Some(process) if is_it() => reap(&process),
        _ => {}
    }
    Ok(())
}

fn is_started(pid: i32, started: Option<TaskId>) -> bool {
    let alive =
        |task: TaskId| tasks::stat(pid).is_ok_and(|stat| stat.id == task && !stat.is_ended());
    started.is_some_and(|task| task.tid == pid && alive(task))
}

/// Whether a process has this in its environment; no where that cannot be read, and of one that has ended.
///
/// A process that executes a program has none for a moment: that of its new address space is not there yet (`begin_new_exec()`
/// in fs/exec.c, `create_elf_tables()` in fs/binfmt_elf.c), and that of the old one may end within what is read
/// (`environ_read()` in fs/proc/base.c). One that is empty or cut off is therefore read again.
fn has(pid: i32, variable: &[u8]) -> bool {
    let until = Instant::now() + EXEC_WITHIN;
    for _ in 0..READS_OF_INCOMPLETE {
        let environment = read(pid, "environ");
        if environment
            .split(|&byte| byte == 0)
            .any(|one| one == variable)
        {
            return true;
        }
        // A kernel thread has no program, nor has a process that has ended.
        if environment.ends_with(b"\0") || std::fs::read_link(format!("/proc/{pid}/exe")).is_err() {
            return false;
        }
        while read(pid, "cmdline").is_empty() && Instant::now() < until {
            std::thread::sleep(EXEC_CHECK);
        }
    }
    false
}

/// As far as it can be read; in one piece, if possible: between two the address space can change.
fn read(pid: i32, name: &str) -> Vec<u8> {
    let (mut content, mut piece) = (Vec::new(), vec![0; ENVIRONMENT_BYTES]);
    if let Ok(mut file) = tasks::open(pid, name) {
        while let Ok(bytes @ 1..) = file.read(&mut piece) {
            content.extend_from_slice(&piece[..bytes]);
        }
    }
    content
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

/// Waits until there is something to read, in steps: a signal handler that sets `cancel` may run in another thread.
fn until_readable(output: &ChildStdout, cancel: &AtomicBool, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("interrupted before it answered"));
        }
        if poll(output, left.min(CANCEL_CHECK)) == 1 {
            return Ok(());
        }
        if left.is_zero() {
            let limit = ANSWER_WITHIN.as_secs();
            let what = format!("it has not answered within {limit} s");
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
    }
}

/// 1 when there is something to read or the other side has ended, 0 when there is not in time, -1 after a signal.
fn poll(file: &impl AsRawFd, timeout: Duration) -> libc::c_int {
    let mut poll = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which outlives the call.
    unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as libc::c_int) }
}

fn wait(process: &OwnedFd, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    match poll(process, left) {
        0 => Err(io::Error::other("it was killed and has not ended")),
        _ => {
            reap(process);
            Ok(())
        }
    }
}

/// A child of this process keeps its number until it is waited for. Others are not this process's to wait for, and the
/// owner of a [`Child`] may have done it.
fn reap(process: &OwnedFd) {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let _ = waitid(WaitId::PidFd(process.as_fd()), ended);
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn started(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        start(command, TOKEN).unwrap()
    }

    /// Not `end`: the processes of tests that run at the same time have the same token.
    fn ask(script: &str, is_cancelled: bool, limit: Duration) -> Result<String, String> {
        let mut process = started(script);
        let until = Instant::now() + limit;
        let answer = process.answer("a b", &AtomicBool::new(is_cancelled), until);
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        answer.map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_is_not_waited_for_without_end() {
        let minute = Duration::from_secs(60);
        assert_eq!(ask("read one; echo $one", false, minute).unwrap(), "a b");
        let stuck = ask("exec sleep 600", false, Duration::from_millis(100)).unwrap_err();
        assert!(stuck.contains("has not answered within"), "{stuck}");
        let cancelled = ask("exec sleep 600", true, minute).unwrap_err();
        assert!(cancelled.contains("interrupted"), "{cancelled}");
        let ended = ask("read one", false, minute).unwrap_err();
        assert!(ended.contains("has ended"), "{ended}");
    }

    #[test]
    fn an_error_names_the_process() {
        let mut process = started("read one");
        let error = process.ask("", &AtomicBool::new(false)).unwrap_err();
        let pid = process.pid();
        assert!(error.to_string().contains(&format!("process {pid}: ")));
        process.child.wait().unwrap();
    }
}
