//! What is asked of a load on one CPU, and what it achieved.

use nearfar_machine::CpuId;
use serde::{Deserialize, Serialize};

/// The specification of one process of the load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// The CPU to burn.
    pub cpu: CpuId,
    /// How much of it, 0 to 99.
    pub percent: f64,
    /// Seconds a period.
    #[serde(default = "usual_period")]
    pub period_s: f64,
    /// Of phase and lengths; processes with different seeds do not march in step.
    #[serde(default)]
    pub seed: u64,
}

/// Ten milliseconds: long against a wake-up, short against what a load balancer averages over.
fn usual_period() -> f64 {
    0.01
}

impl LoadSpec {
    /// A load with the usual period and a seed of its own.
    pub(super) fn new(cpu: CpuId, percent: f64) -> Self {
        Self {
            cpu,
            percent,
            period_s: usual_period(),
            seed: u64::from(cpu.0) + 1,
        }
    }

    pub(super) fn check(&self) -> Result<(), LoadError> {
        match () {
            // NaN is in no range.
            () if !(0.0..=99.0).contains(&self.percent) => Err(LoadError::Percent(self.percent)),
            () if !(0.0005..=1.0).contains(&self.period_s) => Err(LoadError::Period(self.period_s)),
            () => Ok(()),
        }
    }
}

/// What is asked of a load that no CPU can do.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("a load of {0} % cannot be had: give 0 to 99")]
    Percent(f64),
    #[error("a period of {0} s is too short or too long: give 0.0005 to 1")]
    Period(f64),
}

/// What the load on each CPU achieved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// What was asked for, in percent of each CPU.
    pub percent: f64,
    /// By CPU, ascending.
    pub cpus: Vec<LoadOnCpu>,
}

impl LoadReport {
    /// The CPU whose share over the whole time is farthest from what was asked for.
    pub fn farthest(&self) -> Option<&LoadOnCpu> {
        let off = |load: &LoadOnCpu| (load.achieved_percent - self.percent).abs();
        self.cpus.iter().max_by(|a, b| off(a).total_cmp(&off(b)))
    }
}

/// What the load on one CPU achieved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadOnCpu {
    pub cpu: CpuId,
    pub pid: i32,
    /// Seconds it ran for.
    pub seconds: f64,
    /// CPU time it had in that time, in percent of it.
    pub achieved_percent: f64,
    /// Whole seconds that were looked at one by one.
    pub whole_seconds: u32,
    /// How far the worst of them was from what was asked for, in percent of a CPU; `None` before one is over.
    pub worst_second_off: Option<f64>,
    /// Seconds of CPU time it gave up on, because the CPU was taken.
    pub given_up_s: f64,
    /// Seconds that passed without it while it burned: another process ran, or the hypervisor ran another guest. The
    /// kernel of a guest counts the latter as CPU time of this process, so it can have had more than its share.
    pub stalled_s: f64,
}
