//! The answer of a run: a pure function of its parameters and of the samples that were kept.

use nearfar_experiment::Change;
use nearfar_machine::{Known, NodeId};
use nearfar_runs::Counted;
use nearfar_statistics::Summary;
use serde::{Deserialize, Serialize};

use super::cell::MatrixCell;
use super::choose::LeftOut;
use super::findings::{Findings, findings};
use super::sample::Taken;
use super::summary::{Row, load_percent_had, rows, waited_share, warnings};
use crate::probe::Pattern;

/// The load has less than this part of what it gets next to the probe only where other tasks run, too.
const LEAST_HAD: f64 = 0.75;
/// Runs shorter than twenty periods of the load, in seconds, tell little of its share.
const LEAST_S: f64 = 0.2;
/// Waits of the probe beyond what the load makes, as a share of its time: this much the scheduler's turns may cause.
const MOST_MORE: f64 = 0.15;

/// What is the same for all cells of a run. A run can only be continued with the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Parameters {
    pub pattern: Pattern,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Rounds that one run times.
    pub counts: u32,
    /// Accesses in each round.
    pub steps: u64,
    /// Whether `steps` was found by a run that was to take this many seconds; `None` where it was given.
    pub calibrated_to_s: Option<f64>,
    /// The load on each CPU, in percent; 0 for none.
    pub load_percent: f64,
    /// Whether the buffer has huge pages.
    pub huge_pages: bool,
    /// Settings of the kernel that hold in every cell, with what they were set to.
    pub settings: Vec<KernelSetting>,
    /// Nodes that have CPUs: the load runs on these.
    pub nodes: Vec<NodeId>,
    #[serde(default)]
    pub cells: Vec<MatrixCell>,
    /// What the matrix lacks on this machine, or with what this user may do.
    pub left_out: Vec<LeftOut>,
}

/// A file of the kernel and what it says during the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelSetting {
    pub path: String,
    pub value: String,
}

impl KernelSetting {
    /// The change that makes it. One of a file that nearfar does not set is refused when it is made.
    pub(super) fn change(&self) -> Change {
        let value = self.value.clone();
        match self.path.strip_prefix("/sys/kernel/debug/sched/") {
            Some(name) => Change::SchedulerDebug {
                name: name.to_owned(),
                value,
            },
            None => Change::Sysctl {
                name: self.path.trim_start_matches("/proc/sys/").replace('/', "."),
                value,
            },
        }
    }
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    pub parameters: Parameters,
    /// The cells summed up, in the published order.
    pub rows: Vec<Row>,
    /// What they say together.
    pub findings: Findings,
    pub warnings: Vec<Counted>,
    /// The share of the CPUs that the load had, in percent: the median over the samples.
    pub load_percent_had: Known<f64>,
    /// The share of its time that the probe waited for a CPU, 0 to 1: the median over the samples.
    pub waited_share: Known<f64>,
}

impl Answer {
    /// Of the samples that there are, complete or not.
    pub fn new(parameters: Parameters, taken: &[Taken]) -> Self {
        Self {
            rows: rows(&parameters.cells, taken),
            findings: findings(&parameters.cells, taken),
            warnings: warnings(taken),
            load_percent_had: load_percent_had(taken),
            waited_share: waited_share(taken),
            parameters,
        }
    }

    /// Whether the machine had other work than the load and the probe, so that run times say less about placement. A load on
    /// a CPU of the probe gets half of it at most, and the probe waits for no more than that half. Of runs that are over within a
    /// few of the load's periods nothing is claimed.
    pub fn is_crowded(&self) -> bool {
        let seconds: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| Some(row.seconds.as_ref()?.median))
            .collect();
        if Summary::of(&seconds).is_none_or(|summary| summary.median < LEAST_S) {
            return false;
        }
        let most = self.parameters.load_percent.min(50.0);
        let short = self
            .load_percent_had
            .get()
            .is_some_and(|had| *had < LEAST_HAD * most);
        short
            || self
                .waited_share
                .get()
                .is_some_and(|share| *share > most / 100.0 + MOST_MORE)
    }
}
