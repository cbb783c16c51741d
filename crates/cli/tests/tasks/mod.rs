//! Tasks that wait, and the nodes and control groups that the machine has for them.

#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A node with CPUs.
pub fn node() -> String {
    let with_cpus = fs::read_to_string("/sys/devices/system/node/has_cpu").unwrap_or_default();
    let first = with_cpus.split([',', '-', '\n']).next().unwrap_or_default();
    if first.is_empty() { "0".to_owned() } else { first.to_owned() }
}

/// The directory of a new control group of this name; `None`, having said why, where there can be none.
pub fn control_group(name: &str) -> Option<PathBuf> {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let Some(root) = roots.into_iter().find(|root| root.join("cgroup.procs").exists()) else {
        println!("skipped: no control groups of version 2 here");
        return None;
    };
    let group = root.join(name);
    match fs::create_dir(&group) {
        Ok(()) => Some(group),
        Err(error) => {
            println!("skipped: no control group can be made: {error}");
            None
        }
    }
}

/// A process that waits until it is dropped.
pub struct Waiting(Child);

impl Waiting {
    /// Of a program that copies its standard input.
    pub fn start(program: impl AsRef<OsStr>) -> Self {
        Self(Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The line of its status that says on which CPUs it may run.
    pub fn allowed(&self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
