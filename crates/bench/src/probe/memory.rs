//! The probe's buffer: mapped, put where the spec says, filled, and looked at.

use std::fs;
use std::io;
use std::sync::atomic::AtomicBool;

use nearfar_machine::{Known, NodeId, NodeSet};
use nearfar_proc::meminfo;

use super::result::{NodePages, PagesByNode};
use super::spec::{ProbeSpec, Where};
use super::warning::SampleWarning;
use crate::buffer_size;
use crate::child::ServeError;
use crate::mapping::{self, Backing, Mapping};
use crate::options::HugePages;
use crate::sampling::SEED;
use nearfar_loops::access::Pattern;
use nearfar_loops::chase;

const NODES: &str = "/sys/devices/system/node";
/// Most pages that are asked for their node: all of 64 MiB of base pages.
const PAGES_ASKED: usize = 16 << 10;
/// Distance of a chain's stops, in words: a cache line of 64 bytes.
const LINE_WORDS: usize = 8;

/// The buffer, and what is with_warnings about it.
pub(super) struct Buffer {
    pub(super) memory: Mapping,
    pub(super) warnings: Vec<SampleWarning>,
}

/// Makes the buffer that `spec` asks for. All its pages are there when this returns, in a chain's case linked.
pub(super) fn prepare(spec: &ProbeSpec) -> Result<Buffer, ServeError> {
    check_room(spec)?;
    // Bound memory means all of the process, as under numactl --membind: were only the buffer bound, NUMA balancing would
    // still scan stack and data, and settle the process on the node of a handful of their pages. A caller's own policy is
    // not inherited. What refuses this refuses to bind the buffer too, and that is looked into.
    let _ = mapping::set_policy(spec.memory.node());
    let memory = map(spec)?;
    let refused = match spec.memory {
        Where::Node(node) => memory.bind(node).err().map(|error| (node, error)),
        Where::Floating => None,
    };
    if matches!(spec.huge_pages, HugePages::Pool) {
        let what = format!(
            "taking {} bytes of huge pages from the pool (fill it: nr_hugepages)",
            spec.bytes
        );
        memory
            .populate()
            .map_err(|error| ServeError::refused(what, error))?;
    }
    let mut buffer = Buffer {
        memory,
        warnings: Vec::new(),
    };
    let bytes = buffer.memory.bytes();
    buffer.memory.touch(0..bytes);
    if let Where::Node(node) = spec.memory {
        buffer.verify(node, refused.map(|(_, error)| error))?;
    }
    if spec.pattern == Pattern::Chain {
        buffer.link()?;
    }
    Ok(buffer)
}

impl Buffer {
    /// Where its pages are.
    pub(super) fn pages(&self) -> Known<PagesByNode> {
        match self.memory.nodes_of_pages(PAGES_ASKED) {
            Ok(nodes) => Known::Yes(sum_up(&nodes)),
            Err(error) => Known::no(format!("move_pages: {error}")),
        }
    }

