//! How much memory of a process is where, and what its policies say, in one read of numa_maps.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};

use nearfar_machine::{NodeBytes, NodeId, NodeSet};
use nearfar_proc::{numa_maps, tasks};

/// What numa_maps says of a process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Survey {
    bytes: BTreeMap<NodeId, u64>,
    /// Bytes on the source nodes in the system's pages, transparent huge ones included.
    pub(crate) to_move_bytes: u64,
    /// Bytes on the source nodes in pages of hugetlbfs, which need free ones of that size on the target.
    pub(crate) hugetlb_bytes: u64,
    /// The first mapping with memory to move that is bound to nodes without the target.
    pub(crate) bound: Option<Bound>,
}

/// A mapping that may not have memory on the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    pub(crate) start: u64,
    /// As numa_maps writes it: `bind:0`.
    pub(crate) policy: String,
}

impl Survey {
    /// Of a process of the running system.
    pub(crate) fn of(pid: i32, from: &NodeSet, to: NodeId) -> io::Result<Self> {
        let file = BufReader::new(tasks::open(pid, "numa_maps")?);
        Self::read(file, from, to)
    }

    pub(crate) fn read(text: impl BufRead, from: &NodeSet, to: NodeId) -> io::Result<Self> {
        let system_page = rustix::param::page_size() as u64;
        let mut survey = Self::default();
        numa_maps::each(text, |mapping| {
            let page_bytes = mapping.page_bytes.unwrap_or(system_page);
            let mut far = 0u64;
            for (node, pages) in &mapping.pages {
                let bytes = pages.saturating_mul(page_bytes);
                let sum = survey.bytes.entry(*node).or_default();
                *sum = sum.saturating_add(bytes);
                if from.contains(*node) {
                    far = far.saturating_add(bytes);
                }
            }
            let sum = match page_bytes > system_page {
                true => &mut survey.hugetlb_bytes,
                false => &mut survey.to_move_bytes,
            };
            *sum = sum.saturating_add(far);
            if far > 0 && survey.bound.is_none() && binds_elsewhere(mapping.policy, to) {
                survey.bound = Some(Bound {
                    start: mapping.start,
                    policy: String::from_utf8_lossy(mapping.policy).into_owned(),
                });
            }
        })?;
        Ok(survey)
    }

    /// All that is to be moved.
    pub(crate) fn far_bytes(&self) -> u64 {
        self.to_move_bytes.saturating_add(self.hugetlb_bytes)
    }

    /// By node, those without any left out.
    pub(crate) fn by_node(&self) -> Vec<NodeBytes> {
        let all = self.bytes.iter();
        all.map(|(&node, &bytes)| NodeBytes { node, bytes })
            .collect()
    }
}

/// Whether a policy is `bind` without the node: `bind:0-1`, `bind=static:0` (mpol_to_str in mm/mempolicy.c).
fn binds_elsewhere(policy: &[u8], to: NodeId) -> bool {
    let Some(nodes) = policy
        .strip_prefix(b"bind")
        .and_then(|rest| rest.split(|&byte| byte == b':').nth(1))
    else {
        return false;
    };
    let nodes = std::str::from_utf8(nodes)
        .ok()
        .and_then(|nodes| NodeSet::parse_list(nodes).ok());
    nodes.is_none_or(|nodes| !nodes.contains(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"1000 default anon=3 N0=2 N1=1 kernelpagesize_kB=4\n\
        200000 bind:0-1 huge anon=1 N0=1 kernelpagesize_kB=2048\n\
        300000 bind=static:2 anon=1 N2=1 kernelpagesize_kB=4\n\
        400000 bind:0 anon=1 N0=1 kernelpagesize_kB=4\n";

    fn survey(from: &str) -> Survey {
        Survey::read(TEXT, &from.parse().unwrap(), NodeId(1)).unwrap()
    }

    #[test]
    fn bytes_are_by_node_and_a_policy_counts_only_where_memory_is_to_move() {
        let found = survey("0");
        assert_eq!(
            (found.to_move_bytes, found.hugetlb_bytes),
            (3 * 4096, 2 << 20)
        );
        assert_eq!(found.far_bytes(), 3 * 4096 + (2 << 20));
        let by_node: Vec<_> = found
            .by_node()
            .iter()
            .map(|on| (on.node.0, on.bytes))
            .collect();
        assert_eq!(by_node, [(0, 3 * 4096 + (2 << 20)), (1, 4096), (2, 4096)]);
        assert_eq!(found.bound.unwrap().policy, "bind:0");
        assert_eq!(survey("2").bound.unwrap().start, 0x30_0000);
        assert_eq!(survey("3").bound, None);
    }

    #[test]
    fn a_bind_policy_that_cannot_be_read_binds_elsewhere() {
        let to = NodeId(1);
        for (policy, elsewhere) in [
            ("bind:0-1", false),
            ("bind=relative:1", false),
            ("bind:0", true),
            ("bind:\u{fe}", true),
            ("prefer:0", false),
            ("interleave:0", false),
            ("default", false),
        ] {
            assert_eq!(
                binds_elsewhere(policy.as_bytes(), to),
                elsewhere,
                "{policy}"
            );
        }
    }
}
