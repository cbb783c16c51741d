//! One cell of the matrix, and how it is written: `pnid=0,nb=1,mem=F,cpu=0`.

use std::fmt;
use std::str::FromStr;

use nearfar_machine::NodeId;
use serde::{Deserialize, Serialize};

use crate::probe::Where;

/// How the kernel is told where the probe belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// The node that the probe prefers to run on; `None` for none.
    pub preferred: Option<NodeId>,
    /// Whether automatic NUMA balancing is on.
    pub numa_balancing: bool,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.preferred, self.numa_balancing) {
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
            preferred,
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
    pub memory: Where,
    /// Where the process may run.
    pub cpus: Where,
}

impl MatrixCell {
    /// Whether memory and CPUs are bound to one node.
    pub fn is_same_node(&self) -> bool {
        self.memory == self.cpus && self.memory != Where::Floating
    }

    /// Whether memory and CPUs are bound to different nodes.
    pub fn is_other_node(&self) -> bool {
        self.memory != self.cpus && self.memory != Where::Floating && self.cpus != Where::Floating
    }

    /// What the published table calls PNID: the preferred node's number, or -1.
    pub fn pnid(&self) -> i64 {
        self.policy.preferred.map_or(-1, |node| i64::from(node.0))
    }
}

/// As `--cell` takes it: `pnid=-1,nb=0,mem=0,cpu=F`.
impl fmt::Display for MatrixCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nb = u8::from(self.policy.numa_balancing);
        write!(
            f,
            "pnid={},nb={nb},mem={},cpu={}",
            self.pnid(),
            self.memory,
            self.cpus
        )
    }
}

impl FromStr for MatrixCell {
    type Err = NotUnderstood;

    fn from_str(text: &str) -> Result<Self, NotUnderstood> {
        let expected = "no cell: expected pnid=N,nb=0|1,mem=N|F,cpu=N|F, such as pnid=0,nb=1,mem=F,cpu=0 (pnid=-1: no \
                        preferred node)";
        parse_cell(text).ok_or_else(|| NotUnderstood {
            text: text.to_owned(),
            expected,
        })
    }
}

fn parse_cell(text: &str) -> Option<MatrixCell> {
    let (mut pnid, mut nb, mut memory, mut cpus) = (None, None, None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=')?;
        let fresh = match key.trim() {
            "pnid" => pnid
                .replace(if value == "-1" {
                    None
                } else {
                    Some(node(value)?)
                })
                .is_none(),
            "nb" => nb
                .replace(["0", "1"].iter().position(|known| *known == value)? == 1)
                .is_none(),
            "mem" => memory.replace(value.parse().ok()?).is_none(),
            "cpu" => cpus.replace(value.parse().ok()?).is_none(),
            _ => false,
        };
        if !fresh {
            return None;
        }
    }
    let policy = Policy {
        preferred: pnid?,
        numa_balancing: nb?,
    };
    Some(MatrixCell {
        policy,
        memory: memory?,
        cpus: cpus?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_no_cell_are_refused() {
        for wrong in [
            "",
            "pnid=0",
            "pnid=0,nb=2,mem=0,cpu=0",
            "pnid=-1,nb=0,mem=0,cpu=0,cpu=1",
            "pnid=-2,nb=0,mem=0,cpu=0",
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
            let policy = Policy { preferred: preferred.map(NodeId), numa_balancing: nb };
            let cell = MatrixCell { policy, memory: place(memory), cpus: place(cpus) };
            proptest::prop_assert_eq!(cell.to_string().parse::<MatrixCell>().unwrap(), cell);
            proptest::prop_assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }
    }
}
