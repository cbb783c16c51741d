//! What the lab's delay plugin counted, asked from within the guest.
//!
//! ```text
//! guest: "ask ID counts" ───► /run/nearfar-lab/pipe/link ──► host: sums the plugin's counters
//!        "ok {...}"       ◄── pipe/answer.ID             ◄──
//! ```
//!
//! The same way as `nearfar-lab plug` asks. Both readings of an interval are late by the time that an answer takes, so their
//! difference is the count of an interval of that length.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nearfar_machine::Machine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde::{Deserialize, Serialize};

/// Where the guest's agent has its pipes.
const PIPES: &str = "/run/nearfar-lab/pipe";
/// How long an answer may take on a busy host.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_ANSWER: usize = 4096;

/// Line transfers of all vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LineTransfers {
    /// From another vCPU of the node.
    pub(crate) same_node: u64,
    /// From a vCPU of another node.
    pub(crate) other_node: u64,
}

/// Counts that cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CountsError {
    #[error("cannot ask the host for the counts of line transfers: {0}")]
    Ask(#[from] io::Error),
    #[error("the host did not answer within {} s", PATIENCE.as_secs())]
    NoAnswer,
    #[error("the host has no counts of line transfers: {0}")]
    Refused(String),
}

impl LineTransfers {
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            same_node: self.same_node.saturating_sub(before.same_node),
            other_node: self.other_node.saturating_sub(before.other_node),
        }
    }

    pub(crate) fn all(&self) -> u64 {
        self.same_node + self.other_node
    }
}

/// Asks the host of a guest.
pub(crate) struct LabCounts {
    pipes: PathBuf,
}

impl LabCounts {
    /// `None` on a machine that is not a guest with delays.
    pub(crate) fn of(machine: &Machine) -> Option<Self> {
        machine.origin.emulation.as_ref()?.delays()?;
        Some(Self {
            pipes: PIPES.into(),
        })
    }

    /// Line transfers since the guest started.
    ///
    /// # Errors
    /// When the host cannot be asked, or has no answer.
    pub(crate) fn transfers(&self) -> Result<LineTransfers, CountsError> {
        let id = question();
        let answer = Answer::new(self.pipes.join(format!("answer.{id}")))?;
        // Opened for reading as well, which does not wait for the agent to have it open.
        let link = open(
            self.pipes.join("link"),
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let mut link = File::from(link.map_err(io::Error::from)?);
        link.write_all(format!("ask {id} counts\n").as_bytes())?;
        let answer = answer.line()?;
        let json = answer.strip_prefix("ok ");
        let transfers = json.and_then(|json| serde_json::from_str(json).ok());
        transfers.ok_or(CountsError::Refused(answer))
    }
}

/// A number of its own for each question: an answer that comes too late must not be that of the next one. The process's number, below
/// 2^22 (include/linux/threads.h), and a count.
fn question() -> u32 {
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

    fn line(mut self) -> Result<String, CountsError> {
        let mut bytes = Vec::new();
        let patience = Timespec::try_from(PATIENCE).ok();
        while !bytes.ends_with(b"\n") && bytes.len() < LONGEST_ANSWER {
            let mut wait = [PollFd::new(&self.pipe, PollFlags::IN)];
            match poll(&mut wait, patience.as_ref()) {
                Ok(0) => return Err(CountsError::NoAnswer),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            }
            let mut piece = [0; 256];
            let count = self.pipe.read(&mut piece)?;
            bytes.extend_from_slice(&piece[..count]);
        }
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
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

    use nearfar_machine::{Origin, SourceKind};

    use super::*;

    /// An agent with a host behind it that gives one answer.
    fn asked(answer: &'static str) -> Result<LineTransfers, CountsError> {
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
                    let [verb, id, "counts"] = words[..] else {
                        panic!("{question}");
                    };
                    assert_eq!(verb, "ask");
                    std::fs::write(pipes.join(format!("answer.{id}")), answer).unwrap();
                }
            });
            let transfers = LabCounts { pipes }.transfers();
            host.join().unwrap();
            let files = std::fs::read_dir(folder.path()).unwrap();
            assert_eq!(files.count(), 1, "the pipe for the answer is left");
            transfers
        })
    }

    #[test]
    fn the_host_answers_with_both_counts() {
        let transfers = asked("ok {\"same_node\":7,\"other_node\":30}\n").unwrap();
        let before = LineTransfers {
            same_node: 5,
            other_node: 20,
        };
        assert_eq!(transfers.since(&before).all(), 12);
    }

    #[test]
    fn what_the_host_says_instead_is_the_error() {
        for answer in ["delays are suspended\n", "ok\n", "ok {\"same_node\":7}\n"] {
            let error = asked(answer).unwrap_err().to_string();
            assert!(error.ends_with(answer.trim_end()), "{error}");
        }
    }

    #[test]
    fn a_machine_without_delays_has_no_host_to_ask() {
        let machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        assert!(LabCounts::of(&machine).is_none());
    }
}
