//! One cell of the matrix, and how it is written: `preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0`.

use std::fmt;
use std::str::FromStr;

use nearfar_machine::NodeId;
use serde::{Deserialize, Serialize};

use crate::probe::Where;

/// How the kernel is told where the probe belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// The node that the probe prefers to run on; `None` for none.
    pub preferred_node: Option<NodeId>,
    /// Whether automatic NUMA balancing is on.
    pub numa_balancing: bool,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.preferred_node, self.numa_balancing) {
            (None, false) => f.write_str("off"),
            (None, true) => f.write_str("on"),
            (Some(node), true) => write!(f, "{node}"),
            (Some(node), false) => write!(f, "{node}-off"),
        }
    }
}

/// A word that names no policy or no cell.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{text}\" is {}", .expected)]
pub struct NotUnderstood {
    text: String,
    expected: &'static str,
}

impl FromStr for Policy {
    type Err = NotUnderstood;

    fn from_str(text: &str) -> Result<Self, NotUnderstood> {
        let expected = "no policy: \"off\" and \"on\" are NUMA balancing without a preferred node, 0, 1, ... a preferred \
                        node with NUMA balancing on, 0-off, 1-off, ... with it off";
        let preferred = |number: &str| node(number).map(Some);
        let policy = match text {
            "off" => Some((None, false)),
            "on" => Some((None, true)),
            _ => match text.strip_suffix("-off") {
                Some(number) => preferred(number).map(|node| (node, false)),
                None => preferred(text).map(|node| (node, true)),
            },
        };
        let (preferred, numa_balancing) = policy.ok_or_else(|| NotUnderstood {
            text: text.to_owned(),
            expected,
        })?;
        Ok(Self {
            preferred_node: preferred,
            numa_balancing,
        })
    }
}

fn node(number: &str) -> Option<NodeId> {
    let number = number
        .parse()
        .ok()
        .filter(|&number| number <= nearfar_machine::MAX_NUMBER);
    number.map(NodeId)
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

    /// What the published table calls PNID: the preferred node's number, or -1.
    pub fn pnid(&self) -> i64 {
        self.policy
            .preferred_node
            .map_or(-1, |node| i64::from(node.0))
    }
}

/// As `--cell` takes it: `preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F`.
impl fmt::Display for MatrixCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let balancing = u8::from(self.policy.numa_balancing);
        write!(
            f,
            "preferred_node={},numa_balancing={balancing},memory_node={},cpu_node={}",
            self.pnid(),
            self.memory_node,
            self.cpu_node
        )
    }
}

impl FromStr for MatrixCell {
    type Err = NotUnderstood;

    fn from_str(text: &str) -> Result<Self, NotUnderstood> {
        let expected = "no cell: expected preferred_node=N,numa_balancing=0|1,memory_node=N|F,cpu_node=N|F, such as preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0 (preferred_node=-1: no \
                        preferred node)";
        parse_cell(text).ok_or_else(|| NotUnderstood {
            text: text.to_owned(),
            expected,
        })
    }
}

fn parse_cell(text: &str) -> Option<MatrixCell> {
    let (mut preferred, mut balancing, mut memory, mut cpus) = (None, None, None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=')?;
        let fresh = match key.trim() {
            "preferred_node" => preferred
                .replace(if value == "-1" {
                    None
                } else {
                    Some(node(value)?)
                })
                .is_none(),
            "numa_balancing" => balancing
                .replace(["0", "1"].iter().position(|known| *known == value)? == 1)
                .is_none(),
            "memory_node" => memory.replace(value.parse().ok()?).is_none(),
            "cpu_node" => cpus.replace(value.parse().ok()?).is_none(),
            _ => false,
        };
        if !fresh {
            return None;
        }
    }
    let policy = Policy {
        preferred_node: preferred?,
        numa_balancing: balancing?,
    };
    Some(MatrixCell {
        policy,
        memory_node: memory?,
        cpu_node: cpus?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_no_cell_are_refused() {
        for wrong in [
            "",
            "preferred_node=0",
            "preferred_node=0,numa_balancing=2,memory_node=0,cpu_node=0",
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=0,cpu_node=1",
            "preferred_node=-2,numa_balancing=0,memory_node=0,cpu_node=0",
        ] {
            assert!(wrong.parse::<MatrixCell>().is_err(), "{wrong}");
        }
        for wrong in ["", "none", "-1", "0-on", "99999999"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_cell_reads_back_as_it_is_printed(preferred in proptest::option::of(0u32..64), nb: bool, memory in 0u32..65, cpus in 0u32..65) {
            let place = |number| if number == 64 { Where::Floating } else { Where::Node(NodeId(number)) };
            let policy = Policy { preferred_node: preferred.map(NodeId), numa_balancing: nb };
            let cell = MatrixCell { policy, memory_node: place(memory), cpu_node: place(cpus) };
            proptest::prop_assert_eq!(cell.to_string().parse::<MatrixCell>().unwrap(), cell);
            proptest::prop_assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }
    }
}
