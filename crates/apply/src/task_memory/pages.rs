//! A process that is held, and its pages as the kernel answers for them.

use std::io;

use nearfar_machine::NodeId;
use nearfar_proc::move_pages::{move_all, move_own, where_are};
use nearfar_proc::stat::Image;
use nearfar_proc::{OpenProcess, error_text, tasks};

/// What the kernel answers on the pages of one process. A trait, so that tests can be the kernel.
pub(crate) trait Pages {
    /// The node of each page, or a negative error.
    ///
    /// # Errors
    /// When the process is gone.
    fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>>;

    /// Moves pages to a node; a status each.
    ///
    /// # Errors
    /// `ENOMEM` when the node has no room for one of them; `ESRCH` when the process is gone.
    fn move_to(&self, addresses: &[u64], node: NodeId) -> io::Result<Vec<libc::c_int>>;

    /// Whether the process still runs the program it ran when it was opened.
    ///
    /// # Errors
    /// Why its pages are gone.
    fn check(&self) -> Result<(), Lost>;
}

/// Why the pages of a process are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("process {0} has ended: its memory is gone")]
    Ended(i32),
    #[error("process {0} has started another program: the memory it had is gone")]
    OtherProgram(i32),
}

/// Why a process is not the one whose memory may be moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("there is no process {0} any more")]
    None(i32),
    #[error(
        "process {pid} began at clock tick {found}, the plan was made for one that began at {expected}"
    )]
    OtherStart { pid: i32, found: u64, expected: u64 },
    #[error("process {0} is a thread of the kernel: it has no memory of its own")]
    KernelThread(i32),
    #[error("process {0} has ended and waits for its parent: it has no memory")]
    Zombie(i32),
    #[error("process {pid}: {}", error_text(error))]
    Read { pid: i32, error: io::Error },
}

/// A process that cannot be mistaken for a later one with its number, running one program.
pub(crate) struct Process {
    open: OpenProcess,
    image: Image,
}

impl Process {
    /// Opens a process if it is the one that began at this clock tick.
    pub(crate) fn open(pid: i32, start_ticks: u64) -> Result<Self, ProcessError> {
        let failed = |error: io::Error| match tasks::is_gone(&error) {
            true => ProcessError::None(pid),
            false => ProcessError::Read { pid, error },
        };
        let open = OpenProcess::open(pid).map_err(failed)?;
        if open.start() != start_ticks {
            return Err(ProcessError::OtherStart {
                pid,
                found: open.start(),
                expected: start_ticks,
            });
        }
        let stat = tasks::stat(pid).map_err(failed)?;
        if stat.is_kernel_thread() {
            return Err(ProcessError::KernelThread(pid));
        }
        if stat.is_ended() {
            return Err(ProcessError::Zombie(pid));
        }
        let image = tasks::image(pid).map_err(failed)?;
        Ok(Self { open, image })
    }

    pub(crate) fn image(&self) -> Image {
        self.image
    }

    /// As [`Pages::check`].
    pub(crate) fn check(&self) -> Result<(), Lost> {
        let pid = self.open.pid();
        if !self.open.is_alive() {
            return Err(Lost::Ended(pid));
        }
        match tasks::image(pid) {
            Ok(image) if image == self.image => Ok(()),
            Ok(_) => Err(Lost::OtherProgram(pid)),
            Err(_) => Err(Lost::Ended(pid)),
        }
    }
}

/// The pages of a process of the running system.
pub(crate) struct LivePages {
    pub(crate) process: Process,
    /// Whether pages that other processes map are moved too.
    pub(crate) shared: bool,
}

impl LivePages {
    pub(crate) fn pid(&self) -> i32 {
        self.process.open.pid()
    }
}

impl Pages for LivePages {
    fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
        where_are(self.pid(), addresses)
    }

    fn move_to(&self, addresses: &[u64], node: NodeId) -> io::Result<Vec<libc::c_int>> {
        let node = libc::c_int::try_from(node.0).map_err(io::Error::other)?;
        match self.shared {
            true => move_all(self.pid(), addresses, node),
            false => move_own(self.pid(), addresses, node),
        }
    }

    fn check(&self) -> Result<(), Lost> {
        self.process.check()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_process_that_began_then_is_opened_and_its_end_is_noticed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let start = tasks::stat(pid).unwrap().id.start;
        assert!(matches!(
            Process::open(pid, start + 1),
            Err(ProcessError::OtherStart { .. })
        ));
        let process = Process::open(pid, start).unwrap();
        assert_eq!(process.check(), Ok(()));
        child.kill().unwrap();
        while !tasks::stat(pid).unwrap().is_ended() {
            std::thread::yield_now();
        }
        assert!(matches!(
            Process::open(pid, start),
            Err(ProcessError::Zombie(_))
        ));
        child.wait().unwrap();
        assert_eq!(process.check(), Err(Lost::Ended(pid)));
        assert!(matches!(
            Process::open(pid, start),
            Err(ProcessError::None(_))
        ));
    }

    #[test]
    fn another_program_in_the_same_process_is_noticed() {
        let mut child = Command::new("sh")
            .args(["-c", "read -r go; exec sleep 60"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        while tasks::executable(pid).is_ok_and(|path| path == std::env::current_exe().unwrap()) {
            std::thread::yield_now();
        }
        let process = Process::open(pid, tasks::stat(pid).unwrap().id.start).unwrap();
        assert_eq!(process.check(), Ok(()));
        drop(child.stdin.take());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while process.check().is_ok() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        let found = process.check();
        child.kill().unwrap();
        child.wait().unwrap();
        match std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").as_deref() {
            Ok("0\n") => println!("skipped: kernel: addresses are not random here"),
            _ => assert_eq!(found, Err(Lost::OtherProgram(pid))),
        }
    }
}
