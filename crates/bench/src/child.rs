//! A child of the same program that does one thing, and the lines that are exchanged with it.
//!
//! ```text
//!  caller ──── stdin ────► {spec}    go  (hold, go ..)      its end: "stop", or the caller is gone
//!         ◄─── stdout ───           {"ready": ..}    {"done": ..}
//!         ◄─── stderr ───  one message, and exit code 2 (bad spec) or 3 (the system refused)
//! ```
//!
//! The child asks for SIGKILL when its parent ends (prctl(2), PR_SET_PDEATHSIG). The kernel sends that when the *thread*
//! that started it ends, so a handle stays on its thread: it is not `Send`.
//!
//! [`Child`] is the caller's side, which never leaves a child behind, [`Conversation`] the child's.

use std::ffi::{CString, OsStr};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Why a child did not do what it was started for.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("cannot start {} as a child: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("{reason}")]
    BadSpec { reason: String },
    #[error("{reason}")]
    Refused { reason: String },
    #[error("the {what} ended before it was done ({status}){}{message}", if message.is_empty() { "" } else { ": " })]
    Ended {
        what: &'static str,
        status: ExitStatus,
        message: String,
    },
    #[error(
        "the {what} answered with something else than expected ({source}): is its program another version of nearfar?"
    )]
    Nonsense {
        what: &'static str,
        /// Where the answer stops making sense.
        source: serde_json::Error,
    },
    #[error("the conversation with the {what} failed: {source}")]
    Pipe {
        what: &'static str,
        source: io::Error,
    },
    #[error("the {what} was cancelled")]
    Cancelled { what: &'static str },
}

/// The first line of a child: it is prepared.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReadyLine<T> {
    pub(crate) ready: T,
}

/// The last line of a child.
#[derive(Serialize, Deserialize)]
pub(crate) struct DoneLine<T> {
    pub(crate) done: T,
}

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

    /// Closes its standard input.
    pub(crate) fn hang_up(&mut self) {
        self.input = None;
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) {
        // One that cannot be waited for is killed when this is dropped.
        let _ = self.process.wait();
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
            let ended = self.hear();
            if ended.map_err(|source| ChildError::Pipe { what, source })? {
                return Err(self.ended(cancel.load(Ordering::Relaxed)));
            }
        }
    }

    /// Takes what there is, after a short wait. Whether its output has ended.
    fn hear(&mut self) -> io::Result<bool> {
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: LISTENS_FOR.subsec_nanos().into(),
        };
        match poll(
            &mut [PollFd::new(&self.output, PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut chunk = [0; 16 << 10];
        let length = self.output.read(&mut chunk)?;
        self.heard.extend_from_slice(&chunk[..length]);
        Ok(length == 0)
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

/// The longest line a child reads: far more than a spec with thousands of CPUs needs.
const LONGEST_LINE: u64 = 1 << 20;

/// Why a child gives up.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    BadSpec(String),
    #[error("{what}: {source}")]
    Refused { what: String, source: io::Error },
    #[error("the parent of the child has closed its pipe")]
    Unheard,
}

impl ServeError {
    /// The system refused `what`.
    pub(crate) fn refused(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Refused {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Standard input and output, as a conversation of lines.
pub(crate) struct Conversation {
    what: &'static str,
    input: BufReader<io::Stdin>,
}

impl Conversation {
    /// Opens it, names this process after what it is for, and has the kernel end it when its parent ends.
    pub(crate) fn open(what: &'static str) -> Self {
        // In top, ps and traces it would be called as /proc/self/exe is: exe.
        if let Ok(name) = CString::new(format!("nearfar-{what}")) {
            let _ = rustix::thread::set_name(&name);
        }
        // Where the kernel refuses, the end of standard input still tells of the parent's end.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        Self {
            what,
            input: BufReader::new(io::stdin()),
        }
    }

    /// Reads what to do.
    pub(crate) fn spec<T: DeserializeOwned>(&mut self) -> Result<T, ServeError> {
        let line = self.line()?.ok_or_else(|| {
            let what = self.what;
            ServeError::BadSpec(format!(
                "no {what} was described: standard input takes its spec, one line of JSON"
            ))
        })?;
        serde_json::from_str(&line).map_err(|error| {
            ServeError::BadSpec(format!(
                "the {} as described makes no sense: {error}",
                self.what
            ))
        })
    }

    /// Waits for one word.
    pub(crate) fn wait_for(&mut self, word: &str) -> Result<(), ServeError> {
        match self.line()? {
            Some(line) if line.trim() == word => Ok(()),
            Some(line) => Err(ServeError::BadSpec(format!(
                "the {} waits for \"{word}\", not \"{line}\"",
                self.what
            ))),
            None => Err(ServeError::BadSpec(format!(
                "standard input ended before it said \"{word}\""
            ))),
        }
    }

    /// Waits until the caller hangs up.
    pub(crate) fn wait_for_end(&mut self) -> Result<(), ServeError> {
        while self.line()?.is_some() {}
        Ok(())
    }

    /// Whether standard input has something to say, its end included; waits for it no longer than `patience`.
    pub(crate) fn called(&self, patience: Duration) -> bool {
        if !self.input.buffer().is_empty() {
            return true;
        }
        let stdin = io::stdin();
        let timeout = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        };
        let mut polled = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        // An interrupted look is repeated by the next one; one that is refused would be refused for ever.
        !matches!(
            poll(&mut polled, Some(&timeout)),
            Ok(0) | Err(rustix::io::Errno::INTR)
        )
    }

    /// Writes an answer.
    pub(crate) fn answer(&self, answer: &impl Serialize) -> Result<(), ServeError> {
        let mut line = serde_json::to_vec(answer)
            .map_err(|error| ServeError::refused("writing an answer", error))?;
        line.push(b'\n');
        let mut output = io::stdout().lock();
        output
            .write_all(&line)
            .and_then(|()| output.flush())
            .map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => ServeError::Unheard,
                _ => ServeError::refused("writing an answer", error),
            })
    }

    /// The next line; none at the end.
    pub(crate) fn line(&mut self) -> Result<Option<String>, ServeError> {
        let mut line = String::new();
        match (&mut self.input).take(LONGEST_LINE).read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) if !line.ends_with('\n') && line.len() as u64 >= LONGEST_LINE => {
                Err(ServeError::BadSpec(format!(
                    "a line on standard input is longer than {LONGEST_LINE} bytes"
                )))
            }
            Ok(_) => Ok(Some(line.trim_end().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(ServeError::BadSpec(
                "standard input holds something else than text".to_owned(),
            )),
            Err(error) => Err(ServeError::refused("reading standard input", error)),
        }
    }
}
