//! Is this machine's scheduler hurting unbound tasks? A small matrix within a budget of half a minute.
//!
//! ```text
//! a little load on every CPU, so that the scheduler has something to do
//!   round 1   0/0  F/F  1/F  1/1  0/F     memory/CPUs of one run of the probe, F: left to the kernel
//!   round 2   1/1  0/F  ...               every cell once a round, in random order
//!   ...
//! 0/F against 0/0, 1/F against 1/1 ──► the cost of unbound CPUs
//! F/F against 0/0 and 1/1          ──► the cost of unbound memory and CPUs
//! ```
//!
//! Nothing is set: NUMA balancing stays as it is, and no node is preferred. Load and probe are children that end with their
//! handles. Runs are taken and judged as those of the [`crate::matrix`], whose cells these are.

mod answer;
mod budget;
mod taking;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_machine::{CpuSet, Machine, NodeId};

use crate::child::ChildError;
use crate::matrix::{self, Places, RunFailed};
use crate::options::{ProbeError, check_live};

pub use answer::{UnboundContrast, UnboundTasks};
pub use taking::measure;

/// What it takes.
#[derive(Clone, Debug)]
pub struct UnboundOptions {
    /// A program that answers `bench child`: `/proc/self/exe` from within nearfar.
    pub program: PathBuf,
    /// How long it may take, load and preparations included.
    pub budget: Duration,
    /// The load on each CPU, in percent of it.
    pub load_percent: f64,
    /// Set it from anywhere to end the probe early with [`UnboundError::Cancelled`].
    pub cancel: Arc<AtomicBool>,
}

/// The nodes that the probe is bound to in turn: two as far from each other as any is from the first, with CPUs that this
/// process may use and memory.
///
/// # Errors
/// Where the machine is not the running one, or no task can run on two nodes.
pub fn homes(machine: &Machine) -> Result<Vec<NodeId>, UnboundError> {
    check_live(machine)?;
    let places = matrix::places(machine);
    if places.cpus.len() < 2 {
        let cpus = matrix::load_cpus(machine);
        return Err(
            match machine
                .online_nodes()
                .filter(|node| !node.known_cpus().is_empty())
                .count()
            {
                0 | 1 => UnboundError::OneNode,
                _ => UnboundError::Confined { cpus },
            },
        );
    }
    farthest_two(machine, &places).ok_or(UnboundError::NoHome)
}

/// The first node with CPUs and memory, and the one farthest from it, the first of equals.
fn farthest_two(machine: &Machine, places: &Places) -> Option<Vec<NodeId>> {
    let mut nodes = places
        .cpus
        .iter()
        .copied()
        .filter(|node| places.memory.contains(node));
    let first = nodes.next()?;
    let farthest =
        nodes.max_by_key(|&node| (machine.distance(first, node), std::cmp::Reverse(node)));
    Some([first].into_iter().chain(farthest).collect())
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum UnboundError {
    #[error("only one node has CPUs: an unbound task has nowhere else to run")]
    OneNode,
    #[error(
        "this process may run on CPUs {cpus} only, which are of one node: its affinity or cpuset keeps it there"
    )]
    Confined {
        /// Where it may run.
        cpus: CpuSet,
    },
    #[error(
        "no node has both memory and CPUs that this process may use: there is nothing to bind a task to"
    )]
    NoHome,
    #[error(transparent)]
    Machine(#[from] ProbeError),
    #[error(
        "too little time: {rounds} rounds of {cells} runs take {needed_s:.0} s here, {left_s:.0} s are left for them; \
         {:.0} s more would do", needed_s - left_s
    )]
    TooLittleTime {
        rounds: u32,
        /// Runs in a round.
        cells: usize,
        /// Seconds that these take.
        needed_s: f64,
        /// Seconds that are left.
        left_s: f64,
    },
    #[error(transparent)]
    Child(ChildError),
    #[error("a run failed: {0}")]
    Run(#[from] RunFailed),
    #[error("the probe of unbound tasks was cancelled")]
    Cancelled,
}

impl From<ChildError> for UnboundError {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Cancelled { .. } => Self::Cancelled,
            error => Self::Child(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{
        CpuId, Distance, DistanceOrigin, Distances, Known, Node, Origin, SourceKind,
    };

    use super::*;

    #[test]
    fn homes_are_the_first_node_and_the_farthest_from_it_of_those_with_cpus_and_memory() {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        let ids = [0, 1, 2, 3].map(NodeId);
        machine.nodes = ids
            .map(|id| Node::new(id, CpuSet::single(CpuId(id.0))))
            .to_vec();
        let all = Places {
            memory: ids.to_vec(),
            cpus: ids.to_vec(),
        };
        assert_eq!(
            farthest_two(&machine, &all),
            Some(vec![NodeId(0), NodeId(1)]),
            "no distances are known"
        );
        let mut distances = Distances::empty(DistanceOrigin::Kernel, ids);
        for (from, to, distance) in [(0, 1, 16), (0, 2, 32), (0, 3, 32), (1, 2, 25), (1, 3, 32)] {
            assert!(distances.set(NodeId(from), NodeId(to), Some(Distance(distance))));
        }
        machine.distances = Known::Yes(distances);
        assert_eq!(
            farthest_two(&machine, &all),
            Some(vec![NodeId(0), NodeId(2)])
        );
        let without_0 = Places {
            memory: ids[1..].to_vec(),
            cpus: ids.to_vec(),
        };
        assert_eq!(
            farthest_two(&machine, &without_0),
            Some(vec![NodeId(1), NodeId(3)])
        );
        assert_eq!(
            farthest_two(
                &machine,
                &Places {
                    memory: vec![NodeId(3)],
                    cpus: vec![NodeId(0)]
                }
            ),
            None
        );
    }
}
