//! The child's side: a spec is read, words are waited for, answers are written.

use std::ffi::CString;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
    fn line(&mut self) -> Result<Option<String>, ServeError> {
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
