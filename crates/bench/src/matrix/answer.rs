//! The answer of a run: a pure function of its parameters and of the samples that were kept.

use nearfar_machine::NodeId;
use nearfar_runs::Counted;
use serde::{Deserialize, Serialize};

use super::cell::MatrixCell;
use super::choose::LeftOut;
use super::findings::{Findings, findings};
use super::sample::Taken;
use super::summary::{Row, doubts, rows};
use crate::probe::Pattern;

/// What is the same for all cells of a run. A run can only be continued with the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Parameters {
    /// How the buffer is gone through.
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
    /// The cells.
    #[serde(default)]
    pub cells: Vec<MatrixCell>,
    /// What the matrix lacks on this machine, or with what this user may do.
    pub left_out: Vec<LeftOut>,
}

/// A file of the kernel and what it says during the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelSetting {
    /// Its path.
    pub path: String,
    /// What is written to it.
    pub value: String,
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The stored run's name; `null` where it was not stored.
    pub run: Option<String>,
    /// What was the same for all cells.
    pub parameters: Parameters,
    /// The cells summed up, in the published order.
    pub rows: Vec<Row>,
    /// What they say together.
    pub findings: Findings,
    /// What was wrong with samples.
    pub doubts: Vec<Counted>,
    /// How many samples each cell should have.
    pub samples_wanted: u32,
    /// The label that every figure of an emulated machine carries.
    pub emulated: Option<String>,
}

impl Answer {
    /// Of the samples that there are, complete or not.
    pub fn new(parameters: Parameters, taken: &[Taken], samples_wanted: u32, emulated: Option<String>) -> Self {
        Self {
            run: None,
            rows: rows(&parameters.cells, taken),
            findings: findings(&parameters.cells, taken),
            doubts: doubts(taken),
            parameters,
            samples_wanted,
            emulated,
        }
    }

    /// Samples that are there, and that should be.
    pub fn progress(&self) -> (usize, usize) {
        let there = self.rows.iter().map(|row| row.seconds.as_ref().map_or(0, |seconds| seconds.samples.len())).sum();
        (there, self.rows.len() * self.samples_wanted as usize)
    }
}
