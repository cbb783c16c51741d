//! The processes below this one, read from /proc.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// A process as /proc describes it at one moment.
#[derive(Debug, Clone)]
pub struct Process {
    pid: i32,
    parent: i32,
    /// One letter, as in proc_pid_stat(5).
    state: char,
    /// Its short name, which a process that ended and was not waited for still has.
    name: String,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        // A name is any bytes: the kernel cuts it after 15, also within a character.
        Self::parse(
            pid,
            &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?),
        )
    }

    /// The name stands in parentheses and may contain any character, also `)`.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let mut fields = tail.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        Some(Self {
            pid,
            parent,
            state,
            name,
        })
    }

    fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    /// One line for a person: number, state, what it waits for in the kernel, command line.
    pub fn describe(&self) -> String {
        let read = |file: &str| fs::read(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        let text = |bytes: Vec<u8>| {
            String::from_utf8_lossy(&bytes)
                .replace('\0', " ")
                .trim()
                .to_owned()
        };
        let command = text(read("cmdline"));
        let command = if command.is_empty() {
            format!("[{}]", self.name)
        } else {
            command
        };
        let line = format!(
            "process {} (state {}, {}): {command}",
            self.pid,
            self.state,
            text(read("wchan"))
        );
        line.chars().take(160).collect()
    }
}

/// The processes below this one that have not ended. This process is a subreaper, so a process whose parent ended is still
/// below it.
pub fn descendants() -> Vec<Process> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: BTreeMap<i32, Process> = numbers
        .filter_map(|pid| Some((pid, Process::read(pid)?)))
        .collect();
    let is_below = |process: &&Process| {
        let mut parent = process.parent;
        // The list is read while processes come and go, so a chain of parents may not end: no chain is longer than the list.
        for _ in 0..all.len() {
            match all.get(&parent) {
                _ if parent == own => return true,
                Some(above) => parent = above.parent,
                None => return false,
            }
        }
        false
    };
    all.values()
        .filter(is_below)
        .filter(|process| process.is_alive())
        .cloned()
        .collect()
}

/// Sends SIGKILL to each.
pub fn kill(processes: &[Process]) {
    for pid in processes
        .iter()
        .filter_map(|process| Pid::from_raw(process.pid))
    {
        // It may have ended meanwhile, which is what is wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read() {
        let process = Process::parse(7, "7 (a) S (b) R 12 7 7 0").unwrap();
        assert_eq!(
            (process.name.as_str(), process.state, process.parent),
            ("a) S (b", 'R', 12)
        );
        assert!(Process::parse(7, "7 (a").is_none());
    }

    #[test]
    fn a_child_is_a_descendant_until_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let number = child.id().cast_signed();
        let found: Vec<_> = descendants()
            .into_iter()
            .filter(|process| process.pid == number)
            .collect();
        assert_eq!(found.len(), 1);
        kill(&found);
        child.wait().unwrap();
        assert!(!descendants().iter().any(|process| process.pid == number));
    }
}
