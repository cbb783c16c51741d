//! The lines that the guest's agent and we exchange in addition to a command's own bytes, and the answers to questions of programs in
//! the guest.
//!
//! | question | answer |
//! |---|---|
//! | `plug DEVICE [node=N]` | `ok` once QEMU has the device; `ok NAME` for one that drmgr has to configure |
//! | `plugged` | `ok`; delays, which ended for the plug, begin again |
//! | `time simulated`, `time host` | `ok` once simulated time has begun, or has ended |
//! | `counts` | `ok` and the line transfers of all vCPUs so far, as JSON ([`Transfers`]) |
//! | `lines` | `ok` and the number of this moment |
//! | `lines NUMBER` | `ok` and the line transfers since then by instruction and line, as JSON; once |
//!
//! Any other answer says why there is none of these.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;

use crate::delay::{Counts, DelayRegion};
use crate::guest::Guest;

/// What the agent says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Its kernel and first root are up; it waits for its settings.
    Booted,
    /// The CPUs whose timer did not interrupt while it was looked at, as a list, `1,3,`; empty when all are well.
    Ticks(String),
    /// It wants the time and random numbers.
    Clock,
    /// It has the host's files, the devices and the ports.
    Ready,
    /// The answer to [`Link::ping`], with its number.
    Pong(u64),
    /// A command runs, in this process group.
    Started {
        /// Our number of the command.
        id: u64,
        /// Its process group in the guest.
        group: u32,
    },
    /// A command ended, with a shell's code: 128 and the signal's number for one that a signal ended.
    Exit {
        /// Our number of the command.
        id: u64,
        /// The code.
        code: i32,
    },
    /// A program in the guest asks the host for something (`plug nvme node=1`) and waits for the answer.
    Ask {
        /// The asker's number of the question.
        id: u32,
        /// What is asked for.
        words: String,
    },
}

impl Message {
    fn parse(line: &str) -> Option<Self> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(match verb {
            "booted" => Self::Booted,
            "ticks" => Self::Ticks(rest.to_owned()),
            "clock" => Self::Clock,
            "ready" => Self::Ready,
            "pong" => Self::Pong(first.parse().ok()?),
            "started" => Self::Started {
                id: first.parse().ok()?,
                group: second.parse().ok()?,
            },
            "exit" => Self::Exit {
                id: first.parse().ok()?,
                code: second.parse().ok()?,
            },
            "ask" => Self::Ask {
                id: first.parse().ok()?,
                words: second.to_owned(),
            },
            _ => return None,
        })
    }
}

/// What the agent does before it answers a ping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeforePong {
    Nothing,
    /// Has a process sleep on each CPU.
    Timers,
    /// Prints on the console what each process waits for.
    Tasks,
}

/// The link, our end.
#[derive(Debug)]
pub struct Link {
    socket: UnixStream,
    unfinished: Vec<u8>,
    heard: VecDeque<Message>,
}

/// Longer lines are dropped.
const LONGEST: usize = 4096;

impl Link {
    /// A link over this socket.
    pub fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            unfinished: Vec::new(),
            heard: VecDeque::new(),
        }
    }

    /// What to poll before [`Self::read`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads once, which waits if there is nothing. `false` when the guest is gone.
    pub fn read(&mut self) -> bool {
        let mut bytes = [0; 1024];
        let count = match self.socket.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == io::ErrorKind::Interrupted,
        };
        self.unfinished.extend_from_slice(&bytes[..count]);
        while let Some(at) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<_> = self.unfinished.drain(..=at).collect();
            // Anything in the guest can write here; what is not ours is passed over.
            self.heard
                .extend(Message::parse(String::from_utf8_lossy(&line).trim_end()));
        }
        if self.unfinished.len() > LONGEST {
            self.unfinished.clear();
        }
        true
    }

    /// The next thing said that was read already.
    pub fn next(&mut self) -> Option<Message> {
        self.heard.pop_front()
    }

    /// Passes a signal to a process group of the guest.
    pub fn signal(&mut self, name: &str, group: u32) -> io::Result<()> {
        self.say(&format!("kill {name} {group}"))
    }

    /// Gives the guest's terminal this size.
    pub fn resize(&mut self, (rows, columns): (u16, u16)) -> io::Result<()> {
        self.say(&format!("size {rows} {columns}"))
    }

    /// Asks the agent for a sign of life, once it has done this.
    pub fn ping(&mut self, number: u64, before: BeforePong) -> io::Result<()> {
        let before = match before {
            BeforePong::Nothing => "",
            BeforePong::Timers => " timers",
            BeforePong::Tasks => " tasks",
        };
        self.say(&format!("ping {number}{before}"))
    }

    /// Answers a question.
    pub fn answer(&mut self, id: u32, text: &str) -> io::Result<()> {
        self.say(&format!("answer {id} {}", text.replace(['\n', '\r'], " ")))
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        self.socket.write_all(format!("{line}\n").as_bytes())
    }
}

