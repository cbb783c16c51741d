//! The most that a node of an emulated machine has: `cpus=2,memory=512M`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::size;

/// Less memory boots no kernel.
const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// What nodes are cut down to. A node without CPUs or without memory stays without.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NodeLimits {
    /// The most CPUs that a node keeps; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The memory of a node that has memory; `None` for its own size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{part:?} {fault}; write cpus=2, memory=512M or both with a comma")]
pub struct NodeLimitsError {
    /// The part between commas.
    pub part: String,
    pub fault: NodeLimitsFault,
}

/// What is wrong with a part of a [`NodeLimits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeLimitsFault {
    #[error("is not a limit of a node")]
    Key,
    #[error("is not a count of CPUs above 0")]
    Cpus,
    #[error("is not a size of at least 1M")]
    Memory,
    #[error("is there twice")]
    Repeated,
}

impl NodeLimits {
    /// Whether nodes keep all they have.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, part: &str) -> Result<(), NodeLimitsFault> {
        let is_repeated = match part.split_once('=') {
            Some(("cpus", count)) => {
                let count = count.parse().ok().filter(|&count: &u32| count > 0);
                let count = count.ok_or(NodeLimitsFault::Cpus)?;
                self.cpus.replace(count).is_some()
            }
            Some(("memory", text)) => {
                let bytes = size::parse(text, 1).filter(|&bytes| bytes >= MIN_MEMORY_BYTES);
                let bytes = bytes.ok_or(NodeLimitsFault::Memory)?;
                self.memory_bytes.replace(bytes).is_some()
            }
            _ => return Err(NodeLimitsFault::Key),
        };
        if is_repeated {
            return Err(NodeLimitsFault::Repeated);
        }
        Ok(())
    }
}

/// `cpus=2,memory=512M`.
impl fmt::Display for NodeLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.cpus.map(|cpus| format!("cpus={cpus}"));
        let memory = self
            .memory_bytes
            .map(|bytes| format!("memory={}", size::render(bytes)));
        let parts: Vec<String> = cpus.into_iter().chain(memory).collect();
        f.write_str(&parts.join(","))
    }
}

/// `cpus=2,memory=512M`, either part alone, in any order. Sizes take K, M, G or T, powers of 1024.
impl FromStr for NodeLimits {
    type Err = NodeLimitsError;

    fn from_str(text: &str) -> Result<Self, NodeLimitsError> {
        let mut limits = Self::default();
        for part in text.split(',').map(str::trim) {
            limits.add(part).map_err(|fault| NodeLimitsError {
                part: part.to_owned(),
                fault,
            })?;
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::NodeLimitsFault::{Cpus, Key, Memory, Repeated};
    use super::*;

    fn limits(text: &str) -> Result<NodeLimits, NodeLimitsError> {
        text.parse()
    }

    #[test]
    fn limits_are_read_in_any_order() {
        let wanted = |cpus, memory_bytes| Ok(NodeLimits { cpus, memory_bytes });
        assert_eq!(
            limits("cpus=2,memory=512M"),
            wanted(Some(2), Some(512 << 20))
        );
        assert_eq!(
            limits("memory=256M, cpus=1"),
            wanted(Some(1), Some(256 << 20))
        );
        assert_eq!(limits("memory=1G"), wanted(None, Some(1 << 30)));
    }

    #[test]
    fn limits_read_back_as_they_are_written() {
        for text in [
            "cpus=2,memory=512M",
            "cpus=1",
            "memory=1G",
            "memory=1537K",
            "memory=1048577",
            "memory=3T",
        ] {
            assert_eq!(
                limits(text).map(|limits| limits.to_string()).as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn the_part_that_is_wrong_is_named() {
        for (text, part, fault) in [
            ("", "", Key),
            ("cpus", "cpus", Key),
            ("nodes=2", "nodes=2", Key),
            ("cpus=0", "cpus=0", Cpus),
            ("cpus=two", "cpus=two", Cpus),
            ("cpus=2;memory=1G", "cpus=2;memory=1G", Cpus),
            ("cpus=2,cpus=3", "cpus=3", Repeated),
            ("memory=512", "memory=512", Memory),
            ("memory=99999999999G", "memory=99999999999G", Memory),
        ] {
            let part = part.to_owned();
            assert_eq!(limits(text), Err(NodeLimitsError { part, fault }));
        }
    }
}
