//! The memory of a process by node and by policy, summed over its mappings ([`nearfar_proc::numa_maps`]) or sampled.
//!
//! Before Linux 3.8 huge pages are marked `huge` and their size is missing, so such mappings are left out rather than miscounted.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::sync::OnceLock;

use nearfar_machine::{Known, MemorySample, NodeBytes, NodeId, PolicyBytes, ResidentBytes};
use nearfar_proc::move_pages;
use nearfar_proc::numa_maps::{self, Mapping};
use nearfar_proc::system::{self, KernelVersion};

use super::sample;
use crate::tree::{Directory, Reason, Tree};

/// What a page has where the line does not say.
const SMALL_PAGE: u64 = 4096;
/// Different policies kept; a process could make up one for each set of nodes.
const MAX_POLICIES: usize = 1024;

/// Up to this much memory is counted: 6 ms with small pages, in which the process cannot map or unmap.
const MAX_COUNTED_BYTES: u64 = 256 << 20;
/// The same for kernels without a lock for each mapping, before this one: they keep page faults waiting as well.
const MAX_COUNTED_BYTES_ONE_LOCK: u64 = 64 << 20;
const LOCKS_BY_MAPPING: KernelVersion = KernelVersion { major: 6, minor: 4 };
const BUFFER_BYTES: usize = 64 << 10;

/// The memory of a process.
pub(super) struct Memory {
    pub(super) nodes: Known<Vec<NodeBytes>>,
    pub(super) policies: Known<Vec<PolicyBytes>>,
    pub(super) sample: Option<MemorySample>,
}

impl Memory {
    /// What was not asked for.
    pub(super) fn unread() -> Self {
        Self {
            nodes: Known::no("not asked for"),
            policies: Known::no("not asked for"),
            sample: None,
        }
    }

    /// That of a thread of the kernel.
    pub(super) fn none() -> Self {
        Self {
            nodes: Known::Yes(Vec::new()),
            policies: Known::Yes(Vec::new()),
            sample: None,
        }
    }
}

/// Samples the memory of a large process of the running system, and counts that of any other. A recorded process has no pages to
/// look for.
pub(super) fn read(
    tree: &Tree,
    directory: &Directory<'_>,
    pid: i32,
    resident: Option<&ResidentBytes>,
) -> Memory {
    let resident = resident.map_or(0, ResidentBytes::total);
    if tree.is_live() && resident > max_counted_bytes() {
        let maps = format!("{}/maps", directory.path());
        let sampled = tree.file(&maps).map(|maps| {
            let page_bytes = rustix::param::page_size() as u64;
            let locate = |pages: &[u64]| move_pages::where_are(pid, pages);
            sample::sample(
                BufReader::with_capacity(BUFFER_BYTES, maps),
                resident,
                page_bytes,
                locate,
            )
        });
        // What cannot be sampled is counted: few of its addresses are in memory, or the kernel has no move_pages.
        if let Ok(Ok(Some(sampled))) = sampled {
            return Memory {
                nodes: Known::Yes(sampled.nodes),
                policies: Known::no("its memory is sampled, and only a count shows policies"),
                sample: Some(sampled.sample),
            };
        }
    }
    count(tree, directory)
}

fn max_counted_bytes() -> u64 {
    static MAX: OnceLock<u64> = OnceLock::new();
    *MAX.get_or_init(|| match KernelVersion::of_release(&system::release()) {
        Some(version) if version >= LOCKS_BY_MAPPING => MAX_COUNTED_BYTES,
        _ => MAX_COUNTED_BYTES_ONE_LOCK,
    })
}

/// `numa_maps` of another user's process opens and then fails, or is empty.
fn count(tree: &Tree, directory: &Directory<'_>) -> Memory {
    let path = format!("{}/numa_maps", directory.path());
    let counted =
        match tree.file(&path) {
            Ok(file) => summed(BufReader::with_capacity(BUFFER_BYTES, file)).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        tree.unreadable(&path, Reason::Denied).to_string()
                    }
                    _ => format!("{}: {error}", tree.display(&path)),
                }
            }),
            Err(error) => Err(error.to_string()),
        };
    Memory {
        nodes: Known::from_result(counted.as_ref().map(Maps::nodes)),
        policies: Known::from_result(counted.as_ref().map(Maps::policies)),
        sample: None,
    }
}

#[derive(Debug, Default)]
struct Maps {
    nodes: BTreeMap<NodeId, u64>,
    policies: BTreeMap<String, u64>,
}

impl Maps {
    /// Bytes by node.
    fn nodes(&self) -> Vec<NodeBytes> {
        self.nodes
            .iter()
            .map(|(&node, &bytes)| NodeBytes { node, bytes })
            .collect()
    }

    /// Bytes by policy.
    fn policies(&self) -> Vec<PolicyBytes> {
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

fn summed(content: impl BufRead) -> io::Result<Maps> {
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
        let maps = summed(text.as_bytes()).unwrap();
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
