//! The caller's side: the child is started, spoken to, listened to, and never left behind.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ChildError;

/// Between two looks at the cancel flag; the caller's own wake-ups should not disturb what is measured.
const LISTENS_FOR: Duration = Duration::from_millis(200);

/// A child of this process, killed when dropped.
pub(crate) struct Child {
    /// What it is to do, for messages.
    what: &'static str,
    process: std::process::Child,
    /// Closed to end the child.
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// What was read behind the last whole line.
    heard: Vec<u8>,
    /// The child is killed when the thread that started it ends: the handle must not leave that thread.
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Child {
    /// Starts `program bench child WHAT` and tells it what to do.
    pub(crate) fn start(
        program: &Path,
        what: &'static str,
        spec: &impl Serialize,
    ) -> Result<Self, ChildError> {
        let mut child = Self::untold(program, what)?;
        child.tell(spec)?;
        Ok(child)
    }

    /// Starts `program bench child WHAT`, which waits for its specification.
    pub(crate) fn untold(program: &Path, what: &'static str) -> Result<Self, ChildError> {
        let start = |source| ChildError::Start {
            program: program.to_owned(),
            source,
        };
        let mut process = Command::new(program)
            .args(["bench", "child", what].map(OsStr::new))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(start(io::Error::other("its pipes are missing")));
        };
        let stays = PhantomData;
        Ok(Self {
            what,
            process,
            input: Some(input),
            output,
            heard: Vec::new(),
            _stays_on_its_thread: stays,
        })
    }

    /// Tells it what to do.
    pub(crate) fn tell(&mut self, spec: &impl Serialize) -> Result<(), ChildError> {
        let line = serde_json::to_string(spec).map_err(|source| ChildError::Nonsense {
            what: self.what,
            source,
        })?;
        self.say(&line)
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> i32 {
        // Linux has no process numbers above 2^22.
        i32::try_from(self.process.id()).unwrap_or(i32::MAX)
    }

    /// Sends a line. To one that has ended already nothing can be said; what it said before, or why it ended, is heard next.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), ChildError> {
        let what = self.what;
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        match input.write_all(format!("{line}\n").as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.hang_up();
                Ok(())
            }
            result => result.map_err(|source| ChildError::Pipe { what, source }),
        }
    }

    /// Lets it do nothing more, until it is killed.
    pub(crate) fn stop(&self) {
        // One that has ended already does nothing either.
        let _ = kill_process(Pid::from_child(&self.process), Signal::STOP);
    }

    /// Closes its standard input.
    pub(crate) fn hang_up(&mut self) {
        self.input = None;
    }

    /// Waits for its next line.
    pub(crate) fn listen<T: DeserializeOwned>(
        &mut self,
        cancel: &AtomicBool,
    ) -> Result<T, ChildError> {
        let what = self.what;
        loop {
            if let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|source| ChildError::Nonsense { what, source });
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(ChildError::Cancelled { what });
            }
            if self
                .hear()
                .map_err(|source| ChildError::Pipe { what, source })?
                == Heard::End
            {
                return Err(self.ended(cancel.load(Ordering::Relaxed)));
            }
        }
    }

    fn hear(&mut self) -> io::Result<Heard> {
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: LISTENS_FOR.subsec_nanos().into(),
        };
        match poll(
            &mut [PollFd::new(&self.output, PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Heard::Silence),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut chunk = [0; 16 << 10];
        let length = self.output.read(&mut chunk)?;
        self.heard.extend_from_slice(&chunk[..length]);
        Ok(if length == 0 {
            Heard::End
        } else {
            Heard::Something
        })
    }

    /// Why there is no more to be heard from it.
    fn ended(&mut self, cancelled: bool) -> ChildError {
        let what = self.what;
        self.hang_up();
        let mut message = String::new();
        if let Some(mut errors) = self.process.stderr.take() {
            // A message that cannot be read leaves the exit status to speak.
            let _ = errors.read_to_string(&mut message);
        }
        let reason = message
            .trim()
            .trim_start_matches("nearfar:")
            .trim_start()
            .to_owned();
        let status = match self.process.wait() {
            Ok(status) => status,
            Err(source) => return ChildError::Pipe { what, source },
        };
        match (status.code(), status.signal()) {
            // Ctrl-C goes to the whole foreground group of a terminal.
            (_, Some(libc::SIGINT)) => ChildError::Cancelled { what },
            _ if cancelled => ChildError::Cancelled { what },
            (Some(2), _) => ChildError::BadSpec { reason },
            (Some(3), _) => ChildError::Refused { reason },
            _ => ChildError::Ended {
                what,
                status,
                message: reason,
            },
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may be gone already, which is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(PartialEq)]
enum Heard {
    Silence,
    Something,
    End,
}
