//! The tasks of a group and of the groups below it, and how long they ran and waited.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use nearfar_machine::CpuSet;
use nearfar_proc::{RunTime, tasks};

use super::{CgroupError, file_error};

/// A group and all below it, itself first.
///
/// # Errors
/// When a directory cannot be read; one that has just gone is left out.
pub fn below(group: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = vec![group.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        next += 1;
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound && next > 1 => continue,
            Err(error) => return Err(file_error(directory, &error)),
        };
        let directories = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        found.extend(directories.map(|entry| entry.path()));
    }
    Ok(found)
}

/// The threads of a group and of all below it, of either version of control groups.
///
/// # Errors
/// When the group itself cannot be read.
pub fn threads(group: &Path) -> Result<Vec<i32>, CgroupError> {
    listed(group, &["cgroup.threads", "tasks"])
}

/// The processes of a group and of all below it.
///
/// # Errors
/// When the group itself cannot be read.
pub fn processes(group: &Path) -> Result<Vec<i32>, CgroupError> {
    listed(group, &["cgroup.procs"])
}

fn listed(group: &Path, files: &[&str]) -> Result<Vec<i32>, CgroupError> {
    let mut numbers = Vec::new();
    for directory in below(group)? {
        match first_there(&directory, files) {
            Ok(text) => numbers.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
            // A group below may be gone by now, and those of a threaded subtree list processes only at its root.
            Err(error) if directory == group && error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                return Err(file_error(directory, &error));
            }
            Err(_) => {}
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The content of the first of these files that there is.
fn first_there(directory: &Path, files: &[&str]) -> io::Result<String> {
    let mut answer = Err(io::ErrorKind::NotFound.into());
    for file in files {
        answer = std::fs::read_to_string(directory.join(file));
        if !matches!(&answer, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    answer
}

/// What the threads of a group did between two looks, in nanoseconds over all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// On a CPU.
    pub run_ns: u64,
    /// Ready to run, without a CPU.
    pub wait_ns: u64,
    /// On a CPU, by threads that were last seen on a CPU that is not on the preferred node.
    pub away_ns: u64,
}

impl Span {
    /// The share of the time they wanted a CPU in which they had none; 0 where they wanted none.
    pub fn share_waiting(&self) -> f64 {
        match self.run_ns + self.wait_ns {
            0 => 0.0,
            wanted => self.wait_ns as f64 / wanted as f64,
        }
    }
}

/// What the threads of a group did until the last look.
#[derive(Debug, Default)]
pub struct TaskTimes {
    before: HashMap<i32, RunTime>,
}

impl TaskTimes {
    /// What the threads did since the last look, and with a `home` also how much of it away from there. A thread that is
    /// new since then does not count yet.
    ///
    /// # Errors
    /// When the group cannot be read.
    pub fn since_last(&mut self, group: &Path, home: Option<&CpuSet>) -> Result<Span, CgroupError> {
        let mut span = Span::default();
        let mut now = HashMap::with_capacity(self.before.len());
        for tid in threads(group)? {
            let Ok(time) = tasks::run_time(tid) else {
                continue;
            };
            if let Some(before) = self.before.get(&tid) {
                let ran = time.run_ns.saturating_sub(before.run_ns);
                span.run_ns += ran;
                span.wait_ns += time.wait_ns.saturating_sub(before.wait_ns);
                let last_cpu = || tasks::stat(tid).ok()?.cpu;
                let is_away = |home: &CpuSet| last_cpu().is_some_and(|cpu| !home.contains(cpu));
                if ran > 0 && home.is_some_and(is_away) {
                    span.away_ns += ran;
                }
            }
            now.insert(tid, time);
        }
        self.before = now;
        Ok(span)
    }
}
