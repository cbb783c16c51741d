//! The memory of a process by node and by policy, summed over its mappings ([`nearfar_proc::numa_maps`]).
//!
//! Before Linux 3.8 huge pages are marked `huge` and their size is missing, so such mappings are left out rather than miscounted.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use nearfar_machine::{NodeBytes, NodeId, PolicyBytes};
use nearfar_proc::numa_maps::{self, Mapping};

/// What a page has where the line does not say.
const SMALL_PAGE: u64 = 4096;
/// Different policies kept; a process could make up one for each set of nodes.
const MAX_POLICIES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Maps {
    nodes: BTreeMap<NodeId, u64>,
    policies: BTreeMap<String, u64>,
}

impl Maps {
    /// Bytes by node.
    pub(super) fn nodes(&self) -> Vec<NodeBytes> {
        self.nodes
            .iter()
            .map(|(&node, &bytes)| NodeBytes { node, bytes })
            .collect()
    }

    /// Bytes by policy.
    pub(super) fn policies(&self) -> Vec<PolicyBytes> {
        self.policies
            .iter()
            .map(|(policy, &bytes)| PolicyBytes {
                policy: policy.clone(),
                bytes,
            })
            .collect()
    }

    fn add(&mut self, mapping: Mapping<'_>) {
        if mapping.huge && mapping.page_bytes.is_none() {
            return;
        }
        let page_bytes = mapping.page_bytes.unwrap_or(SMALL_PAGE);
        let mut sum = 0u64;
        for (node, count) in mapping.pages {
            let bytes = count.saturating_mul(page_bytes);
            let total = self.nodes.entry(node).or_default();
            *total = total.saturating_add(bytes);
            sum = sum.saturating_add(bytes);
        }
        let policy = String::from_utf8_lossy(mapping.policy);
        if sum > 0 && (self.policies.len() < MAX_POLICIES || self.policies.contains_key(&*policy)) {
            let total = self.policies.entry(policy.into_owned()).or_default();
            *total = total.saturating_add(sum);
        }
    }
}

pub(super) fn read(content: impl BufRead) -> io::Result<Maps> {
    let mut maps = Maps::default();
    numa_maps::each(content, |mapping| maps.add(mapping))?;
    Ok(maps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_by_node_and_policy_in_their_own_size() {
        let text = "7f00 bind:0 anon=2 dirty=2 N0=2 kernelpagesize_kB=2048\n5500 default file=/N9=7/N3=1 mapped=3 N0=1 N1=2 \
                    kernelpagesize_kB=4\n6600 interleave:0-1 anon=1 N1=1\n7700 default stack\n8800 default huge N0=5\n";
        let maps = read(text.as_bytes()).unwrap();
        let nodes: Vec<_> = maps
            .nodes()
            .iter()
            .map(|on| (on.node.0, on.bytes))
            .collect();
        assert_eq!(nodes, [(0, (4 << 20) + 4096), (1, 3 * 4096)]);
        let policies: Vec<_> = maps
            .policies()
            .into_iter()
            .map(|under| (under.policy, under.bytes))
            .collect();
        let expected = [
            ("bind:0", 4 << 20),
            ("default", 3 * 4096),
            ("interleave:0-1", 4096),
        ];
        assert_eq!(
            policies,
            expected.map(|(policy, bytes)| (policy.to_owned(), bytes))
        );
    }
}
