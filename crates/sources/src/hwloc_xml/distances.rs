//! The distances between nodes. Matrices of other objects (NVLinkBandwidth, XGMIHops) and of other values are left out.

use nearfar_machine::{Distance, DistanceOrigin, Distances, Known, Node, NodeId};

use super::build::{ancestors, number};
use super::elements::{Document, Matrix};
use crate::limits::MOST_NODES;
use crate::warnings::{Warnings, excerpt};

/// Bits of `kind` (hwloc/distances.h).
const MEANS_LATENCY: u64 = 4;

pub(super) fn read(
    document: &Document,
    nodes: &[Node],
    warnings: &mut Warnings,
) -> Known<Distances> {
    let of_nodes =
        |matrix: &&Matrix| matrix.kind == "NUMANode" && matrix.means & MEANS_LATENCY != 0;
    let named = |name: &str| {
        let mut matrices = document.matrices.iter().filter(of_nodes);
        matrices.find(|matrix| matrix.name == name)
    };
    let found = match named("NUMALatency").or_else(|| named("")) {
        Some(matrix) => Some((matrix, columns(document, matrix))),
        None => old(document),
    };
    let Some((matrix, columns)) = found else {
        return Known::no("the XML has no NUMALatency distances between nodes");
    };
    let place = format!("the matrix in line {}", matrix.line);
    let width = columns.len();
    if width > MOST_NODES || matrix.values.len() != width * width {
        warnings.note(format!(
            "{place} has {width} nodes and {} distances; left out",
            matrix.values.len()
        ));
        return Known::no("the XML's matrix of distances is damaged");
    }
    let mut distances = Distances::empty(DistanceOrigin::Kernel, nodes.iter().map(|node| node.id));
    let stray = columns
        .iter()
        .position(|node| node.is_none_or(|node| distances.nodes().binary_search(&node).is_err()));
    if let Some(stray) = stray {
        let index = matrix.indexes.get(stray).map(u64::to_string);
        warnings.note(format!(
            "{place} names node {}, which is not there",
            excerpt(&index.unwrap_or_default())
        ));
    }
    for (row, from) in columns.iter().enumerate() {
        for (column, to) in columns.iter().enumerate() {
            let value = matrix.values.get(row * width + column).copied();
            let value = value
                .and_then(|value| u32::try_from(value).ok())
                .filter(|&value| value > 0)
                .map(Distance);
            if let (Some(from), Some(to)) = (from, to) {
                distances.set(*from, *to, value);
            }
        }
    }
    Known::Yes(distances)
}

/// The nodes that a matrix names.
fn columns(document: &Document, matrix: &Matrix) -> Vec<Option<NodeId>> {
    let node_of = |&index: &u64| match matrix.by_os_index {
        true => u32::try_from(index).ok().map(NodeId),
        false => {
            let mut objects = document.objects.iter();
            let object = objects.find(|object| object.gp_index == Some(index));
            object.and_then(number).map(NodeId)
        }
    };
    matrix.indexes.iter().map(node_of).collect()
}

/// The matrix of version 1 whose rows are the nodes, in the order of the file. It says only how many levels below its object they are, and levels
/// are not counted alike in a tree that is not regular. The smallest of the kernel's is 10, those of users start anywhere.
fn old(document: &Document) -> Option<(&Matrix, Vec<Option<NodeId>>)> {
    let objects = &document.objects;
    let of_nodes = |matrix: &Matrix| {
        let old = matrix.version_1.as_ref()?;
        let owner = old.owner?;
        let mut depths = Vec::new();
        let mut columns = Vec::new();
        for (at, object) in objects.iter().enumerate().skip(owner) {
            if object.kind == "NUMANode"
                && let Some(depth) = ancestors(objects, at).position(|above| above == owner)
            {
                depths.push(depth + 1);
                columns.push(number(object).map(NodeId));
            }
        }
        let is_kernels = matrix.values.len() == columns.len() * columns.len()
            && matrix.values.iter().min() == Some(&10);
        let exact = depths.iter().all(|&depth| depth == old.relative_depth);
        (is_kernels && !columns.is_empty()).then_some((exact, columns))
    };
    let candidates = document.matrices.iter();
    let candidates = candidates.filter_map(|matrix| Some((matrix, of_nodes(matrix)?)));
    let (matrix, (_, columns)) = candidates.min_by_key(|(_, (exact, _))| !exact)?;
    Some((matrix, columns))
}
