//! Between which nodes the accesses of tasks go.

use std::collections::BTreeMap;

use nearfar_machine::NodeId;
use serde::Serialize;

use super::Tasks;

/// CPU time on a node that would access memory of another or the same, if each task used all its pages alike.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct NodePair {
    /// Where the CPUs are.
    pub cpus: NodeId,
    /// Where the memory is.
    pub memory: NodeId,
    pub seconds: f64,
}

/// All pairs that a task has, by node; tasks of which CPU time or memory is unknown are left out.
pub fn by_node_pair(tasks: &Tasks) -> Vec<NodePair> {
    let mut sums: BTreeMap<(NodeId, NodeId), f64> = BTreeMap::new();
    for task in &tasks.tasks {
        let memory = task.at.memory.get().into_iter().flatten();
        let bytes: f64 = memory.clone().map(|on| on.bytes as f64).sum();
        for on in memory.filter(|_| bytes > 0.0) {
            for at in task.at.cpu_nodes.get().into_iter().flatten() {
                *sums.entry((at.node, on.node)).or_default() +=
                    at.seconds * on.bytes as f64 / bytes;
            }
        }
    }
    let pairs = sums.into_iter().map(|((cpus, memory), seconds)| NodePair {
        cpus,
        memory,
        seconds,
    });
    pairs.collect()
}
