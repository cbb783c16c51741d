//! A process that is held, and its pages as the kernel answers for them.

use std::fmt;
use std::io;
use std::time::Duration;

use nearfar_machine::NodeId;
use nearfar_proc::Image;
use nearfar_proc::move_pages::{MovePages, PagesOf};
use nearfar_proc::resident::{PageEntry, Pagemap};
use nearfar_proc::{OpenProcess, error_text, tasks};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

const EXEC_ATTEMPTS: u32 = 5;
const EXEC_INTERVAL: Duration = Duration::from_millis(1);

/// What the kernel answers on the pages of one process. A trait, so that tests can be the kernel.
pub(crate) trait Pages: MovePages {
    /// What pagemap says of each page. It shows those that NUMA balancing watches, which move_pages(2) does not before Linux
    /// 6.6.
    ///
    /// # Errors
    /// When pagemap cannot be opened or read.
    fn entries(&self, addresses: &[u64]) -> io::Result<Vec<PageEntry>>;

    /// Whether the process still runs the program it ran when it was opened.
    ///
    /// # Errors
    /// What it is instead.
    fn check(&self) -> Result<(), ProcessChanged>;
}

/// Why the pages of a process are not those of before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ProcessChanged {
    #[error("process {0} has ended: its memory is gone")]
    Ended(i32),
    #[error("process {0} has started another program: the memory it had is gone")]
    OtherProgram(i32),
    #[error(
        "process {0} may run another program: the kernel does not show this user where its code is (run as root)"
    )]
    Unknown(i32),
}

impl ProcessChanged {
    /// Whether it is certain that no page is left.
    pub(crate) fn is_end_of_pages(self) -> bool {
        matches!(self, Self::Ended(_) | Self::OtherProgram(_))
    }
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
    #[error(
        "the main thread of process {0} has ended and others run: its memory cannot be reached by its number"
    )]
    MainThreadEnded(i32),
    #[error("{0} is a thread of another process, not a process")]
    Thread(i32),
    #[error("/proc does not show process {0} to this user (run as root)")]
    Hidden(i32),
    #[error("{}", ProcessChanged::Unknown(*.0))]
    NoAccess(i32),
    #[error("process {pid}: {}", error_text(error))]
    Read { pid: i32, error: io::Error },
}

impl ProcessError {
    /// Whether it is certain that the process has ended.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::None(_)
            | Self::OtherStart { .. }
            | Self::KernelThread(_)
            | Self::Zombie(_)
            | Self::Thread(_) => true,
            Self::MainThreadEnded(_) | Self::Hidden(_) | Self::NoAccess(_) | Self::Read { .. } => {
                false
            }
        }
    }
}

/// Where the number of a process and the time of its start mean what they do: `pid:[4026531836]`. In other namespaces both
/// are other processes'.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Namespaces {
    pid: Option<String>,
    /// Since Linux 5.6.
    time: Option<String>,
}

impl Namespaces {
    /// Those of this program.
    pub(crate) fn own() -> Self {
        let name = |name| Some(tasks::own_namespace(name).ok()?.display().to_string());
        Self {
            pid: name("pid"),
            time: name("time"),
        }
    }
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [&self.pid, &self.time].into_iter().flatten();
        let names: Vec<&str> = names.map(String::as_str).collect();
        f.write_str(&names.join(" "))
    }
}

/// A process that cannot be mistaken for a later one with its number, running one program.
pub(crate) struct HeldProcess {
    open: OpenProcess,
    image: Image,
}

impl HeldProcess {
    /// Opens a process if it is the one that began at this clock tick.
    pub(crate) fn open(pid: i32, start_ticks: u64) -> Result<Self, ProcessError> {
        let failed = |error: io::Error| match tasks::is_gone(&error) {
            true if has_process(pid) => ProcessError::Hidden(pid),
            true => ProcessError::None(pid),
            false => ProcessError::Read { pid, error },
        };
        let open = OpenProcess::open(pid).map_err(failed)?;
        if tasks::process_of(pid).map_err(failed)? != pid {
            return Err(ProcessError::Thread(pid));
        }
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
        if stat.is_ending() {
            return Err(match has_live_threads(pid) {
                true => ProcessError::MainThreadEnded(pid),
                false => ProcessError::Zombie(pid),
            });
        }
        match image_after_exec(pid).map_err(failed)? {
            Some(image) => Ok(Self { open, image }),
            None if is_ending(pid) || !open.is_alive() => Err(ProcessError::Zombie(pid)),
            None => Err(ProcessError::NoAccess(pid)),
        }
    }

    pub(crate) fn image(&self) -> Image {
        self.image
    }

    /// As [`Pages::check`].
    pub(crate) fn check(&self) -> Result<(), ProcessChanged> {
        let pid = self.open.pid();
        let image = image_after_exec(pid);
        // After the image was read: it is then this process's.
        if !self.open.is_alive() {
            return Err(ProcessChanged::Ended(pid));
        }
        match image {
            Ok(Some(image)) if image == self.image => Ok(()),
            Ok(Some(_)) => Err(ProcessChanged::OtherProgram(pid)),
            // On a busy host a process that was killed stays for long between giving back its memory and its end.
            Ok(None) | Err(_) if is_ending(pid) || !self.open.is_alive() => {
                Err(ProcessChanged::Ended(pid))
            }
            Ok(None) | Err(_) => Err(ProcessChanged::Unknown(pid)),
        }
    }
}

