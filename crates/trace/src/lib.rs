//! Kernel tracepoints through perf events: who did what, on which CPU. Counts and records; prints nothing.
//!
//! ```text
//! tracefs ──► Format ─────────────────┐  what an event's bytes mean
//!                                     ▼
//! Session: CPU 0  event ─┐ ring ──► samples ──► nvme::Commands ─────────────┐
//!          CPU 1  event ─┘ ring ──►         └─► order ──► migrations::Moves ─┼──► answers, with a Machine
//!          ...                     └─► locks::Waits                         ┘
//! Sampler: CPU 0  clock ─► ring ──► profile::Profile    where CPU time is spent
//! NodeMigrations: CPU 0  event, counted by the kernel        moves between nodes
//! ```
//!
//! [`watch`] keeps one session open for a whole experiment, and answers for one process after the other.
//!
//! One ring buffer a CPU, as `perf record -a` has it: the kernel writes, this process reads, nothing is written twice.
//! What the kernel counted and did not write, because a ring was full or otherwise, is counted ([`Losses`]) and travels
//! with every answer.
//! Topology comes from a [`Machine`](nearfar_machine::Machine) that the caller has read.

mod error;
pub mod format;
pub mod locks;
mod losses;
pub mod migrations;
pub mod numa_balancing;
pub mod nvme;
mod open;
pub mod profile;
pub mod records;
mod session;
pub mod tasks;
pub mod watch;

pub use error::TraceError;
pub use format::Tracefs;
pub use losses::Losses;
pub use migrations::NodeMigrations;
pub use open::now_ns;
pub use session::{Ended, Finished, Ordered, Plan, Session, Traced};
