//! Case 1: I/O of fio to a block device or a file, from near and far CPUs, with near and far memory.
//!
//! ```text
//! asked ──► Target    the device, where it is, which nodes are near and far
//!             │
//! cell ────► Job ──► fio (JSON+) ──► Answer ─┐
//!             └─► Meanwhile: NVMe paths, other I/O ─┴─► Sample
//!
//! writable    whether fio may write to the target
//! ```
//!
//! fio is a process of its own and nothing of nearfar is in the way of its I/O: [`Job::command_line`](job::Job::command_line)
//! is the command that measures the same without nearfar.

mod answer;
mod declared;
mod job;
mod meanwhile;
mod null;
mod sample;
mod target;
mod warnings;
mod writable;

pub use answer::{Answer, AnswerError};
pub use declared::DECLARATION;
pub(crate) use declared::make;

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "io";

/// The primary metric.
pub const IOPS: &str = "iops";
/// Completion latency as fio counts it, in nanoseconds.
pub const LATENCY: &str = "latency_ns";
/// The share of NVMe commands that took a path nearest to their CPU, 0 to 1.
pub const NEAREST_PATH_SHARE: &str = "nearest_path_share";
