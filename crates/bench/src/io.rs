//! Case 1: I/O of fio to a block device or a file, from near and far CPUs, with near and far memory.
//!
//! ```text
//! asked ──► Target    the device, where it is, which nodes are near and far
//!             │
//! cell ────► Job ──► fio (JSON+) ──► Answer ─┐
//!             └─► Meanwhile: NVMe paths, other I/O ─┴─► Sample
//!
//! writable    whether fio may write to the target
//! findings    what each factor costs or gains, judged over a run
//! ```
//!
//! fio is a process of its own and nothing of nearfar is in the way of its I/O. A sample has the command that measures the
//! same without nearfar.

mod answer;
mod declared;
pub mod findings;
mod identity;
mod job;
mod meanwhile;
mod measure;
mod null;
mod prepare;
mod sample;
mod target;
mod warnings;
mod writable;

pub use answer::{Answer, AnswerError};
pub use declared::DECLARATION;
pub(crate) use declared::ENTRY;
pub use findings::{Findings, findings};

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "io";

/// The primary metric.
pub const IOPS: &str = "iops";
/// The 99th percentile of completion latency within a sample, in nanoseconds.
pub const LATENCY_P99: &str = "latency_p99_ns";
/// The factors whose levels are compared.
pub const COMPARED_FACTORS: [&str; 4] = ["plan", "iopolicy", "memory_node", "cpu_node"];
/// Completion latency as fio counts it, in nanoseconds.
pub const LATENCY: &str = "latency_ns";
/// The share of NVMe commands that took a path nearest to their CPU, 0 to 1.
pub const NEAREST_PATH_SHARE: &str = "nearest_path_share";
