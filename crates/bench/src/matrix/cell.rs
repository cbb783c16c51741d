//! One cell of the matrix, and how it is written: `preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0`.

use std::fmt;

use nearfar_machine::NodeId;
use serde::{Deserialize, Serialize};

use crate::probe::Where;

/// How the preferred node reaches the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// The node that the probe prefers to run on; `None` for none.
    pub preferred_node: Option<NodeId>,
    /// Whether automatic NUMA balancing is on.
    pub numa_balancing: bool,
}

/// One cell. Ordered as the published table's rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MatrixCell {
    /// The preferred node and NUMA balancing.
    #[serde(flatten)]
    pub policy: Policy,
    /// Where the memory is.
    pub memory_node: Where,
    /// Where the process may run.
    pub cpu_node: Where,
}

impl MatrixCell {
    /// Whether memory and CPUs are bound to one node.
    pub fn is_same_node(&self) -> bool {
        self.memory_node == self.cpu_node && self.memory_node != Where::Floating
    }

    /// Whether memory and CPUs are bound to different nodes.
    pub fn is_other_node(&self) -> bool {
        self.memory_node != self.cpu_node
            && self.memory_node != Where::Floating
            && self.cpu_node != Where::Floating
    }

    /// The preferred node's number, or -1 for none.
    pub fn preferred_number(&self) -> i64 {
        number_of(self.policy.preferred_node)
    }
}

/// A preferred node as a level: -1 for none.
pub(super) fn number_of(preferred: Option<NodeId>) -> i64 {
    preferred.map_or(-1, |node| i64::from(node.0))
}

/// As `--cell` takes it: `preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F`.
impl fmt::Display for MatrixCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let balancing = u8::from(self.policy.numa_balancing);
        write!(
            f,
            "preferred_node={},numa_balancing={balancing},memory_node={},cpu_node={}",
            self.preferred_number(),
            self.memory_node,
            self.cpu_node
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::DECLARATION;

    proptest::proptest! {
        #[test]
        fn a_cell_reads_back_as_it_is_printed(preferred in proptest::option::of(0u32..64), nb: bool, memory in 0u32..65, cpus in 0u32..65) {
            let place = |number| if number == 64 { Where::Floating } else { Where::Node(NodeId(number)) };
            let policy = Policy { preferred_node: preferred.map(NodeId), numa_balancing: nb };
            let cell = MatrixCell { policy, memory_node: place(memory), cpu_node: place(cpus) };
            let read = DECLARATION.cell(&cell.to_string()).unwrap();
            proptest::prop_assert_eq!(MatrixCell::of(&read), Some(cell));
        }
    }
}
