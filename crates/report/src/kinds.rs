//! Nodes that are alike, for machines with too many to have a line or a picture each.

use nearfar_machine::{CpuSet, Node, NodeSet};

use crate::amount::bytes;

/// What nodes have in common.
#[derive(PartialEq)]
pub(crate) struct Kind {
    pub(crate) online: bool,
    /// How many; unknown where the source has no list of them.
    pub(crate) cpus: Option<usize>,
    pub(crate) memory: String,
}

/// Nodes by kind, in the order in which kinds first appear. Where `each`, every node is a kind of its own, with the exact
/// size of its memory.
pub(crate) fn kinds<'a>(nodes: impl Iterator<Item = &'a Node>, each: bool) -> Vec<(Kind, NodeSet)> {
    let mut kinds: Vec<(Kind, NodeSet)> = Vec::new();
    for node in nodes {
        let kind = Kind {
            online: node.online,
            cpus: node.cpus.get().map(CpuSet::len),
            memory: memory(node, each),
        };
        match kinds.iter_mut().find(|(other, _)| !each && *other == kind) {
            Some((_, ids)) => {
                ids.insert(node.id);
            }
            None => kinds.push((kind, NodeSet::single(node.id))),
        }
    }
    kinds
}

/// The size of a node's memory; rounded to an eighth of its power of two for kinds, because no two nodes have quite
/// the same.
fn memory(node: &Node, exactly: bool) -> String {
    match node.total_bytes() {
        None => "?".to_owned(),
        Some(0) => "none".to_owned(),
        Some(size) if exactly => bytes(size),
        Some(size) => {
            let step = (1u64 << size.ilog2()) / 8;
            let rounded = size.saturating_add(step / 2) / step.max(1) * step.max(1);
            format!("about {}", bytes(rounded))
        }
    }
}
