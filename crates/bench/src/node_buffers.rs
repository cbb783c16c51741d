//! Buffers where they should be: one on each node, bound there, touched, and verified with move_pages.
//!
//! ```text
//!  pool of huge pages ──no──► transparent ones ──no──► base pages         per node, as the options allow
//!  mbind ──refused──► first touch by a CPU of the node ──no such CPU──► the node is skipped
//! ```

use std::io;

use nearfar_machine::{Machine, NodeId};

use crate::mapping::{Backing, HUGE_PAGE, Mapping, PageKind};
use crate::node_selection::{SkippedPair, Source};
use crate::options::{HugePages, ProbeError, ProbeOptions};
use crate::warning::Warning;
use nearfar_proc::affinity;

/// Bytes touched between two looks at the flag that cancels.
const BYTES_PER_CANCEL_CHECK: usize = 16 << 20;

/// The fewest of a node in interleaved memory, each half of which is used for another purpose.
const FEWEST_HUGE_PAGES: usize = 8;

/// A buffer on a node.
pub(crate) struct Buffer {
    pub(crate) node: NodeId,
    pub(crate) memory: Mapping,
}

/// The buffers of a measurement and what is to be said about them.
pub(crate) struct NodeBuffers {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) page_kind: PageKind,
    pub(crate) skipped: Vec<SkippedPair>,
    pub(crate) warnings: Vec<Warning>,
}