    /// Looks whether bound memory is where it should be. A refusal to bind it is forgiven where it is there anyway.
    fn verify(&mut self, node: NodeId, refused: Option<io::Error>) -> Result<(), ServeError> {
        let pages = self
            .memory
            .nodes_of_pages(PAGES_ASKED)
            .map(|nodes| sum_up(&nodes));
        let (share, error) = match &pages {
            Ok(pages) => (pages.share_on(node), None),
            Err(error) => (
                if is_only_node(node) { 1.0 } else { 0.0 },
                Some(error.to_string()),
            ),
        };
        match (refused, error) {
            (Some(error), _) if share < 1.0 => {
                return Err(ServeError::refused(
                    format!("binding memory to node {node} (mbind)"),
                    error,
                ));
            }
            (Some(error), None) => self.warnings.push(SampleWarning::BindRefused {
                node,
                error: error.to_string(),
            }),
            // On the only node there is, memory is nowhere else.
            (_, Some(error)) if share < 1.0 => self
                .warnings
                .push(SampleWarning::Unverified { node, error }),
            (None, None) if share < 1.0 => {
                self.warnings.push(SampleWarning::Elsewhere {
                    node,
                    percent: 100.0 * (1.0 - share),
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Links its lines into one random cycle.
    fn link(&mut self) -> Result<(), ServeError> {
        let lines = self.memory.words().len() / LINE_WORDS;
        let lines = u32::try_from(lines).map_err(|_| {
            ServeError::BadSpec(format!(
                "a chain has at most {} lines of 64 bytes",
                u32::MAX
            ))
        })?;
        let go_on = AtomicBool::new(false);
        if let Some(next) = chase::cycle(lines, &mut fastrand::Rng::with_seed(SEED), &go_on) {
            chase::link(self.memory.words_mut(), &next, LINE_WORDS, &go_on);
        }
        Ok(())
    }
}

fn map(spec: &ProbeSpec) -> Result<Mapping, ServeError> {
    let backing = match spec.huge_pages {
        HugePages::Auto | HugePages::Off => Backing::Base,
        HugePages::Transparent => Backing::Transparent,
        HugePages::Pool => Backing::Pool {
            page_bytes: pool_page_bytes()?,
        },
    };
    let bytes = usize::try_from(spec.bytes).unwrap_or(usize::MAX);
    Mapping::new(bytes, backing)
        .map_err(|error| ServeError::refused(format!("mapping {bytes} bytes"), error))
}

/// The size of pages of the default pool, `Hugepagesize` of `/proc/meminfo`.
fn pool_page_bytes() -> Result<u64, ServeError> {
    let meminfo = fs::read("/proc/meminfo").unwrap_or_default();
    let bytes = meminfo::bytes(&meminfo, "Hugepagesize").filter(|bytes| bytes.is_power_of_two());
    bytes.ok_or_else(|| {
        ServeError::BadSpec("this kernel has no pool of huge pages (hugetlb)".to_owned())
    })
}

/// That the memory can be had without getting anybody killed: the kernel's out-of-memory killer does not ask.
fn check_room(spec: &ProbeSpec) -> Result<(), ServeError> {
    if let Where::Node(node) = spec.memory {
        check_node(node, "has_memory", "memory")?;
    }
    // Those are set aside, and refused one by one.
    if spec.huge_pages == HugePages::Pool {
        return Ok(());
    }
    let too_much = |has: u64, who: &str| {
        ServeError::BadSpec(format!(
            "a buffer of {} MiB is too large: {who} has {} MiB left",
            spec.bytes >> 20,
            has >> 20
        ))
    };
    if let Some(spare) = buffer_size::spare_memory().filter(|&spare| spare < spec.bytes) {
        return Err(too_much(spare, "this process"));
    }
    let Where::Node(node) = spec.memory else {
        return Ok(());
    };
    let meminfo = fs::read(format!("{NODES}/node{node}/meminfo")).unwrap_or_default();
    // What files hold can be dropped.
    let of = |name| meminfo::bytes(&meminfo, name).unwrap_or(0);
    match of("MemFree") + of("Active(file)") + of("Inactive(file)") + of("SReclaimable") {
        left if !meminfo.is_empty() && left < spec.bytes => {
            Err(too_much(left, &format!("node {node}")))
        }
        _ => Ok(()),
    }
}

/// That a node is online and listed in this file, where the kernel lists them.
pub(super) fn check_node(node: NodeId, list: &str, of_what: &str) -> Result<(), ServeError> {
    let read = |list: &str| {
        fs::read_to_string(format!("{NODES}/{list}"))
            .ok()?
            .trim()
            .parse::<NodeSet>()
            .ok()
    };
    // Kernels without NUMA have no such folder, and one node.
    let online = read("online").unwrap_or_else(|| NodeSet::single(NodeId(0)));
    if !online.contains(node) {
        return Err(ServeError::BadSpec(format!(
            "there is no node {node}: online are {online}"
        )));
    }
    match read(list).filter(|nodes| !nodes.contains(node)) {
        Some(nodes) => Err(ServeError::BadSpec(format!(
            "node {node} has no {of_what}; nodes with {of_what}: {nodes}"
        ))),
        None => Ok(()),
    }
}

fn is_only_node(node: NodeId) -> bool {
    let online = fs::read_to_string(format!("{NODES}/online"));
    online.map_or(node == NodeId(0), |online| {
        online.trim() == node.to_string()
    })
}

fn sum_up(nodes: &[Option<NodeId>]) -> PagesByNode {
    let mut counts = std::collections::BTreeMap::new();
    for node in nodes.iter().flatten() {
        *counts.entry(*node).or_insert(0u64) += 1;
    }
    PagesByNode {
        looked_at: nodes.len() as u64,
        nowhere: nodes.len() as u64 - counts.values().sum::<u64>(),
        by_node: counts
            .into_iter()
            .map(|(node, pages)| NodePages { node, pages })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_by_node_in_ascending_order() {
        let (zero, one) = (Some(NodeId(0)), Some(NodeId(1)));
        let pages = sum_up(&[one, zero, one, None]);
        assert_eq!((pages.looked_at, pages.nowhere), (4, 1));
        let (zero, one) = (
            NodePages {
                node: NodeId(0),
                pages: 1,
            },
            NodePages {
                node: NodeId(1),
                pages: 2,
            },
        );
        assert_eq!(pages.by_node, [zero, one]);
        assert_eq!(
            (pages.share_on(NodeId(1)), pages.share_on(NodeId(7))),
            (0.5, 0.0)
        );
    }
}
