//! Figures of others, read from a file, and whether they rank the cells of a run the same way.
//!
//! ```text
//! # a comment
//! scenario,variant,kiops,sys_percent
//! near-low,limit+topology,1058.1,52.42      the variant is the policy limit_topology
//!
//! file ─► parse ─► Published ─► correlate ─► Agreement   one for each column and set of other levels
//! ```
//!
//! Absolute figures of another machine cannot be compared with those of a run; their order can.

mod correlate;
mod parse;

pub use correlate::{Agreement, ByRound, LeftOut, Pair, agreement};
pub use parse::{Published, PublishedError};

#[cfg(test)]
mod tests;
