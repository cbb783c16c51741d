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
//! Knows nothing of what was measured: a sample is a cell (factor to level), the values of the metrics that its
//! experiment declares, and whatever JSON the experiment made of it. Does not run, order or judge anything.

#![allow(
    missing_docs,
    reason = "a plain field is documented where its name does not say enough"
)]

mod cell;
pub mod export;
mod foreign;
mod metric;
mod run;
mod store;
mod summary;

pub use cell::{Cell, Factor, Level};
pub use metric::{
    Better, Histogram, Metric, MetricError, MetricKind, MetricValue, Quantiles, Values,
    check_metrics, check_values, metric_name, primary,
};
pub use run::{
    Detail, Ending, Filter, Host, NewRun, NewSample, Owner, ROUNDS_PER_BLOCK, Run, RunId,
    RunIdError, RunState, RunTarget, Sample, SampleResult, UNTIL_CLEAR, now_s, utc_date,
};
pub use store::{Journal, Removed, Store, StoreError, default_path};
pub use summary::{CellSummary, Counted, MetricSummary, counted, summarise};
