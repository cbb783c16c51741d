//! The system that a run is made on, and the process that makes it.

use std::fs;

use nearfar_proc::{system, tasks};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    /// Kernel release, `6.12.0-1-amd64`.
    pub kernel: String,
    /// Version of the kernel's build (`uname -v`).
    pub kernel_version: String,
    /// The kernel's command line; empty where it cannot be read.
    pub kernel_command_line: String,
}

impl Host {
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        Self {
            name: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            kernel_version: uname.version().to_string_lossy().into_owned(),
            kernel_command_line: fs::read_to_string("/proc/cmdline")
                .map_or_else(|_| String::new(), |t| t.trim().to_owned()),
        }
    }
}

/// A process, told apart from every other that had or will have its number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The process number, as it sees it itself.
    pub pid: i32,
    /// When it started, in clock ticks after the boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)).
    pub started_ticks: u64,
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The process number space (`/proc/self/ns/pid`), which differs between containers of one boot.
    pub pid_namespace: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alive {
    Yes,
    No,
    /// It is, or was, on another host or in another container.
    CannotTell,
}

impl Owner {
    pub fn this_process() -> Self {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self {
            pid,
            started_ticks: started_ticks(pid).unwrap_or(0),
            boot: system::boot_id().unwrap_or_default(),
            pid_namespace: system::pid_namespace().unwrap_or_default(),
        }
    }

    /// Whether that process, of a host of this name, still runs, seen from `here` by `us`.
    pub(crate) fn alive(&self, its_host: &str, here: &Host, us: &Self) -> Alive {
        if self.boot != us.boot {
            // The same name with another boot: restarted since. Another name: who knows.
            return if its_host == here.name {
                Alive::No
            } else {
                Alive::CannotTell
            };
        }
        if self.pid_namespace != us.pid_namespace {
            return Alive::CannotTell;
        }
        match started_ticks(self.pid) {
            Some(ticks) if ticks == self.started_ticks => Alive::Yes,
            _ => Alive::No,
        }
    }
}

/// When a process started; `None` when it is gone, or dead and only waited for.
fn started_ticks(pid: i32) -> Option<u64> {
    let stat = tasks::stat(pid).ok()?;
    (!stat.is_ended()).then_some(stat.id.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_another_with_its_number_is_not() {
        let here = Host::here();
        let this = Owner::this_process();
        let us = this.clone();
        assert_eq!(this.alive(&here.name, &here, &us), Alive::Yes);
        let earlier = Owner {
            started_ticks: this.started_ticks.wrapping_sub(1),
            ..this.clone()
        };
        assert_eq!(earlier.alive(&here.name, &here, &us), Alive::No);
        let before_the_boot = Owner {
            boot: "another".into(),
            ..this.clone()
        };
        assert_eq!(before_the_boot.alive(&here.name, &here, &us), Alive::No);
        assert_eq!(
            before_the_boot.alive("elsewhere", &here, &us),
            Alive::CannotTell
        );
        let in_a_container = Owner {
            pid_namespace: "pid:[1]".into(),
            ..this
        };
        assert_eq!(
            in_a_container.alive(&here.name, &here, &us),
            Alive::CannotTell
        );
    }
}
