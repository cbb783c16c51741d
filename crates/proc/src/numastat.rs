//! `/sys/devices/system/node/nodeN/numastat`: pages that were allocated, by where they were wanted
//! (Documentation/admin-guide/numastat.rst).

use serde::Serialize;

use crate::text;

/// Pages since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Numastat {
    /// Wanted on this node and allocated on it.
    pub hit: u64,
    /// Allocated on this node, wanted on another.
    pub miss: u64,
    /// Wanted on this node, allocated on another.
    pub foreign: u64,
    /// Allocated on this node by a task that ran on it.
    pub local: u64,
    /// Allocated on this node by a task that ran on another.
    pub other: u64,
}

impl Numastat {
    /// `None` where one of the counts is missing.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let count = |name: &str| {
            let mut lines = text::lines(content);
            lines.find_map(|line| {
                let rest = line.strip_prefix(name.as_bytes())?;
                text::number(rest.strip_prefix(b" ")?)
            })
        };
        Some(Self {
            hit: count("numa_hit")?,
            miss: count("numa_miss")?,
            foreign: count("numa_foreign")?,
            local: count("local_node")?,
            other: count("other_node")?,
        })
    }

    /// What was counted since an earlier look.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            hit: self.hit.saturating_sub(earlier.hit),
            miss: self.miss.saturating_sub(earlier.miss),
            foreign: self.foreign.saturating_sub(earlier.foreign),
            local: self.local.saturating_sub(earlier.local),
            other: self.other.saturating_sub(earlier.other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "numa_hit 9\nnuma_miss 1\nnuma_foreign 2\ninterleave_hit 3\nlocal_node 7\nother_node 3\n";

    #[test]
    fn counts_are_found_by_name_and_a_file_that_was_cut_has_none() {
        let expected = Numastat {
            hit: 9,
            miss: 1,
            foreign: 2,
            local: 7,
            other: 3,
        };
        let found = Numastat::parse(FILE.as_bytes()).unwrap();
        assert_eq!(found, expected);
        assert_eq!(found.since(&expected), Numastat::default());
        assert_eq!(Numastat::parse(&FILE.as_bytes()[..60]), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line in "numa_hit [0-9]{0,30}") {
            let _ = (Numastat::parse(&bytes), Numastat::parse(line.as_bytes()));
        }
    }
}