/// Why a buffer is not in the pool of huge pages.
#[derive(Debug, thiserror::Error)]
enum PoolError {
    #[error("{free_mib} MiB of it are free, {needed_mib} MiB are needed")]
    TooSmall { free_mib: u64, needed_mib: usize },
    #[error(transparent)]
    Map(#[from] io::Error),
    #[error("mbind: {0}")]
    Bind(io::Error),
    #[error("its pages could not be had: {0}")]
    Pages(io::Error),
}

/// A buffer of `bytes` on each of `nodes`; those whose memory cannot be had are skipped. Leaves the calling thread
/// pinned somewhere.
///
/// # Errors
/// When memory lacks, no buffer is where it should be, or the probe was cancelled.
pub(crate) fn allocate(
    machine: &Machine,
    nodes: &[NodeId],
    sources: &[Source],
    bytes: u64,
    options: &ProbeOptions,
) -> Result<NodeBuffers, ProbeError> {
    let buffers = NodeBuffers {
        buffers: Vec::new(),
        page_kind: PageKind::Unknown,
        skipped: vec![],
        warnings: vec![],
    };
    // On a machine with one node memory can be nowhere else: asking would only meet refusals of sandboxes.
    let several = machine.online_nodes().count() > 1;
    let mut allocation = Allocation {
        machine,
        sources,
        options,
        bytes: bytes as usize,
        several,
        buffers,
    };
    for &node in nodes {
        options.check_cancelled()?;
        allocation.place(node)?;
    }
    let mut buffers = allocation.buffers;
    if buffers.buffers.is_empty() {
        let first = buffers
            .skipped
            .first()
            .map_or("no reason given", |skipped| &skipped.reason);
        let reason = format!("no node's memory could be bound or reached: {first}");
        return Err(ProbeError::NothingToMeasure { reason });
    }
    buffers.page_kind = kind_of_all(&buffers.buffers);
    // Simulated time charges no address translation (docs/delays.md).
    if buffers.page_kind == PageKind::Base && !machine.origin.is_simulated() {
        let asked = options.huge_pages == HugePages::Off;
        buffers.warnings.push(if asked {
            Warning::BasePagesAsked
        } else {
            Warning::BasePages
        });
    }
    Ok(buffers)
}

/// As much memory as `buffers` have on each node, interleaved among their nodes.
///
/// # Errors
/// When memory lacks, or its pages are not where they should be.
pub(crate) fn interleaved(
    machine: &Machine,
    buffers: &mut NodeBuffers,
    bytes: u64,
    options: &ProbeOptions,
) -> Result<Mapping, ProbeError> {
    let nodes: Vec<NodeId> = buffers.buffers.iter().map(|it| it.node).collect();
    let nothing = |reason: String| ProbeError::NothingToMeasure { reason };
    let [first, _, ..] = nodes[..] else {
        let reason = "interleaved memory needs two nodes with memory".to_owned();
        return Err(nothing(reason));
    };
    // Few huge pages would not be spread evenly.
    let pages = bytes as usize / HUGE_PAGE / nodes.len();
    let huge_pages = match pages < FEWEST_HUGE_PAGES {
        true => HugePages::Off,
        false => options.huge_pages,
    };
    let of_pool = |page_bytes| {
        let memory = Mapping::new(bytes as usize, Backing::Pool { page_bytes })?;
        memory.interleave(&nodes)?;
        memory.populate()?;
        io::Result::Ok(memory)
    };
    let pool = match buffers.buffers[0].memory.backing() {
        Backing::Pool { page_bytes } if pages >= FEWEST_HUGE_PAGES => of_pool(page_bytes).ok(),
        _ => None,
    };
    let mut memory = match pool {
        Some(memory) => memory,
        None => {
            let memory = ordinary(bytes as usize, huge_pages)?;
            let interleaved = memory.interleave(&nodes);
            interleaved
                .map_err(|error| nothing(format!("memory cannot be interleaved: {error}")))?;
            memory
        }
    };
    touch(&mut memory, options)?;
    let (interleaved, bound) = (memory.page_kind(), buffers.page_kind);
    if interleaved != bound && !machine.origin.is_simulated() {
        let warning = Warning::OtherPages { interleaved, bound };
        buffers.warnings.push(warning);
    }
    match memory.nodes_of_pages(usize::MAX) {
        Ok(pages) => {
            let share = |node: NodeId| {
                let there = pages.iter().filter(|&&place| place == Some(node)).count();
                there as f64 / pages.len().max(1) as f64
            };
            // A node that is full leaves its turn to the others.
            let least = 0.8 / nodes.len() as f64;
            if let Some(&node) = nodes.iter().find(|&&node| share(node) < least) {
                let percent = share(node) * 100.0;
                let reason = format!("only {percent:.0} % of interleaved memory is on node {node}");
                return Err(nothing(reason));
            }
        }
        Err(error) => buffers.warnings.push(Warning::Unverified {
            node: first,
            error: error.to_string(),
        }),
    }
    Ok(memory)
}

/// Memory without pages yet, which will be no huge pages of pools.
fn ordinary(bytes: usize, huge_pages: HugePages) -> Result<Mapping, ProbeError> {
    let backing = match huge_pages {
        HugePages::Off => Backing::Base,
        _ => Backing::Transparent,
    };
    Mapping::new(bytes, backing).map_err(|source| ProbeError::Memory {
        bytes: bytes as u64,
        source,
    })
}

fn touch(memory: &mut Mapping, options: &ProbeOptions) -> Result<(), ProbeError> {
    for start in (0..memory.bytes()).step_by(BYTES_PER_CANCEL_CHECK) {
        options.check_cancelled()?;
        memory.touch(start..start + BYTES_PER_CANCEL_CHECK);
    }
    Ok(())
}

fn kind_of_all(buffers: &[Buffer]) -> PageKind {
    let mut kinds = buffers.iter().map(|buffer| buffer.memory.page_kind());
    let first = kinds.next().unwrap_or(PageKind::Unknown);
    // Pools and transparent huge pages side by side are huge pages throughout.
    let huge = |kind| matches!(kind, PageKind::Pool | PageKind::Huge);
    kinds.fold(first, |all, kind| match all == kind {
        true => all,
        false if huge(all) && huge(kind) => PageKind::Huge,
        false => PageKind::Mixed,
    })
}

struct Allocation<'a> {
    machine: &'a Machine,
    sources: &'a [Source],
    options: &'a ProbeOptions,
    bytes: usize,
    several: bool,
    buffers: NodeBuffers,
}

