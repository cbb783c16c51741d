//! The distance matrix, keyed by node number: it may be asymmetric, have holes, or say 10 everywhere.

use serde::{Deserialize, Serialize};

use crate::id::{Distance, NodeId};
use crate::set::NodeSet;

/// Where a distance matrix comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DistanceOrigin {
    /// `/sys/devices/system/node/nodeN/distance`: the firmware's table as the kernel took it.
    Kernel,
    /// ACPI's SLIT itself, which also names nodes that are not online.
    Slit,
    /// The device tree's `ibm,associativity` properties.
    DeviceTree,
    /// A person: a description file, a synthetic string, pasted text.
    Described,
    /// Derived by a fake overlay from the machine below it.
    Fake,
}

/// Distances between nodes, row by row: `distance(from, to)` is what a CPU of `from` pays for memory of `to`.
///
/// Rows and columns are in the order of [`Distances::nodes`]; a hole is `None` (`null` in JSON). A node's number
/// is never used as a position: machines have nodes 0 and 8 and nothing between.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Distances {
    origin: DistanceOrigin,
    nodes: Vec<NodeId>,
    rows: Vec<Option<Distance>>,
}

#[derive(Serialize, Deserialize)]
struct Raw {
    origin: DistanceOrigin,
    nodes: Vec<NodeId>,
    matrix: Vec<Vec<Option<Distance>>>,
}

/// What a table says that has one distance between all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flat {
    /// Between different nodes.
    pub distance: Distance,
    /// Whether it is also that of each node from itself.
    pub with_local: bool,
}

/// A matrix whose shape does not fit its nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("distance matrix: {0}")]
pub struct DistanceError(String);

impl Distances {
    /// A matrix of holes over these nodes (sorted, duplicates dropped).
    pub fn empty(origin: DistanceOrigin, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_unstable();
        nodes.dedup();
        let rows = vec![None; nodes.len() * nodes.len()];
        Self {
            origin,
            nodes,
            rows,
        }
    }

    /// The same with these entries, of those of one pair the last. What is of other nodes is left out.
    pub fn of(
        origin: DistanceOrigin,
        nodes: impl IntoIterator<Item = NodeId>,
        entries: impl IntoIterator<Item = (NodeId, NodeId, Option<Distance>)>,
    ) -> Self {
        let mut table = Self::empty(origin, nodes);
        for (from, to, distance) in entries {
            table.set(from, to, distance);
        }
        table
    }

    /// A matrix from its rows.
    ///
    /// # Errors
    /// When the rows do not fit the nodes or the nodes are not in ascending order.
    pub fn from_rows(
        origin: DistanceOrigin,
        nodes: Vec<NodeId>,
        matrix: Vec<Vec<Option<Distance>>>,
    ) -> Result<Self, DistanceError> {
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0] >= pair[1]) {
            let problem = format!("node {} is out of order or named twice", pair[1]);
            return Err(DistanceError(problem));
        }
        let (expected, rows) = (nodes.len(), matrix.len());
        let mut lengths = matrix.iter().map(Vec::len).enumerate();
        let misfit = match rows == expected {
            true => lengths.find(|&(_, found)| found != expected),
            false => Some((rows, rows)),
        };
        if let Some((row, found)) = misfit {
            return Err(DistanceError(format!(
                "expected {expected} rows of {expected} entries, row {row} has {found}"
            )));
        }
        Ok(Self {
            origin,
            nodes,
            rows: matrix.into_iter().flatten().collect(),
        })
    }

    /// Where the figures come from.
    pub fn origin(&self) -> DistanceOrigin {
        self.origin
    }

    /// The nodes that have a row and a column, ascending.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The distance from one node's CPUs to another's memory; `None` for a hole or an unknown node.
    pub fn get(&self, from: NodeId, to: NodeId) -> Option<Distance> {
        self.rows[self.position(from)? * self.nodes.len() + self.position(to)?]
    }

    /// Sets one entry; false when either node has no row.
    pub fn set(&mut self, from: NodeId, to: NodeId, distance: Option<Distance>) -> bool {
        let Some((row, column)) = self.position(from).zip(self.position(to)) else {
            return false;
        };
        self.rows[row * self.nodes.len() + column] = distance;
        true
    }

    /// One node's row with the nodes it leads to.
    pub fn row(&self, from: NodeId) -> impl Iterator<Item = (NodeId, Option<Distance>)> + '_ {
        let width = self.nodes.len();
        let row = self
            .position(from)
            .map_or(&[][..], |row| &self.rows[row * width..(row + 1) * width]);
        self.nodes.iter().copied().zip(row.iter().copied())
    }

    /// Every entry: from, to, distance.
    pub fn entries(&self) -> impl Iterator<Item = (NodeId, NodeId, Option<Distance>)> + '_ {
        self.nodes.iter().flat_map(|&from| {
            self.row(from)
                .map(move |(to, distance)| (from, to, distance))
        })
    }

    /// Whether both directions agree everywhere (holes agree with holes).
    pub fn is_symmetric(&self) -> bool {
        self.entries()
            .all(|(from, to, distance)| self.get(to, from) == distance)
    }

    pub fn is_complete(&self) -> bool {
        self.rows.iter().all(Option::is_some)
    }

    /// Whether the table says nothing of which of these nodes are nearer to each other: every entry between them is the same,
    /// and either there are more than two of them or a node is as far from itself. A hole is no statement: a table with
    /// one is not flat.
    pub fn flat(&self, nodes: &NodeSet) -> Option<Flat> {
        let between = self
            .entries()
            .filter(|(from, to, _)| from != to)
            .filter(|&(from, to, _)| nodes.contains(from) && nodes.contains(to));
        let mut between = between.map(|(.., distance)| distance);
        let distance = between.next()??;
        let with_local = nodes
            .iter()
            .all(|node| self.get(node, node) == Some(distance));
        let is_flat = nodes.iter().all(|node| self.position(node).is_some())
            && between.all(|other| other == Some(distance))
            && (with_local || nodes.len() > 2);
        is_flat.then_some(Flat {
            distance,
            with_local,
        })
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }
}

impl TryFrom<Raw> for Distances {
    type Error = DistanceError;

    fn try_from(raw: Raw) -> Result<Self, DistanceError> {
        Self::from_rows(raw.origin, raw.nodes, raw.matrix)
    }
}

impl From<Distances> for Raw {
    fn from(distances: Distances) -> Self {
        let width = distances.nodes.len().max(1);
        let matrix = distances.rows.chunks(width).map(<[_]>::to_vec).collect();
        Self {
            origin: distances.origin,
            nodes: distances.nodes,
            matrix,
        }
    }
}
