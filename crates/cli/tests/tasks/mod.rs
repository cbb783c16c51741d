//! Tasks that wait, services and who manages them, and the nodes and control groups that the machine has for them.

#![allow(dead_code, reason = "each of two programs uses some of it")]

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub use crate::harness::Owned;

/// Far more than anything takes that is waited for; a test that waits without end says nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with CPUs.
pub fn node() -> String {
    let with_cpus = fs::read_to_string("/sys/devices/system/node/has_cpu").unwrap_or_default();
    let first = with_cpus.split([',', '-', '\n']).next().unwrap_or_default();
    if first.is_empty() {
        "0".to_owned()
    } else {
        first.to_owned()
    }
}

/// The directory of a new control group of this name; `None`, having said why, where there can be none.
pub fn control_group(name: &str) -> Option<PathBuf> {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let Some(root) = roots
        .into_iter()
        .find(|root| root.join("cgroup.procs").exists())
    else {
        println!("skipped: kernel: no control groups of version 2 here");
        return None;
    };
    let group = root.join(name);
    match fs::create_dir(&group) {
        Ok(()) => Some(group),
        Err(error) => {
            println!("skipped: root: no control group can be made: {error}");
            None
        }
    }
}

/// A process that waits until it is dropped.
pub struct Waiting(Owned);

impl Waiting {
    /// Of a program that copies its standard input.
    pub fn start(program: impl AsRef<OsStr>) -> Self {
        Self(Owned(
            Command::new(program)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        ))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The line of its status that says on which CPUs it may run.
    pub fn allowed(&self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"))
            .unwrap()
            .to_owned()
    }
}

/// The manager of a service: the socket at which the service reports its state (sd_notify(3)).
pub struct Manager(UnixDatagram);

impl Manager {
    /// Of the service that this command starts, with its socket in this directory.
    pub fn of(service: &mut Command, directory: &Path) -> Self {
        let socket = directory.join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        service.env("NOTIFY_SOCKET", socket);
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(manager)
    }

    /// Waits for the next message, which has to be this one.
    pub fn receives(&self, expected: &str) {
        let mut word = [0; 64];
        let length = loop {
            match self.0.recv(&mut word) {
                // A child of another test has ended, and the thread that started it held back the signal for a moment: in a
                // wait with a limit that is an error (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                heard => {
                    break heard.unwrap_or_else(|error| {
                        panic!("the service does not send {expected}: {error}")
                    });
                }
            }
        };
        assert_eq!(String::from_utf8_lossy(&word[..length]), expected);
    }
}