impl Allocation<'_> {
    fn place(&mut self, node: NodeId) -> Result<(), ProbeError> {
        let mut memory = match self.pool(node) {
            Some(memory) => memory,
            None => match self.pages(node)? {
                Some(memory) => memory,
                None => return Ok(()),
            },
        };
        touch(&mut memory, self.options)?;
        if !self.several || self.is_in_place(node, &memory) {
            self.buffers.buffers.push(Buffer { node, memory });
        }
        Ok(())
    }

    /// Memory of the node's pool of huge pages, bound and there; `None` where that is not wanted or not possible.
    fn pool(&mut self, node: NodeId) -> Option<Mapping> {
        if !matches!(self.options.huge_pages, HugePages::Auto | HugePages::Pool) {
            return None;
        }
        let result = self.pool_pages(node).and_then(|page_bytes| {
            let memory = Mapping::new(self.bytes, Backing::Pool { page_bytes })?;
            if self.several {
                memory.bind(node).map_err(PoolError::Bind)?;
            }
            memory.populate().map_err(PoolError::Pages)?;
            Ok(memory)
        });
        if let (Err(reason), HugePages::Pool) = (&result, self.options.huge_pages) {
            self.buffers.warnings.push(Warning::NoPool {
                node,
                reason: reason.to_string(),
            });
        }
        result.ok()
    }

    /// The size of the pages of the pool that holds the buffer with least waste.
    fn pool_pages(&self, node: NodeId) -> Result<u64, PoolError> {
        let memory = self.machine.node(node).and_then(|node| node.memory.get());
        let pools = memory.map_or(&[][..], |memory| &memory.huge_pages);
        let need = |page_bytes: u64| (self.bytes as u64).div_ceil(page_bytes.max(1));
        let enough = pools.iter().filter(|pool| {
            pool.page_bytes.is_power_of_two()
                && pool.free.is_some_and(|free| free >= need(pool.page_bytes))
        });
        enough
            .map(|pool| pool.page_bytes)
            .min_by_key(|&page_bytes| need(page_bytes) * page_bytes)
            .ok_or_else(|| {
                let free: u64 = pools
                    .iter()
                    .map(|pool| pool.free.unwrap_or(0).saturating_mul(pool.page_bytes))
                    .sum();
                PoolError::TooSmall {
                    free_mib: free >> 20,
                    needed_mib: self.bytes >> 20,
                }
            })
    }

    /// Memory of ordinary pages, bound; or the calling thread pinned so that touching places it. `None` when the node
    /// has to be skipped.
    fn pages(&mut self, node: NodeId) -> Result<Option<Mapping>, ProbeError> {
        let memory = ordinary(self.bytes, self.options.huge_pages)?;
        // Touching from the node itself is quickest, too.
        let source = self.sources.iter().find(|source| source.node == node);
        let is_on_node = source.is_some_and(|source| affinity::pin(source.cpu).is_ok());
        let refused: Option<io::Error> = if self.several {
            memory.bind(node).err()
        } else {
            None
        };
        match refused {
            Some(error) if !is_on_node => {
                let reason = format!(
                    "its memory cannot be bound ({error}) nor touched first by a CPU of its own"
                );
                self.buffers.skipped.push(SkippedPair {
                    cpu_node: None,
                    memory_node: Some(node),
                    reason,
                });
                return Ok(None);
            }
            Some(error) => self.buffers.warnings.push(Warning::BindRefused {
                node,
                error: error.to_string(),
            }),
            None => {}
        }
        Ok(Some(memory))
    }

    /// Whether a buffer is where it should be, as far as that can be told; says so when it is not.
    fn is_in_place(&mut self, node: NodeId, memory: &Mapping) -> bool {
        match memory.share_elsewhere(node) {
            Ok(share) if share > 0.5 => {
                let reason = format!(
                    "{:.0} % of the pages meant for it are on another node",
                    share * 100.0
                );
                self.buffers.skipped.push(SkippedPair {
                    cpu_node: None,
                    memory_node: Some(node),
                    reason,
                });
                return false;
            }
            Ok(0.0) => {}
            Ok(share) => self.buffers.warnings.push(Warning::PagesElsewhere {
                node,
                percent: share * 100.0,
            }),
            Err(error) => self.buffers.warnings.push(Warning::Unverified {
                node,
                error: error.to_string(),
            }),
        }
        true
    }
}
