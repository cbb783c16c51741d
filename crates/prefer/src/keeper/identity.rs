//! Which process is meant: a number is given to another process once its own has ended and was waited for.
//!
//! ```text
//! open (pidfd) ─► looked at, matched ─► adopted ─► still the same? ─ yes ─► kept
//!                                                                  └ no ──► masks back, refused
//! ```
//!
//! While a process lives, its number is its own: one that lives after it was adopted was the same all the time since it was
//! opened.

pub use nearfar_proc::OpenProcess;

use super::KeeperError;
use super::threads::ThreadMasks;

impl ThreadMasks {
    /// Takes in a process, if it is that one still when all its threads are narrow.
    pub(super) fn adopt_open(&mut self, process: &OpenProcess) -> Result<(), KeeperError> {
        let pid = process.pid();
        if !process.is_alive() {
            return Err(KeeperError::NoProcess { pid, ended: false });
        }
        self.adopt(pid, None)?;
        if process.is_alive() {
            return Ok(());
        }
        // The threads that were adopted under its number are another process's.
        self.let_go(pid);
        Err(KeeperError::NoProcess { pid, ended: false })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use nearfar_change::lease::Leases;
    use nearfar_machine::{CpuId, CpuSet, Machine, NodeId};
    use nearfar_proc::affinity;
    use nearfar_sources::{Request, Want};

    use super::super::KeeperOptions;
    use super::*;

    /// As if each of the first two CPUs were a node.
    fn machine() -> Machine {
        let sources = vec!["node:2 core:1 pu:1".to_owned()];
        nearfar_sources::read(&Request {
            sources,
            root: None,
            fake: None,
            want: Want::topology(),
        })
        .unwrap()
    }

    fn sleeping() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_another_process_lost_while_it_was_adopted_is_given_back() {
        let own = affinity::get(0).unwrap();
        if !own.contains(CpuId(0)) || !own.contains(CpuId(1)) {
            return println!(
                "skipped: cpus: CPUs 0 and 1 stand for two nodes, and this test may use {own}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let leases = Some(Leases::at(dir.path().join("leases")));
        let options = KeeperOptions {
            leases,
            ..KeeperOptions::default()
        };
        let mut kept = ThreadMasks::new(NodeId(0), &machine(), options).unwrap();
        let child = sleeping();
        let pid = child.id().cast_signed();
        kept.adopt(pid, None).unwrap();
        assert_eq!(affinity::get(pid).unwrap(), CpuSet::single(CpuId(0)));
        kept.let_go(pid);
        assert_eq!(affinity::get(pid).unwrap(), own);
        assert!(kept.processes.is_empty() && kept.threads.is_empty());
        end(child);
    }
}
