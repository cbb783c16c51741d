//! A delay for every pair of a node with CPUs and a node with memory.

use std::collections::BTreeSet;

use nearfar_machine::{Distance, MAX_DELAY_NS, NodeId, PairDelay};

use super::error::DelayError;
use super::spec::Asked;

/// The delay of far memory with which an access to it takes `ratio` times as long as one to near memory, when near memory
/// is delayed by `near_ns` and emulation adds `base_ns` to both: `ratio x (near + base) - base`.
pub fn far_for_ratio(near_ns: f64, base_ns: f64, ratio: f64) -> f64 {
    (ratio * (near_ns + base_ns) - base_ns).max(0.0)
}

/// The delay of every pair of a node with CPUs and a node with memory. What was not asked for is derived.
pub(super) fn pairs(
    asked: &Asked,
    distances: &[Vec<u8>],
    cpus: &BTreeSet<NodeId>,
    memory: &BTreeSet<NodeId>,
) -> Result<Vec<PairDelay>, DelayError> {
    let mut pairs = Vec::new();
    for &cpu_node in cpus {
        for &memory_node in memory {
            let distance = distance(distances, cpu_node, memory_node);
            let known = known_ns(asked, cpu_node, memory_node, distance);
            pairs.push(PairDelay {
                cpu_node,
                memory_node,
                distance,
                delay_ns: known.map_or_else(|| derived_ns(asked, distance), Ok)?,
                is_estimate: known.is_none() && !asked.own.latencies.is_empty(),
            });
        }
    }
    let known: BTreeSet<u32> = pairs.iter().map(|pair| pair.distance.0).collect();
    let transfer = asked.transfer.iter();
    let of_lines = transfer.flat_map(|it| it.by_distance.iter().map(|it| it.distance));
    for wanted in asked.distances.iter().map(|it| it.0).chain(of_lines) {
        if !known.contains(&wanted.0) {
            let known = known.into_iter().collect();
            return Err(DelayError::UnknownDistance { wanted, known });
        }
    }
    let nodes: BTreeSet<NodeId> = cpus.union(memory).copied().collect();
    for (from, to, _) in &asked.pairs {
        if let Some(node) = [from, to].into_iter().find(|node| !nodes.contains(node)) {
            return Err(DelayError::UnknownNode(*node));
        }
    }
    Ok(pairs)
}

pub(super) fn distance(distances: &[Vec<u8>], from: NodeId, to: NodeId) -> Distance {
    let known = distances
        .get(from.0 as usize)
        .and_then(|row| row.get(to.0 as usize))
        .copied();
    known.map_or(
        if from == to {
            Distance::LOCAL
        } else {
            Distance::REMOTE
        },
        |distance| Distance(distance.into()),
    )
}

/// What is asked for, or the machine's own.
fn known_ns(asked: &Asked, from: NodeId, to: NodeId, distance: Distance) -> Option<u32> {
    let mut pairs = asked.pairs.iter().rev();
    let pair = pairs.find(|(one, other, _)| (*one, *other) == (from, to));
    let by_distance = || {
        let mut distances = asked.distances.iter().rev();
        distances.find(|(asked, _)| *asked == distance)
    };
    let by_side = || {
        if from == to {
            asked.near_ns
        } else {
            asked.far_ns
        }
    };
    pair.map(|(.., ns)| *ns)
        .or_else(|| by_distance().map(|(_, ns)| *ns))
        .or_else(by_side)
        .or_else(|| asked.own.latency_ns(from, to))
}

fn derived_ns(asked: &Asked, distance: Distance) -> Result<u32, DelayError> {
    let derived = asked.derived_ns(distance).round();
    match derived <= f64::from(MAX_DELAY_NS) {
        true => Ok(derived as u32),
        false => Err(DelayError::TooLong {
            scale: asked.scale(),
            delay_ns: derived,
            distance,
        }),
    }
}
