//! The preferred node of a probe, for as long as it runs.

use nearfar_experiment::BoxError;
use nearfar_machine::{Machine, NodeId};

use super::sample::Kept;

/// A probe that is kept near its node.
pub(super) struct Preferring;

impl Preferring {
    /// Keeps the process near that node from now on.
    pub(super) fn start(_pid: i32, node: NodeId, _machine: &Machine) -> Result<Self, BoxError> {
        Err(format!("node {node} cannot be preferred yet").into())
    }

    /// Lets it go.
    pub(super) fn stop(self) -> Result<Kept, BoxError> {
        Err("nothing was kept".into())
    }
}
