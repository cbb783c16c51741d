//! A delay for every pair of a node with CPUs and a node with memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use nearfar_machine::{Distance, NodeId};

use super::spec::{Asked, MOST_NS};

/// The delay of far memory with which an access to it takes `ratio` times as long as one to near memory, when near memory
/// is delayed by `near_ns` and emulation adds `base_ns` to both: `ratio x (near + base) - base`.
pub fn far_for_ratio(near_ns: f64, base_ns: f64, ratio: f64) -> f64 {
    (ratio * (near_ns + base_ns) - base_ns).max(0.0)
}

/// Nanoseconds by (node of the vCPU, node of the memory), with the distance between them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Matrix {
    pairs: BTreeMap<(NodeId, NodeId), (Distance, u32)>,
}

impl Matrix {
    /// Derives what was not asked for.
    pub(super) fn new(
        asked: &Asked,
        distances: &[Vec<u8>],
        cpus: &BTreeSet<NodeId>,
        memory: &BTreeSet<NodeId>,
    ) -> Result<Self, String> {
        let mut pairs = BTreeMap::new();
        for &from in cpus {
            for &to in memory {
                let distance = distance(distances, from, to);
                pairs.insert((from, to), (distance, delay(asked, from, to, distance)?));
            }
        }
        for (wanted, _) in &asked.distances {
            if !pairs.values().any(|(distance, _)| distance == wanted) {
                return Err(format!(
                    "no node has memory at distance {}; {}",
                    wanted.0,
                    known(&pairs)
                ));
            }
        }
        let nodes: BTreeSet<NodeId> = cpus.union(memory).copied().collect();
        for (from, to, _) in &asked.pairs {
            if let Some(node) = [from, to].into_iter().find(|node| !nodes.contains(node)) {
                return Err(format!(
                    "the guest has no node {} with CPUs or memory",
                    node.0
                ));
            }
        }
        Ok(Self { pairs })
    }

    /// Every pair.
    pub(super) fn pairs(&self) -> impl Iterator<Item = ((NodeId, NodeId), u32)> + '_ {
        self.pairs.iter().map(|(pair, (_, ns))| (*pair, *ns))
    }
}

/// By distance where that says all ("10: 400 ns, 20: 800 ns"), else pair by pair ("0-1: 800 ns").
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_distance: BTreeMap<Distance, BTreeSet<u32>> = BTreeMap::new();
        for (distance, ns) in self.pairs.values() {
            by_distance.entry(*distance).or_default().insert(*ns);
        }
        let parts: Vec<String> = match by_distance.values().all(|delays| delays.len() == 1) {
            true => by_distance
                .iter()
                .flat_map(|(d, ns)| ns.iter().map(move |ns| format!("{}: {ns} ns", d.0)))
                .collect(),
            false => self
                .pairs
                .iter()
                .map(|((from, to), (_, ns))| format!("{}:{}: {ns} ns", from.0, to.0))
                .collect(),
        };
        f.write_str(&parts.join(", "))
    }
}

fn distance(distances: &[Vec<u8>], from: NodeId, to: NodeId) -> Distance {
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

fn delay(asked: &Asked, from: NodeId, to: NodeId, distance: Distance) -> Result<u32, String> {
    let pair = asked
        .pairs
        .iter()
        .rev()
        .find(|(one, other, _)| (*one, *other) == (from, to))
        .map(|(.., ns)| *ns);
    let by_distance = || {
        asked
            .distances
            .iter()
            .rev()
            .find(|(asked, _)| *asked == distance)
            .map(|(_, ns)| *ns)
    };
    let by_side = || {
        if from == to {
            asked.near_ns
        } else {
            asked.far_ns
        }
    };
    if let Some(ns) = pair.or_else(by_distance).or_else(by_side) {
        return Ok(ns);
    }
    let derived = asked.derived_ns(distance).round();
    match derived <= f64::from(MOST_NS) {
        true => Ok(derived as u32),
        false => Err(format!(
            "scale {}: {derived} ns for distance {} is more than {MOST_NS}",
            asked.scale, distance.0
        )),
    }
}

fn known(pairs: &BTreeMap<(NodeId, NodeId), (Distance, u32)>) -> String {
    let distances: BTreeSet<u32> = pairs.values().map(|(distance, _)| distance.0).collect();
    format!("there are {distances:?}")
}
