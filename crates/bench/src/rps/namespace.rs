//! The network namespace of the clients. A thread of this process holds it, so that it never outlives the process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use nearfar_experiment::BoxError;
use nearfar_proc::child;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace, empty but for what is moved into it.
pub(super) struct Namespace {
    file: File,
    /// Of the thread that made it.
    thread: i32,
    holder: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// Where the kernel refuses: without CAP_SYS_ADMIN.
    pub(super) fn new() -> io::Result<Self> {
        let (made, answer) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("nearfar-netns".to_owned());
        let handle = thread.spawn(move || {
            // SAFETY: gives the calling thread, which runs nothing else, another network namespace.
            let answer = match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
                0 => File::open("/proc/thread-self/ns/net"),
                _ => Err(io::Error::last_os_error()),
            };
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            let is_made = made.send(answer.map(|file| (file, thread))).is_ok();
            if is_made {
                let _ = ended.recv();
            }
        })?;
        let (file, thread) = answer.recv().map_err(io::Error::other)??;
        Ok(Self {
            file,
            thread,
            holder: Some((end, handle)),
        })
    }

    /// What `ip link set DEVICE netns` takes.
    pub(super) fn name(&self) -> String {
        self.thread.to_string()
    }

    /// Moves the calling thread into it.
    pub(super) fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(
            self.file.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?)
    }

    /// Lets what `command` starts run in it.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn start_in(&self, command: &mut Command) -> io::Result<()> {
        let file = self.file.try_clone()?;
        // SAFETY: between fork and exec only a system call is made that is async-signal-safe (signal-safety(7)).
        unsafe {
            command.pre_exec(move || {
                let namespace = Some(LinkNameSpaceType::Network);
                Ok(move_into_link_name_space(file.as_fd(), namespace)?)
            });
        }
        Ok(())
    }

    /// Runs `ip` in it.
    pub(super) fn ip(&self, words: &[&str]) -> Result<(), BoxError> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter()?;
                ip(words)
            });
            thread.join().map_err(|_| "a thread panicked")?
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some((end, handle)) = self.holder.take() {
            drop(end);
            let _ = handle.join();
        }
    }
}

/// The error where there is none.
pub(super) fn cannot_make(error: io::Error) -> BoxError {
    let reason = nearfar_proc::error_text(&error);
    format!("cannot make a network namespace: {reason}; it takes root").into()
}

/// Runs `ip` of iproute2.
pub(super) fn ip(words: &[&str]) -> Result<(), BoxError> {
    Ok(child::output("ip", words).map(drop)?)
}
