//! Case 5: tasks that all want one kernel lock, from one task to all CPUs.
//!
//! ```text
//!  parent                                    task 0      task 1      ...     processes, or threads of one
//!  start, wait until ready                   loop        loop
//!  warm up, read counters ◄── memfd ──────── counter     counter             a cache line pair each
//!  profile, seconds later read them again
//!  trace lock contention for a while         (not while operations are counted)
//!  kill
//! ```
//!
//! The tasks run until they are killed; one that ends by itself is an error. Files are without a name.

mod counters;
mod cpus;
mod declared;
mod findings;
mod hot;
mod locks;
mod published;
mod sample;
mod take;
mod task;
mod workload;

pub use declared::DECLARATION;
pub(crate) use declared::ENTRY;
pub use findings::{Curve, Findings, findings};
pub use hot::HotFunction;
pub use locks::HotLock;
pub use published::{PUBLISHED_LEVELS, Published, agreement};
pub use task::serve;

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "scale";

/// The primary metric: of all tasks.
pub const OPERATIONS: &str = "operations_per_s";
/// Time in waits for locks, as a share of the tasks' time while they were traced.
pub const LOCK_SHARE: &str = "lock_share";

/// The factors.
pub const TASKS: &str = "tasks";
pub const WORKLOAD: &str = "workload";
pub const KIND: &str = "kind";
const BINDING: &str = "binding";
const MEMORY: &str = "memory";
const NODES_USED: &str = "nodes_used";
