//! What can be wrong with `--delay`.

use nearfar_machine::{DelayFault, Distance, MAX_DELAY_NS, NodeId};
use thiserror::Error;

/// A text that is not a value of `--delay`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DelaySpecError {
    /// Not `KEY=VALUE`.
    #[error("{0:?} is not KEY=VALUE, auto or off")]
    Item(String),
    /// An unknown key.
    #[error(
        "{0:?} is not scale, base, near, far, cache, transfer, bandwidth, link, stream, device, a distance (20), nodes (0-1) or one way (0:1)"
    )]
    Key(String),
    /// The value of `scale`.
    #[error("scale {0:?} is not a number between 0.01 and 1000")]
    Scale(String),
    /// A value in nanoseconds.
    #[error("{0:?} is not a delay in nanoseconds (0 to {MAX_DELAY_NS})")]
    Nanoseconds(String),
    /// The value of another key.
    #[error("{key} {value:?} is {fault}")]
    Part {
        key: String,
        value: String,
        fault: DelayFault,
    },
}

/// Delays that a guest cannot have.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum DelayError {
    /// A distance between no two nodes.
    #[error("no node has memory at distance {wanted}; there are {}", listed(known))]
    UnknownDistance {
        /// As it was asked for.
        wanted: Distance,
        /// Those between nodes with CPUs and nodes with memory.
        known: Vec<u32>,
    },
    /// A node that the guest does not have.
    #[error("the guest has no node {0} with CPUs or memory")]
    UnknownNode(NodeId),
    /// A limit of memory or links in the host's time.
    #[error("bandwidth and link need simulated time: add --time simulated")]
    NeedsSimulatedTime,
    /// A derived delay above the limit.
    #[error("scale {scale}: {delay_ns} ns for distance {distance} is more than {MAX_DELAY_NS}")]
    TooLong {
        /// The scale that was asked for.
        scale: f64,
        /// What follows from it.
        delay_ns: f64,
        /// The distance it was derived from.
        distance: Distance,
    },
}

fn listed(distances: &[u32]) -> String {
    let distances: Vec<String> = distances.iter().map(u32::to_string).collect();
    distances.join(", ")
}
