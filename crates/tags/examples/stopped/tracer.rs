//! Stops one thread of this process: a helper process attaches to it as a debugger does (ptrace). SIGSTOP would stop the whole process,
//! and a signal handler that sleeps is code of the thread itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr::null_mut;

use crate::system::ThreadId;

/// The helper process; it ends with this.
pub struct Tracer {
    commands: File,
    answers: File,
    process: libc::pid_t,
}

const STOP: i32 = 1;
const RESUME: i32 = 2;

impl Tracer {
    pub fn new() -> io::Result<Self> {
        let (command_reader, commands) = pipe()?;
        let (answers, answer_writer) = pipe()?;
        // SAFETY: the child calls async-signal-safe functions only.
        let process = unsafe { libc::fork() };
        match process {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let ours = [commands.as_raw_fd(), answers.as_raw_fd()];
                serve(command_reader.as_raw_fd(), answer_writer.as_raw_fd(), ours)
            }
            _ => {
                // Where only a parent may trace (Yama), the child needs leave. An error means that there is no such restriction.
                // SAFETY: this option reads no memory.
                unsafe { libc::prctl(libc::PR_SET_PTRACER, process) };
                Ok(Self {
                    commands,
                    answers,
                    process,
                })
            }
        }
    }

    /// Returns when the thread does not run any more.
    pub fn stop(&mut self, thread: ThreadId) -> io::Result<()> {
        self.command(STOP, thread)
    }

    pub fn resume(&mut self, thread: ThreadId) -> io::Result<()> {
        self.command(RESUME, thread)
    }

    fn command(&mut self, command: i32, thread: ThreadId) -> io::Result<()> {
        let mut message = [0; 8];
        message[..4].copy_from_slice(&command.to_ne_bytes());
        message[4..].copy_from_slice(&thread.0.to_ne_bytes());
        self.commands.write_all(&message)?;
        let mut answer = [0; 4];
        self.answers.read_exact(&mut answer)?;
        match i32::from_ne_bytes(answer) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // SAFETY: the process is a child of this one that was not waited for.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, null_mut(), 0);
        }
    }
}

fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: pipe2 writes two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are open and owned by nothing else.
    Ok(unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) })
}

/// The helper process.
fn serve(commands: RawFd, answers: RawFd, ours: [RawFd; 2]) -> ! {
    // SAFETY: system calls on descriptors of this process and on buffers of their length; nothing allocates.
    unsafe {
        // The pipe of commands ends with the last process that has its other end.
        for descriptor in ours {
            libc::close(descriptor);
        }
        let mut message = [0_i32; 2];
        while libc::read(commands, message.as_mut_ptr().cast(), 8) == 8 {
            let [command, thread] = message;
            let result = if command == STOP {
                attach(thread)
            } else {
                libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0)
            };
            let answer = if result == -1 {
                *libc::__errno_location()
            } else {
                0
            };
            libc::write(answers, (&raw const answer).cast(), 4);
        }
        libc::_exit(0)
    }
}

/// # Safety
/// None: system calls that touch no memory of the caller. In the child of a fork of several threads.
unsafe fn attach(thread: libc::pid_t) -> libc::c_long {
    // SAFETY: as above.
    unsafe {
        if libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) == -1
            || libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0) == -1
        {
            return -1;
        }
        loop {
            let mut status = 0;
            if libc::waitpid(thread, &raw mut status, libc::__WALL) == -1 {
                return -1;
            }
            if libc::WIFSTOPPED(status) && status >> 16 == libc::PTRACE_EVENT_STOP {
                return 0;
            }
            // Stopped by a signal first: it is delivered, and the stop follows.
            libc::ptrace(libc::PTRACE_CONT, thread, 0, libc::WSTOPSIG(status));
        }
    }
}
