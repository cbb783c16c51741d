//! Questions to the host of a guest of the lab, asked from within the guest.
//!
//! ```text
//! guest: "ask ID counts" ───► /run/nearfar-lab/pipe/link ──► host
//!        "ok {...}"       ◄── pipe/answer.ID             ◄──
//! ```
//!
//! The same way as `nearfar-lab plug` asks. An answer takes some time, the same for each question of a kind.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};

/// Where the guest's agent has its pipes.
const PIPES: &str = "/run/nearfar-lab/pipe";
/// How long an answer may take. On a busy host, with 96 CPUs that are all busy, 20 s were too few.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks for it. The plugin in QEMU notices a question about time when a CPU of the guest becomes idle or wakes up, and an idle
/// guest may sleep for a second.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};
const LONGEST_ANSWER: usize = 1 << 20;

/// A question without the answer that was wanted.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("the host of the guest cannot be asked for {0:?}: {1}")]
    Ask(String, io::Error),
    #[error("the host of the guest did not answer {0:?} in time")]
    NoAnswer(String),
    #[error("the host of the guest has no answer to {0:?}: {1}")]
    Refused(String, String),
}

/// The host of a guest, which answers a line with a line.
#[derive(Debug)]
pub struct LabHost {
    pipes: PathBuf,
}

impl Default for LabHost {
    fn default() -> Self {
        Self {
            pipes: PIPES.into(),
        }
    }
}

impl LabHost {
    /// What follows `ok` in the answer.
    ///
    /// # Errors
    /// When the host cannot be asked, or answers anything else.
    pub fn ask(&self, question: &str) -> Result<String, AskError> {
        let answer = self.answer(question);
        let answer = answer.map_err(|error| AskError::Ask(question.to_owned(), error))?;
        let answer = answer.ok_or_else(|| AskError::NoAnswer(question.to_owned()))?;
        match answer.strip_prefix("ok") {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => Err(AskError::Refused(question.to_owned(), answer)),
        }
    }

    fn answer(&self, question: &str) -> io::Result<Option<String>> {
        let id = number();
        let answer = Answer::new(self.pipes.join(format!("answer.{id}")))?;
        // Opened for reading as well, which does not wait for the agent to have it open.
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mut link = File::from(open(self.pipes.join("link"), flags, Mode::empty())?);
        link.write_all(format!("ask {id} {question}\n").as_bytes())?;
        answer.line()
    }
}

/// A number of its own for each question: an answer that comes too late must not be that of the next one. The process's number, below
/// 2^22 (include/linux/threads.h), and a count.
fn number() -> u32 {
    static QUESTIONS: AtomicU32 = AtomicU32::new(0);
    let count = QUESTIONS.fetch_add(1, Ordering::Relaxed);
    (std::process::id() << 10) | (count % (1 << 10))
}

/// A pipe for an answer, removed when it is dropped.
struct Answer {
    path: PathBuf,
    pipe: File,
}

impl Answer {
    fn new(path: PathBuf) -> io::Result<Self> {
        remove(&path)?;
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &path, FileType::Fifo, mode, 0)?;
        // Open for writing as well: the agent's end does not wait for this one, and no end of file comes between.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe: OwnedFd = open(&path, flags, Mode::empty())?;
        Ok(Self {
            path,
            pipe: pipe.into(),
        })
    }

    fn line(mut self) -> io::Result<Option<String>> {
        let mut bytes = Vec::new();
        let end = Instant::now() + PATIENCE;
        while !bytes.ends_with(b"\n") && bytes.len() < LONGEST_ANSWER {
            let mut wait = [PollFd::new(&self.pipe, PollFlags::IN)];
            match poll(&mut wait, Some(&LOOK)) {
                Ok(0) if Instant::now() >= end => return Ok(None),
                Ok(0) => continue,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let mut piece = [0; 4096];
            let count = self.pipe.read(&mut piece)?;
            bytes.extend_from_slice(&piece[..count]);
        }
        Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    /// An agent with a host behind it that gives one answer.
    fn asked(answer: &'static str) -> Result<String, AskError> {
        let folder = tempfile::tempdir().unwrap();
        let pipes = folder.path().to_owned();
        mknodat(CWD, pipes.join("link"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let both = OFlags::RDWR | OFlags::CLOEXEC;
        let link = File::from(open(pipes.join("link"), both, Mode::empty()).unwrap());
        std::thread::scope(|scope| {
            let host = scope.spawn({
                let pipes = pipes.clone();
                move || {
                    let mut question = String::new();
                    BufReader::new(link).read_line(&mut question).unwrap();
                    let words: Vec<&str> = question.split_whitespace().collect();
                    let ["ask", id, "time", "host"] = words[..] else {
                        panic!("{question}");
                    };
                    std::fs::write(pipes.join(format!("answer.{id}")), answer).unwrap();
                }
            });
            let answer = LabHost { pipes }.ask("time host");
            host.join().unwrap();
            let files = std::fs::read_dir(folder.path()).unwrap();
            assert_eq!(files.count(), 1, "the pipe for the answer is left");
            answer
        })
    }

    #[test]
    fn the_answer_is_what_follows_ok() {
        assert_eq!(asked("ok\n").unwrap(), "");
        assert_eq!(
            asked("ok {\"same_node\":7}\n").unwrap(),
            "{\"same_node\":7}"
        );
    }

    #[test]
    fn what_the_host_says_instead_is_the_error() {
        let error = asked("delays are suspended\n").unwrap_err().to_string();
        assert!(
            error.ends_with("\"time host\": delays are suspended"),
            "{error}"
        );
    }
}
