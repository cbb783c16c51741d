//! `/proc/PID/numa_maps`: a line for each mapping, with its policy and its pages by node.
//!
//! ```text
//! 7f2c00000000 bind:0 anon=512 dirty=512 active=0 N0=512 kernelpagesize_kB=2048
//! 55754ff29000 default file=/usr/bin/cat mapped=2 N0=2 kernelpagesize_kB=4
//! ```
//!
//! A database has a hundred thousand mappings, so lines are read one at a time. Spaces in a file's name are written as
//! `\040`, so words are words. Pages are counted in the unit of the line's `kernelpagesize_kB` (since Linux 3.8; before
//! it huge pages are marked `huge` and their size is not told, so such lines are left out rather than miscounted).

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use nearfar_machine::{MAX_NUMBER, NodeBytes, NodeId, PolicyBytes};

/// A path has at most 4096 bytes, each escaped as four characters.
const LONGEST_LINE: u64 = 64 << 10;
/// What a page has where the line does not say.
const SMALL_PAGE: u64 = 4096;
/// Different policies kept; a process could make up one for each set of nodes.
const MOST_POLICIES: usize = 1024;

/// The memory of one process.
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

    fn add(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let (Some(_), Some(policy)) = (words.next(), words.next()) else {
            return;
        };
        let mut pages: Vec<(NodeId, u64)> = Vec::new();
        let mut page_bytes = None;
        let mut huge = false;
        for word in words {
            match word.split_once('=') {
                Some(("kernelpagesize_kB", size)) => {
                    page_bytes = size.parse().ok().and_then(|kb: u64| kb.checked_mul(1024))
                }
                Some((key, count)) => pages.extend(node_pages(key, count)),
                None => huge |= word == "huge",
            }
        }
        if huge && page_bytes.is_none() {
            return;
        }
        let page_bytes = page_bytes.unwrap_or(SMALL_PAGE);
        let mut sum = 0u64;
        for (node, count) in pages {
            let bytes = count.saturating_mul(page_bytes);
            let total = self.nodes.entry(node).or_default();
            *total = total.saturating_add(bytes);
            sum = sum.saturating_add(bytes);
        }
        if sum > 0 && (self.policies.len() < MOST_POLICIES || self.policies.contains_key(policy)) {
            let total = self.policies.entry(policy.to_owned()).or_default();
            *total = total.saturating_add(sum);
        }
    }
}

/// `N0=512`.
fn node_pages(key: &str, count: &str) -> Option<(NodeId, u64)> {
    let node: u32 = key.strip_prefix('N')?.parse().ok()?;
    let count: u64 = count.parse().ok()?;
    (node <= MAX_NUMBER && count > 0).then_some((NodeId(node), count))
}

/// Reads all lines.
pub(super) fn read(mut text: impl BufRead) -> std::io::Result<Maps> {
    let mut maps = Maps::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if text
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)?
            == 0
        {
            return Ok(maps);
        }
        maps.add(&String::from_utf8_lossy(&line));
    }
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

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text in "([0-9a-f]{1,4} [a-z:0-9]{1,9}( N[0-9]{1,12}=[0-9]{1,20})*\n){0,5}") {
            read(bytes.as_slice()).unwrap();
            read(text.as_bytes()).unwrap();
        }
    }
}
