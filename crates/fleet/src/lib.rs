//! One verb on many hosts, their answers as one dataset, and which host differs from those that should be like it.
//!
//! ```text
//!  hosts ──► carry_out ──► Engine (slurm, ssh, local) ──► HostResult, one file a host     Folder
//!                                                              │
//!                                                              ▼ collect
//!                                                         facts, findings, samples        Dataset (Parquet)
//!                                                              │
//!                                                              ▼ survey
//!                                                         groups, deviations ──► report
//! ```
//!
//! What is measured, and how, is known to the verb that ran on the host. What is unusual is decided here: facts by majority, measurements
//! by `nearfar_statistics::outliers`.
//!
//! [`rollout`] changes hosts by the same way: canaries first, each host measured before and after, undone where one gets worse.

#![allow(
    missing_docs,
    reason = "a plain field is documented where its name does not say enough"
)]

mod carry_out;
pub mod dataset;
pub mod engine;
pub mod facts;
mod folder;
mod hosts;
mod result;
pub mod rollout;
pub mod survey;

pub use carry_out::{FleetError, HostReason, OnCancel, Summary, carry_out};
pub use folder::{
    Event, Folder, FolderError, FolderLock, HostEvent, Manifest, SCHEMA, Step, new_id,
};
pub use hosts::{HostError, HostName, parse_hosts, some_of};
pub use result::{Ended, HostResult, ResultError, SCHEMA as RESULT_SCHEMA};
