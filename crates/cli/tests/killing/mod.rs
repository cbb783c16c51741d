//! Killing a run of nearfar, its guard, or what it started.

use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

/// Kills it and waits for it.
pub fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Kills a process that may have ended.
pub fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// Kills the guard of a run, a child of it.
pub fn kill_guards(pid: u32) {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    for child in children.unwrap_or_default().split_whitespace() {
        let command = std::fs::read_to_string(format!("/proc/{child}/cmdline"));
        if command.is_ok_and(|command| command.contains("lease-guard")) {
            kill(child.parse().unwrap());
        }
    }
}
