//! The caller's handle on a load.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use nearfar_machine::CpuSet;

use super::report::{LoadOnCpu, LoadReport, LoadSpec};
use crate::child::{Child, ChildError, DoneLine, ReadyLine};

/// A load that burns. Dropping it ends it. It stays on the thread that started it, with which it ends.
pub struct Load {
    percent: f64,
    children: Vec<Child>,
}

impl Load {
    /// Starts one process on each of `cpus` that burns `percent` (0 to 99) of it, and returns when all of them do.
    ///
    /// `program` is one that answers `bench child load`: `/proc/self/exe` from within nearfar.
    ///
    /// # Errors
    /// When the program cannot be started, a process cannot be pinned to its CPU, or the share is none.
    pub fn start(program: &Path, cpus: &CpuSet, percent: f64) -> Result<Self, ChildError> {
        let start = |cpu| Child::start(program, "load", &LoadSpec::new(cpu, percent));
        let mut children = cpus.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        for child in &mut children {
            let ReadyLine::<i32> { ready: _ } = child.listen(&AtomicBool::new(false))?;
        }
        Ok(Self { percent, children })
    }

    /// The processes that burn, by CPU.
    pub fn pids(&self) -> Vec<i32> {
        self.children.iter().map(Child::pid).collect()
    }

    /// Ends it and tells what it achieved.
    ///
    /// # Errors
    /// When one of the processes had ended before.
    pub fn stop(mut self) -> Result<LoadReport, ChildError> {
        // All at once, so that none goes on alone.
        self.children.iter_mut().for_each(Child::hang_up);
        let done = |child: &mut Child| {
            child
                .listen(&AtomicBool::new(false))
                .map(|DoneLine { done }| done)
        };
        let cpus = self
            .children
            .iter_mut()
            .map(done)
            .collect::<Result<Vec<LoadOnCpu>, _>>()?;
        Ok(LoadReport {
            percent: self.percent,
            cpus,
        })
    }
}
