//! The processes below this one, read from /proc.

use std::collections::BTreeMap;
use std::io::Read as _;

use nearfar_proc::{Comm, Stat, tasks};
use rustix::process::{Pid, Signal, kill_process};

/// A process as /proc describes it at one moment.
#[derive(Debug, Clone)]
pub struct Process {
    pid: i32,
    stat: Stat,
    /// Its short name, which a process that ended and was not waited for still has.
    name: Comm,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let (stat, name) = tasks::stat_with_name(pid).ok()?;
        Some(Self { pid, stat, name })
    }

    /// One line for a person: number, state, what it waits for in the kernel, command line.
    pub fn describe(&self) -> String {
        let text = |file: &str| {
            let mut content = Vec::new();
            let read = tasks::open(self.pid, file);
            // A process that ended meanwhile has nothing to show.
            let _ = read.and_then(|mut file| file.read_to_end(&mut content));
            String::from_utf8_lossy(&content)
                .replace('\0', " ")
                .trim()
                .to_owned()
        };
        let command = text("cmdline");
        let command = if command.is_empty() {
            format!("[{}]", self.name)
        } else {
            command
        };
        let line = format!(
            "process {} (state {}, {}): {command}",
            self.pid,
            self.stat.state,
            text("wchan")
        );
        line.chars().take(160).collect()
    }
}

/// The processes below this one that have not ended. This process is a subreaper, so a process whose parent ended is still
/// below it.
pub fn descendants() -> Vec<Process> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let all: BTreeMap<i32, Process> = tasks::processes()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Some((pid, Process::read(pid)?)))
        .collect();
    let is_below = |process: &&Process| {
        let mut parent = process.stat.parent;
        // The list is read while processes come and go, so a chain of parents may not end: no chain is longer than the list.
        for _ in 0..all.len() {
            match all.get(&parent) {
                _ if parent == own => return true,
                Some(above) => parent = above.stat.parent,
                None => return false,
            }
        }
        false
    };
    all.values()
        .filter(is_below)
        .filter(|process| !process.stat.is_ended())
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
