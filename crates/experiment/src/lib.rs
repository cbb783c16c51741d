//! The frame of every experiment: an experiment declares what it varies and how one sample is taken, the frame does
//! the rest.
//!
//! ```text
//!                 round 1              round 2         every cell once a round, each round in a fresh random order:
//!  cells A B C    B  A  C       C  B  A  ...           what disturbs the machine for a while disturbs all cells
//!                 │
//!                 ├─ settings of the cell, where they are not so already (a lease: undone whatever happens)
//!                 ├─ in a guest of simulated time: that begins here, and ends after the sample
//!                 ├─ Experiment::setup_cell: servers, files, devices, in a lease as well
//!                 ├─ Experiment::run ─► sample, or why there is none; a trace that this runs under counts meanwhile only
//!                 ├─ Store::add_sample: on disk before the next one begins
//!                 └─ progress, with an estimate from what samples took so far
//! ```
//!
//! An interrupted run is found again by its experiment, parameters and machine, and continued with what is missing.
//! Knows nothing of what is measured, and draws nothing.

mod ahead;
mod carry_out;
mod experiment;
mod guest_time;
mod lab;
pub mod progress;
mod recording;
pub mod sampler;
mod settings;
mod target;
pub mod traced;

pub use ahead::{Ahead, Take};
pub use carry_out::{DISTURBS, Options, Resume, carry_out, carry_out_with};
pub use experiment::{
    BoxError, Column, Ended, Experiment, ExperimentError, Outcome, RunPlan, Sampled, Settled,
    metrics, values,
};
pub use guest_time::unmeasured;
pub use lab::{AskError, LabHost};
pub use nearfar_change::Change;
pub use nearfar_change::lease::Process;
pub use nearfar_runs::{
    Better, Cell, CellSummary, Factor, Histogram, Level, Metric, MetricKind, MetricValue, RunId,
    RunTarget, Values,
};
pub use recording::{Recording, fingerprint, stored_result};
pub use settings::{Leased, Resources, Settings};
pub use target::{OnTargets, Target, TargetError, TargetOutput, Targets, TookOnTarget};
