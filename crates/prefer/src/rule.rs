//! When a task leaves its node and when it is confined again: numbers in, decisions out, no system.
//!
//! ```text
//!             waits for a CPU, and the node offers none, twice in a row
//!   on the preferred node ────────────────────────────────────────────────────────► released
//!  (narrow) ◄──────────────────────────────────────────────────────── (its own mask)
//!             the node offers what it needs, twice in a row, and its pause is over
//! ```
//!
//! *Waits* is its own run-queue delay as a share of the time it wanted to run. *The node offers* is the time the node's CPUs
//! were idle. A task that waits while a CPU of the node is idle is not released: the kernel's balancing within the node takes
//! milliseconds, and a wait that a rule by wait alone sees (a burst of load under emulation) is no reason to go far.
//!
//! Of those that wait only the surplus leaves, the one that waits most first: [`NodeController`] adds up how many CPUs' worth of
//! waiting there is, releases so many, and decides again when that has had its effect. A task that is confined again and has to leave
//! again at once pauses for twice as long each time.

mod node_controller;
mod single;

pub use node_controller::{Look, NodeController, Sample};
pub use single::{Decision, Place, Rule};

use std::time::Duration;

/// The thresholds. The defaults were measured, see docs/prefer.md.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RuleOptions {
    /// Waiting above this share of the time it wanted to run is a reason to leave. 0 to 1.
    pub waiting: f64,
    /// Looks in a row that must agree.
    pub looks: u32,
    /// Having to leave again within this time after coming back makes the next return later.
    pub too_soon: Duration,
    /// The longest time before a return is tried again.
    pub longest_pause: Duration,
}

impl Default for RuleOptions {
    fn default() -> Self {
        Self {
            waiting: 0.25,
            looks: 2,
            too_soon: Duration::from_secs(2),
            longest_pause: Duration::from_secs(32),
        }
    }
}

/// What CPUs that were idle for these shares of the time offer to one more task, in CPUs. A CPU that is idle for a sliver
/// offers nothing: a hundred of them together are no CPU for a task that always runs.
pub fn offer(idle_shares: impl IntoIterator<Item = f64>) -> f64 {
    idle_shares
        .into_iter()
        .map(|idle| (idle - MIN_IDLE_SHARE).max(0.0))
        .sum()
}

const MIN_IDLE_SHARE: f64 = 0.1;

/// An offer of so many CPUs takes any task that waits.
pub(crate) const FULL_OFFER_CPUS: f64 = 0.5;

/// A task that always runs finds its place on a CPU that does a little else: in CPUs, what may lack.
pub(crate) const SPARE_CPUS: f64 = 0.2;
/// What part of the threshold counts for a wait that may become a reason to leave.
pub(crate) const THRESHOLD_SHARE: f64 = 0.5;
