//! QEMU as a child that cannot outlive this process, and what it inherits.
//!
//! ```text
//!  nearfar ──┬── thread "spawner" ──fork──► QEMU     PR_SET_PDEATHSIG = SIGKILL: however nearfar ends, QEMU ends
//!            └── memfds, socketpairs ───────► /dev/fd/N of QEMU: no file and no socket in any folder
//! ```
//!
//! The signal of prctl(2) is sent when the *thread* that forked ends, so one thread that never ends forks for all.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::fs::MemfdFlags;
use rustix::process::Signal;

use crate::error::LabError;

/// A program to start.
#[derive(Debug)]
pub struct QemuCommand {
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// A library that is loaded before all others (ld.so(8), `LD_PRELOAD`).
    pub preloaded: Option<PathBuf>,
    /// What it inherits, under the same numbers as here.
    pub inherited: Vec<OwnedFd>,
}

/// A child that is killed when this is dropped. Waiting for its end takes as long as the kernel takes to free its memory, so a
/// thread of its own does that.
#[derive(Debug)]
pub struct Running(Option<Child>);

impl Running {
    /// Owns a child.
    pub fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Its process number; 0 when it was waited for.
    pub fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Ends it at once. Its channels then report an end.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        drop(self.0.as_mut().map(Child::kill));
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        drop(self.0.as_mut().map(Child::wait));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if let Some(mut child) = self.0.take() {
            thread::spawn(move || drop(child.wait()));
        }
    }
}

type Job = (QemuCommand, Sender<io::Result<Child>>);

/// Starts a program whose standard input is empty, whose standard error is a pipe, and which dies with this process.
///
/// # Errors
/// When the program cannot be started.
pub fn start(start: QemuCommand) -> Result<Child, LabError> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let program = start.program.clone();
    tracing::debug!(path = %program.display(), arguments = ?start.arguments, "start program");
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, received) = channel::<Job>();
        thread::spawn(move || {
            for (start, answer) in received {
                // A caller that did not wait would get a child that is never killed: so it is killed here.
                if let Err(unheard) = answer.send(spawn(start))
                    && let Ok(mut child) = unheard.0
                {
                    drop(child.kill().and_then(|()| child.wait()));
                }
            }
        });
        orders
    });
    let (answer, answered) = channel();
    let gone = || {
        LabError::system(
            "starting QEMU",
            io::Error::other("the thread that starts programs is gone"),
        )
    };
    spawner.send((start, answer)).map_err(|_| gone())?;
    answered
        .recv()
        .map_err(|_| gone())?
        .map_err(|error| LabError::system(format!("starting {}", program.display()), error))
}

fn spawn(start: QemuCommand) -> io::Result<Child> {
    let inherited: Vec<RawFd> = start.inherited.iter().map(AsRawFd::as_raw_fd).collect();
    let mut command = Command::new(&start.program);
    command
        .args(&start.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if let Some(library) = start.preloaded {
        let mut all = library.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD") {
            all.push(" ");
            all.push(others);
        }
        command.env("LD_PRELOAD", all);
    }
    nearfar_proc::child::end_with_parent(&mut command, Signal::KILL);
    let prepare = move || {
        // Ctrl-C at the terminal is for us to pass on, not for QEMU to die of. Many threads that share a CPU (simulated time) are one in the
        // scheduler's eyes where they have a session of their own (sched(7), "The autogroup feature").
        rustix::process::setsid()?;
        for number in &inherited {
            // SAFETY: the descriptors are open, since `start.inherited` lives until after the fork.
            let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(*number) };
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated or locked.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// An anonymous file with this content.
///
/// # Errors
/// When there is no memory for it.
pub fn memory_file(name: &str, content: &[u8]) -> Result<OwnedFd, LabError> {
    let fail =
        |error: io::Error| LabError::system(format!("making an anonymous file for {name}"), error);
    let mut file = File::from(
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| fail(error.into()))?,
    );
    file.write_all(content).map_err(fail)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map_err(|error| fail(error.into()))?;
    Ok(file.into())
}

/// An anonymous file of so many zero bytes, which take no memory before something is written there.
///
/// # Errors
/// When the system refuses.
pub fn memory_disk(name: &str, bytes: u64) -> Result<OwnedFd, LabError> {
    let file = memory_file(name, &[])?;
    rustix::fs::ftruncate(&file, bytes).map_err(|error| {
        LabError::system(format!("making a disk of {bytes} bytes for {name}"), error)
    })?;
    Ok(file)
}

/// A channel: our end and QEMU's.
///
/// # Errors
/// When the system refuses.
pub fn channel_to_guest() -> Result<(UnixStream, OwnedFd), LabError> {
    let (ours, theirs) = UnixStream::pair()
        .map_err(|error| LabError::system("making a channel to the guest", error))?;
    Ok((ours, theirs.into()))
}

/// A second descriptor of the same file.
///
/// # Errors
/// When the system refuses.
pub fn duplicate(file: impl AsFd) -> Result<OwnedFd, LabError> {
    file.as_fd()
        .try_clone_to_owned()
        .map_err(|error| LabError::system("duplicating a descriptor", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_session_of_its_own() {
        let started = start(QemuCommand {
            program: "/bin/sh".into(),
            arguments: [
                "-c",
                "read -r pid rest < /proc/self/stat; set -- $rest; [ $5 = $pid ]",
            ]
            .map(OsString::from)
            .into(),
            preloaded: None,
            inherited: Vec::new(),
        });
        let mut child = started.expect("a shell");
        assert!(child.wait().expect("its end").success());
    }
}
