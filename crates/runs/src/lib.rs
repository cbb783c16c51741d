//! Stored runs: what an experiment found, with everything needed to trust it years later, in one SQLite file.
//!
//! ```text
//!  experiment ──► Store::begin ─► add_sample ─► add_sample ─► ... ─► finish      each one durable when it returns
//!                   │                                                             run ──┬── detail (parameters, plan)
//!                   └── Store::resume (what was interrupted)                            ├── sample, sample, ...
//!                                                                                       └── machine (shared, compressed)
//!  Store::{list, run, samples, machine, remove} ──► report
//!  Store::export ──► export::{Table ──► CSV, Parquet} or Exported (JSON, with the machine) ──► Store::import
//! ```
//!
//! Knows nothing of what was measured: a sample is a cell (factor to level), one main value in seconds, and whatever
//! JSON the experiment made of it. Does not run, order or judge anything.

mod cell;
mod error;
pub mod export;
mod host;
mod run;
mod store;
mod summary;

pub use cell::{Cell, Factor, Level};
pub use error::StoreError;
pub use host::{Host, Owner};
pub use run::{
    Detail, Ending, Filter, NewRun, NewSample, Run, RunId, RunState, Sample, Taken, now_s,
};
pub use store::{Journal, Removed, Store, default_path};
pub use summary::{CellSummary, Counted, counted, summarise};
