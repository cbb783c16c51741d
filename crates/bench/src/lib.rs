//! Experiments: what is varied, one run, its samples. Nothing in here draws or prints.
//!
//! ```text
//! latency    ns a load            each node's CPU, each node's memory
//! bandwidth  bytes a second       all CPUs of each node, each node's memory
//! transfer   ns a round trip      a cache line handed over between two CPUs and back
//! survey     all three within one budget, on the same buffers
//! ```
//!
//! Below them: [`options`] says what can be asked for, `subjects` which CPUs and nodes there are, `room` how large
//! buffers should be, `placed` and `mapping` put them where they belong, `pinning` holds threads where they belong,
//! `conditions` watches what else the machine did, [`warning`] holds the doubts; `nearfar_statistics` sums samples up.

pub mod bandwidth;
mod conditions;
pub mod latency;
mod mapping;
pub mod options;
mod pinning;
mod placed;
mod random;
mod room;
mod subjects;
pub mod survey;
pub mod transfer;
pub mod warning;
