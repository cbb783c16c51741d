//! Tags handed out to near and far workers: what the samples of `nearfar bench tags` say.
//!
//! ```text
//! plan ────► scenarios    near-low, near-high, far-low, far-high, alone: cells that differ in the policy only
//! samples ─► findings     is one policy better than another in a scenario? (nearfar-statistics, paired by round)
//! CSV ─────► published    figures of others, and whether they rank the cells the same way
//! ```

pub mod findings;
pub mod published;
mod scenario;

pub use findings::{Findings, findings};
pub use published::{Agreement, Published, PublishedError, agreement};
pub use scenario::{ALONE, DEPTH, DISTANCE, POLICY, Scenario, scenarios};

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "tags";

/// The primary metric.
pub const OPERATIONS: &str = "operations_per_s";
/// The share of the workers' CPU time that was the kernel's, 0 to 1.
pub const SYSTEM_SHARE: &str = "system_share";