/// What [`tasks::image`] says. While execve(2) replaces the memory, it has no answer for some microseconds.
fn image_after_exec(pid: i32) -> io::Result<Option<Image>> {
    for _ in 0..EXEC_ATTEMPTS {
        match tasks::image(pid) {
            Ok(None) => std::thread::sleep(EXEC_INTERVAL),
            answer => return answer,
        }
    }
    Ok(None)
}

/// Whether a process has the number, also one that /proc hides (`hidepid`).
fn has_process(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Whether each of its threads is; no where /proc does not show it.
fn is_ending(pid: i32) -> bool {
    tasks::stat(pid).is_ok_and(|stat| stat.is_ending()) && !has_live_threads(pid)
}

fn has_live_threads(pid: i32) -> bool {
    let threads = tasks::threads(pid).unwrap_or_default();
    let is_alive = |tid| tasks::stat_of(pid, tid).is_ok_and(|stat| !stat.is_ending());
    threads.into_iter().any(is_alive)
}

/// The pages of a process of the running system.
pub(crate) struct LivePages {
    pub(crate) process: HeldProcess,
    moving: PagesOf,
    pagemap: io::Result<Pagemap>,
}

impl LivePages {
    /// `shared`: whether pages that other processes map are moved too.
    pub(crate) fn new(process: HeldProcess, shared: bool) -> Self {
        let pid = process.open.pid();
        Self {
            process,
            moving: PagesOf { pid, shared },
            pagemap: Pagemap::open(pid),
        }
    }
}

impl MovePages for LivePages {
    fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
        self.moving.where_are(addresses)
    }

    fn move_once(
        &self,
        addresses: &[u64],
        node: NodeId,
        statuses: &mut [libc::c_int],
    ) -> io::Result<()> {
        self.moving.move_once(addresses, node, statuses)
    }
}

impl Pages for LivePages {
    fn entries(&self, addresses: &[u64]) -> io::Result<Vec<PageEntry>> {
        match &self.pagemap {
            Ok(pagemap) => pagemap.of(addresses),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!(
                    "cannot open /proc/{}/pagemap: {}",
                    self.moving.pid,
                    error_text(error)
                ),
            )),
        }
    }

    fn check(&self) -> Result<(), ProcessChanged> {
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
            HeldProcess::open(pid, start + 1),
            Err(ProcessError::OtherStart { .. })
        ));
        let process = HeldProcess::open(pid, start).unwrap();
        assert_eq!(process.check(), Ok(()));
        child.kill().unwrap();
        while !tasks::stat(pid).unwrap().is_ended() {
            std::thread::yield_now();
        }
        assert!(matches!(
            HeldProcess::open(pid, start),
            Err(ProcessError::Zombie(_))
        ));
        child.wait().unwrap();
        assert_eq!(process.check(), Err(ProcessChanged::Ended(pid)));
        assert!(matches!(
            HeldProcess::open(pid, start),
            Err(ProcessError::None(_))
        ));
    }

    #[test]
    fn another_program_in_the_same_process_is_noticed() {
        let mut child = Command::new("sh")
            .args(["-c", "read -r go; exec sleep 600"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        while tasks::executable(pid).is_ok_and(|path| path == std::env::current_exe().unwrap()) {
            std::thread::yield_now();
        }
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // Its file shows before its addresses do: on a busy machine some time before.
        let opened = || HeldProcess::open(pid, tasks::stat(pid).unwrap().id.start);
        while matches!(opened(), Err(ProcessError::NoAccess(_))) && std::time::Instant::now() < end
        {
            std::thread::yield_now();
        }
        let process = opened().unwrap();
        assert_eq!(process.check(), Ok(()));
        drop(child.stdin.take());
        while process.check().is_ok() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        let found = process.check();
        child.kill().unwrap();
        child.wait().unwrap();
        match std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").as_deref() {
            Ok("0\n") => println!("skipped: kernel: addresses are not random here"),
            _ => assert_eq!(found, Err(ProcessChanged::OtherProgram(pid))),
        }
    }

    #[test]
    fn a_thread_is_not_opened_and_a_process_without_its_main_thread_has_not_ended() {
        let own = std::process::id().cast_signed();
        let (tid, end) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let thread = std::thread::spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            tid.0.send(own).unwrap();
            let _ = end.1.recv();
        });
        let number = tid.1.recv().unwrap();
        let start = tasks::stat(number).unwrap().id.start;
        let opened = HeldProcess::open(number, start).err();
        assert!(
            matches!(opened, Some(ProcessError::Thread(_))),
            "{opened:?}"
        );
        assert!(has_live_threads(own) && has_process(own));
        drop(end.0);
        thread.join().unwrap();
    }

    #[test]
    fn only_certain_ends_let_go_of_the_record() {
        let read = ProcessError::Read {
            pid: 2,
            error: io::Error::from_raw_os_error(libc::EMFILE),
        };
        for doubtful in [
            read,
            ProcessError::MainThreadEnded(2),
            ProcessError::Hidden(2),
            ProcessError::NoAccess(2),
        ] {
            assert!(!doubtful.is_end(), "{doubtful}");
        }
        assert!(ProcessError::Zombie(2).is_end());
        assert!(!ProcessChanged::Unknown(2).is_end_of_pages());
        assert!(ProcessChanged::OtherProgram(2).is_end_of_pages());
    }
}
