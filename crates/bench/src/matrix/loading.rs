//! The load of a run: started once, watched, started again if one of its processes died.

use std::path::PathBuf;
use std::time::Instant;

use nearfar_machine::{CpuSet, Known};
use nearfar_proc::tasks;

use crate::load::Load;
use crate::probe::ChildError;

/// The load on every CPU of a run.
pub(super) struct Loading {
    program: PathBuf,
    cpus: CpuSet,
    percent: f64,
    load: Option<Load>,
}

/// Where the load stood at a moment.
pub(super) struct Mark {
    at: Instant,
    /// Nanoseconds that all its processes have run.
    ran_ns: Option<u64>,
}

impl Loading {
    /// Nothing burns yet. A share of 0 never does.
    pub(super) fn new(program: PathBuf, cpus: CpuSet, percent: f64) -> Self {
        Self {
            program,
            cpus,
            percent,
            load: None,
        }
    }

    /// Sees to it that all of it burns.
    pub(super) fn keep_up(&mut self) -> Result<(), ChildError> {
        if self.percent <= 0.0
            || self
                .load
                .as_ref()
                .is_some_and(|load| load.pids().into_iter().all(tasks::is_alive))
        {
            return Ok(());
        }
        // The old one first: two at once would be twice the load.
        self.load = None;
        self.load = Some(Load::start(&self.program, &self.cpus, self.percent)?);
        Ok(())
    }

    /// Where it stands now.
    pub(super) fn mark(&self) -> Mark {
        let pids = self.load.as_ref().map(Load::pids).unwrap_or_default();
        Mark {
            at: Instant::now(),
            ran_ns: pids.into_iter().map(ran_ns).sum(),
        }
    }

    /// What share of a CPU it burned on average since then, in percent.
    pub(super) fn percent_since(&self, before: &Mark) -> Known<f64> {
        let now = self.mark();
        match (before.ran_ns, now.ran_ns) {
            (Some(before_ns), Some(now_ns)) if now_ns >= before_ns => {
                let all =
                    now.at.duration_since(before.at).as_secs_f64() * self.cpus.len().max(1) as f64;
                Known::Yes((now_ns - before_ns) as f64 / 1e9 / all.max(1e-9) * 100.0)
            }
            (Some(_), Some(_)) => Known::no("the load was started again meanwhile"),
            _ => Known::no("/proc/PID/schedstat of the load cannot be read"),
        }
    }
}

/// Nanoseconds on a CPU.
fn ran_ns(pid: i32) -> Option<u64> {
    Some(tasks::run_time(pid).ok()?.run_ns)
}
