//! Which process is meant: a number is given to another process once its own has ended and was waited for.
//!
//! While a process lives, its number is its own: one that lives after it was looked at was the same all the time since
//! it was opened.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::tasks;

/// A process that cannot be mistaken for a later one with its number.
#[derive(Clone, Debug)]
pub struct OpenProcess {
    pid: i32,
    /// When it began, in clock ticks since boot.
    start: u64,
    /// None before Linux 5.3, and for a thread that is not the first of its process.
    fd: Option<Arc<OwnedFd>>,
}

impl PartialEq for OpenProcess {
    fn eq(&self, other: &Self) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }
}

impl Eq for OpenProcess {}

impl OpenProcess {
    /// Opens a process by its number: what is found out about it afterwards is about this one, if it lives then.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(pid: i32) -> io::Result<Self> {
        let fd = Pid::from_raw(pid)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .map(Arc::new);
        // After the descriptor: the start is then that of the process it stands for, or of one that is found out later.
        Ok(Self {
            pid,
            start: tasks::stat(pid)?.id.start,
            fd,
        })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// When it began, in clock ticks since boot.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether it lives, and has its number for that reason. An error that says nothing about the process, such as too many
    /// open files, is no sign of its end.
    pub fn is_alive(&self) -> bool {
        if let Some(fd) = &self.fd {
            // Readable when its last thread has ended (pidfd_open(2)).
            let mut polled = [PollFd::new(fd.as_ref(), PollFlags::IN)];
            if poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return false;
            }
        }
        match tasks::stat(self.pid) {
            Ok(stat) => stat.id.start == self.start,
            Err(error) => !tasks::is_gone(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeping() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_has_ended_is_not_taken_for_another_with_its_number() {
        let (ended, other) = (sleeping(), sleeping());
        let pid = ended.id().cast_signed();
        let mut process = OpenProcess::open(pid).unwrap();
        assert!(process.is_alive());
        end(ended);
        assert!(!process.is_alive());
        // The number is another's now.
        let later = OpenProcess::open(other.id().cast_signed()).unwrap();
        (process.pid, process.start) = (later.pid, later.start);
        assert_eq!(
            process.is_alive(),
            process.fd.is_none(),
            "a process that began in the same tick"
        );
        process.start += 1;
        assert!(!process.is_alive());
        end(other);
    }
}
