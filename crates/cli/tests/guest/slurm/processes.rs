//! The processes of a cluster, found by their environment: those of jobs have parents and sessions of their own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};

pub struct Process {
    pid: Pid,
    environment: Vec<u8>,
}

impl Process {
    /// A process that has ended has no environment, also before its parent has waited for it.
    fn read(pid: Pid) -> Option<Self> {
        let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        environment
            .ok()
            .map(|environment| Self { pid, environment })
    }

    /// Whether it was started with this variable.
    pub fn has(&self, name: &str, value: impl AsRef<OsStr>) -> bool {
        let wanted = [name.as_bytes(), b"=", value.as_ref().as_bytes()].concat();
        self.environment
            .split(|byte| *byte == 0)
            .any(|word| word == wanted)
    }

    /// Whether its program's name begins with this.
    pub fn runs(&self, program: &str) -> bool {
        let file = format!("/proc/{}/comm", self.pid.as_raw_nonzero());
        std::fs::read_to_string(file).is_ok_and(|name| name.starts_with(program))
    }

    pub fn is_in(&self, directory: &Path) -> bool {
        let link = format!("/proc/{}/cwd", self.pid.as_raw_nonzero());
        std::fs::read_link(link).is_ok_and(|target| target == directory)
    }
}

/// Kills all such processes and waits for their end, also of those that they start meanwhile. All are stopped before the first
/// is killed, so that none reports the end of another.
pub fn kill_all(is_meant: impl Fn(&Process) -> bool) {
    loop {
        let found = find(&is_meant);
        if found.is_empty() {
            return;
        }
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &found {
                // It may have ended.
                let _ = kill_process(*pid, signal);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether there is such a process.
pub fn is_any(is_meant: impl Fn(&Process) -> bool) -> bool {
    !find(is_meant).is_empty()
}

fn find(is_meant: impl Fn(&Process) -> bool) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(|pid| *pid != getpid())
        .filter_map(Process::read)
        .filter(is_meant)
        .map(|process| process.pid)
        .collect()
}