/// Line transfers of all vCPUs since the guest started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Transfers {
    same_node: u64,
    other_node: u64,
}

impl Transfers {
    fn of(counts: &Counts) -> Self {
        let mut sum = Self {
            same_node: 0,
            other_node: 0,
        };
        for vcpu in &counts.vcpus {
            sum.same_node += vcpu.transfers_same_node;
            sum.other_node += vcpu.transfers_other_node;
        }
        sum
    }
}

/// As many programs of a guest trace lines at once.
const MOST_MARKS: usize = 16;

/// `ok` and a value without anything that JSON cannot have.
fn json(value: &impl Serialize) -> String {
    format!("ok {}", serde_json::to_string(value).unwrap_or_default())
}

impl Guest {
    /// What counts, while it does.
    fn counting(&self) -> Result<&DelayRegion, String> {
        let delays = self.delays.as_deref();
        let delays = delays.ok_or("the guest has no delays, so nothing is counted")?;
        match delays.is_counting() {
            true => Ok(delays),
            false => Err("delays are suspended, so nothing is counted".to_owned()),
        }
    }

    /// Keeps the transfers so far for a later question, under a number.
    fn mark(&mut self) -> Result<u64, String> {
        let delays = self.counting()?;
        if self.marks.is_empty() {
            delays.begin_transfers();
        }
        let table = delays.transfers();
        let number = self.marks.keys().next_back().map_or(0, |last| last + 1);
        self.marks.insert(number, table);
        if self.marks.len() > MOST_MARKS {
            // Who asked for it has ended without a question.
            self.marks.pop_first();
        }
        Ok(number)
    }

    /// Answers a question. The guest gets the text of an error, too.
    pub(super) fn answer(&mut self, words: &str) -> Result<String, String> {
        let ok = || "ok".to_owned();
        match words {
            "plugged" => {
                self.resume_delays(false)?;
                Ok(ok())
            }
            "time simulated" | "time host" => {
                let delays = self.delays.as_ref().filter(|delays| delays.is_simulated());
                let delays = delays.ok_or("the guest follows the host's time")?;
                match delays.switch(words == "time simulated") {
                    true => Ok(ok()),
                    false => Err(
                        "the guest's CPUs did not reach a point where its time can change"
                            .to_owned(),
                    ),
                }
            }
            "counts" => Ok(json(&Transfers::of(&self.counting()?.counts()))),
            "lines" => Ok(format!("ok {}", self.mark()?)),
            _ if let Some(number) = words.strip_prefix("lines ") => {
                let mark = number.parse().ok().and_then(|it| self.marks.remove(&it));
                let mark = mark.ok_or_else(|| format!("{words}: there is no such moment"))?;
                let delays = self.counting()?;
                let transfers = delays.transfers();
                if self.marks.is_empty() {
                    delays.end_transfers();
                }
                Ok(json(&transfers.since(&mark).answer()))
            }
            _ => {
                let plug = words.strip_prefix("plug ");
                let plug =
                    plug.ok_or_else(|| format!("{words}: not something that can be asked for"))?;
                let name = self.plug(plug.parse()?)?;
                Ok(name.map_or_else(ok, |name| format!("ok {name}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delay::VcpuCounts;

    #[test]
    fn lines_are_heard_in_order_however_they_arrive_and_foreign_ones_are_passed_over() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let mut link = Link::new(ours);
        for piece in [
            "rea",
            "dy\nstarted 1",
            " 77\nnonsense\nexit 1 x\nask 5 plug nvme node=1\nexit 1 137\n",
        ] {
            theirs.write_all(piece.as_bytes()).expect("room");
            assert!(link.read());
        }
        let said: Vec<_> = std::iter::from_fn(|| link.next()).collect();
        let ask = Message::Ask {
            id: 5,
            words: "plug nvme node=1".to_owned(),
        };
        assert_eq!(
            said,
            [
                Message::Ready,
                Message::Started { id: 1, group: 77 },
                ask,
                Message::Exit { id: 1, code: 137 }
            ]
        );
        drop(theirs);
        assert!(!link.read());
    }

    #[test]
    fn transfers_are_those_of_all_vcpus() {
        let vcpu = |same_node, other_node| VcpuCounts {
            transfers_same_node: same_node,
            transfers_other_node: other_node,
            ..VcpuCounts::default()
        };
        let counts = Counts {
            vcpus: vec![vcpu(1, 20), vcpu(3, 40)],
            ..Counts::default()
        };
        let sum = Transfers {
            same_node: 4,
            other_node: 60,
        };
        assert_eq!(Transfers::of(&counts), sum);
        // The keys that `bench tags` reads in the guest.
        let json = serde_json::to_string(&sum).unwrap();
        assert_eq!(json, r#"{"same_node":4,"other_node":60}"#);
    }
}
