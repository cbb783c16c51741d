//! Case 3: the tags of a device, taken by two groups of workers, one of them on the device's node.
//!
//! ```text
//!  node of the device              adjacent (near) or most distant (far) node
//!  worker worker worker worker     worker worker worker worker      a thread each, pinned, up to its share of the depth in flight
//!     │ take                          │ take                        Tags: the policy of the cell
//!     ▼                               ▼
//!  request of the tag, entries of the queues: memory of the device's node
//!     │ due after the device's service time
//!     ▼
//!  completed by the submitter, any worker or one on the device's node ─► put
//!
//! plan ────► scenarios    near-low, near-high, far-low, far-high, alone: cells that differ in the policy only
//! samples ─► findings     is one policy better than another in a scenario? (nearfar-statistics, paired by round)
//! CSV ─────► published    figures of others, and whether they rank the cells the same way
//! ```

mod allocator;
mod declared;
mod device;
pub mod findings;
mod groups;
#[cfg(test)]
mod made_up;
mod memory;
mod plan;
pub mod published;
mod sample;
mod scenario;
mod take;
mod topology;
mod worker;

pub use declared::DECLARATION;
pub(crate) use declared::ENTRY;
pub use findings::{Findings, findings};
#[cfg(test)]
pub(crate) use groups::tests::machine as machine_of_four_nodes;
pub use groups::{Groups, groups};
pub use published::{PUBLISHED_LEVELS, Published, agreement};
pub use scenario::{ALONE, DEPTH, DISTANCE, POLICY, Scenario, scenarios};

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "tags";

/// The primary metric.
pub const OPERATIONS: &str = "operations_per_s";
/// CPU time of the workers through the operations.
pub const CPU_PER_OPERATION: &str = "cpu_ns_per_operation";
/// The share of the workers' CPU time that was the kernel's, 0 to 1.
pub const SYSTEM_SHARE: &str = "system_share";
