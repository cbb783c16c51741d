//! Buffers where they should be: one on each node, bound there, touched, and verified with move_pages.
//!
//! ```text
//!  pool of huge pages ──no──► transparent ones ──no──► base pages         per node, as the options allow
//!  mbind ──refused──► first touch by a CPU of the node ──no such CPU──► the node is skipped
//! ```
//!
//! A [`Mapping`] is one such piece of memory; the probe maps its own.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nearfar_machine::{Machine, NodeId};
use nearfar_proc::{affinity, maps};
use serde::{Deserialize, Serialize};

use crate::node_selection::{SkippedPair, Source};
use crate::options::{HugePages, ProbeError, ProbeOptions};
use crate::warning::Warning;

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
                let skipped = SkippedPair::new(None, Some(node), reason);
                self.buffers.skipped.push(skipped);
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
                let skipped = SkippedPair::new(None, Some(node), reason);
                self.buffers.skipped.push(skipped);
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

/// `MAP_HUGE_SHIFT` of include/uapi/asm-generic/hugetlb_encode.h: the flags above it hold the page size's logarithm.
const MAP_HUGE_SHIFT: u32 = 26;
/// How many pages of a mapping are asked for their node.
const PAGES_ASKED: usize = 128;
/// A huge page of x86-64 and of arm64 with 4 KiB pages; the size that alignment aims at.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Which pages to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// Transparent huge pages, where the kernel has some.
    Transparent,
    /// Pages of this size from the pool that was set aside (hugetlb).
    Pool { page_bytes: u64 },
    /// Base pages and no others.
    Base,
}

/// What pages the buffers got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// Huge pages of a node's pool (hugetlb): hardly any address translation in the figures.
    Pool,
    /// Transparent huge pages throughout: the same.
    Huge,
    /// Some of them huge.
    Mixed,
    /// Base pages only: most loads also pay for an address translation.
    Base,
    /// `/proc/self/smaps` could not be read.
    Unknown,
}

impl std::fmt::Display for PageKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pool => "huge pages of the nodes' pools",
            Self::Huge => "huge pages",
            Self::Mixed => "partly huge pages",
            Self::Base => "base pages",
            Self::Unknown => "pages of unknown size",
        })
    }
}

/// Anonymous memory, unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    /// Bytes mapped; `words` hands out the aligned middle.
    mapped: usize,
    /// Bytes from `start` to the first huge page boundary.
    lead: usize,
    /// Bytes usable from there on.
    bytes: usize,
    backing: Backing,
}

// SAFETY: the memory belongs to the mapping alone, and does not depend on the thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps at least `bytes`, aligned for huge pages and asking for what `backing` says. No page is there yet.
    pub(crate) fn new(bytes: usize, backing: Backing) -> io::Result<Self> {
        let (granule, extra, pool) = match backing {
            Backing::Pool { page_bytes } => (
                page_bytes as usize,
                0,
                libc::MAP_HUGETLB | (page_bytes.ilog2() << MAP_HUGE_SHIFT) as libc::c_int,
            ),
            Backing::Transparent | Backing::Base => (rustix::param::page_size(), HUGE_PAGE, 0),
        };
        let bytes = bytes
            .checked_next_multiple_of(granule)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = bytes.checked_add(extra).ok_or(io::ErrorKind::OutOfMemory)?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | pool,
        );
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let lead = if extra == 0 {
            0
        } else {
            start.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE)
        };
        let mapping = Self {
            start,
            mapped,
            lead,
            bytes,
            backing,
        };
        // A refusal only means other pages than wished for, which `page_kind` finds out.
        let _ = match backing {
            Backing::Transparent => mapping.advise(libc::MADV_HUGEPAGE),
            Backing::Base => mapping.advise(libc::MADV_NOHUGEPAGE),
            Backing::Pool { .. } => Ok(()),
        };
        Ok(mapping)
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range lies within the mapping of `new`; none of the advice in use here drops its content.
        succeeded(unsafe { libc::madvise(self.base().cast(), self.bytes, advice) }.into())
    }

    /// Has the kernel put a page everywhere, for pages of a pool: merely touching one that the bound node lacks would
    /// end the process with SIGBUS. Fails there instead, and on kernels before 5.14, which cannot do it.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.advise(libc::MADV_POPULATE_WRITE)
    }

    /// Touches each page in `range` (in bytes), which puts it where the policy says.
    pub(crate) fn touch(&mut self, range: std::ops::Range<usize>) {
        let words = self.words_mut();
        let (start, end) = (
            range.start / size_of::<u64>(),
            (range.end / size_of::<u64>()).min(words.len()),
        );
        for word in words[start.min(end)..end]
            .iter_mut()
            .step_by(rustix::param::page_size() / size_of::<u64>())
        {
            *word = 0;
        }
    }

    /// Which pages were asked for.
    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// Bytes to be had.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: `lead` is at most HUGE_PAGE, and the mapping is HUGE_PAGE longer than `bytes`.
        unsafe { self.start.as_ptr().add(self.lead) }
    }

    /// Binds the memory to a node. Pages follow when they are touched.
    pub(crate) fn bind(&self, node: NodeId) -> io::Result<()> {
        self.take_pages_from(libc::MPOL_BIND, &[node])
    }

    /// Interleaves the memory among nodes. Pages follow when they are touched.
    pub(crate) fn interleave(&self, nodes: &[NodeId]) -> io::Result<()> {
        self.take_pages_from(libc::MPOL_INTERLEAVE, nodes)
    }

    fn take_pages_from(&self, mode: libc::c_int, nodes: &[NodeId]) -> io::Result<()> {
        let (mask, longest) = mask(nodes);
        let (flags, length) = (0 as libc::c_ulong, self.bytes as libc::c_ulong);
        // SAFETY: the address range is this mapping's; the mask outlives the call and is as long as said.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base(),
                length,
                mode,
                mask.as_ptr(),
                longest,
                flags,
            )
        };
        succeeded(result)
    }

    /// The memory as words, to be read.
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: the range is mapped, aligned to far more than a word, initialised by the kernel with zeroes, and
        // borrowed from `self`, so nothing writes to it meanwhile.
        unsafe {
            std::slice::from_raw_parts(self.base().cast::<u64>(), self.bytes / size_of::<u64>())
        }
    }

    /// The memory as words, to be written.
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as for `words`; the borrow is exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(self.base().cast::<u64>(), self.bytes / size_of::<u64>())
        }
    }

    /// The first word, for several threads at once; the cache line around it is its own, as long as `words` and
    /// `words_mut` are not used meanwhile.
    pub(crate) fn first_word(&self) -> &AtomicU64 {
        // SAFETY: the memory is mapped, aligned to a page and lives as long as the borrow. That borrow excludes
        // `words_mut`; `words` is not called on the page that a caller hands over.
        unsafe { AtomicU64::from_ptr(self.base().cast::<u64>()) }
    }

    /// The memory as words that several threads read and write.
    pub(crate) fn shared_words(&self) -> &[AtomicU64] {
        // SAFETY: as for `words`, and an atomic word is laid out as a word. The borrow excludes `words_mut`; `words` is not called
        // by those who share the memory.
        unsafe {
            let start = self.base().cast::<AtomicU64>();
            std::slice::from_raw_parts(start, self.bytes / size_of::<AtomicU64>())
        }
    }

    /// The share of its pages that are not on `node`, from pages spread evenly over it.
    fn share_elsewhere(&self, node: NodeId) -> io::Result<f64> {
        let nodes = self.nodes_of_pages(PAGES_ASKED)?;
        let elsewhere = nodes.iter().filter(|&&place| place != Some(node)).count();
        Ok(elsewhere as f64 / nodes.len().max(1) as f64)
    }

    /// The nodes of about `most` of its pages, spread evenly over it, by move_pages(2); none for a page that is not there.
    pub(crate) fn nodes_of_pages(&self, most: usize) -> io::Result<Vec<Option<NodeId>>> {
        let page = rustix::param::page_size();
        let step = self.bytes.div_ceil(most.max(1)).next_multiple_of(page);
        let mut pages: Vec<*mut u8> = (0..self.bytes)
            .step_by(step)
            .map(|offset| self.base().wrapping_add(offset))
            .collect();
        let mut status: Vec<libc::c_int> = vec![0; pages.len()];
        let (this_process, count, flags) = (
            0 as libc::c_int,
            pages.len() as libc::c_ulong,
            0 as libc::c_int,
        );
        let no_nodes: *const libc::c_int = std::ptr::null();
        // SAFETY: without target nodes move_pages only writes `count` states into `status`, which is that long.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                this_process,
                count,
                pages.as_mut_ptr(),
                no_nodes,
                status.as_mut_ptr(),
                flags,
            )
        };
        succeeded(result)?;
        // What is no node is an error's number, below 0.
        Ok(status
            .iter()
            .map(|&status| u32::try_from(status).ok().map(NodeId))
            .collect())
    }

    /// What its pages are, as `/proc/self/smaps` counts them.
    pub(crate) fn page_kind(&self) -> PageKind {
        if matches!(self.backing, Backing::Pool { .. }) {
            return PageKind::Pool;
        }
        let Ok(smaps) = std::fs::read("/proc/self/smaps") else {
            return PageKind::Unknown;
        };
        let start = self.base() as u64;
        match maps::huge_bytes(&smaps, start..start + self.bytes as u64) {
            None => PageKind::Unknown,
            Some(0) => PageKind::Base,
            // The ends of a mapping need not be huge.
            Some(huge) if huge >= self.bytes as u64 / 10 * 9 => PageKind::Huge,
            Some(_) => PageKind::Mixed,
        }
    }
}

/// Has all memory of the calling thread that has no policy of its own come from this node, or, with none, from wherever
/// it runs, whatever its caller had it do.
pub(crate) fn set_policy(node: Option<NodeId>) -> io::Result<()> {
    let (mode, (mask, longest)) = match node {
        Some(node) => (libc::MPOL_BIND, mask(&[node])),
        None => (libc::MPOL_DEFAULT, (Vec::new(), 0)),
    };
    // The kernel takes one bit less than the length says, and an empty mask has to be a null pointer (get_nodes in
    // mm/mempolicy.c).
    let start = match mask.is_empty() {
        true => std::ptr::null(),
        false => mask.as_ptr(),
    };
    // SAFETY: the mask outlives the call and is as long as said.
    succeeded(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, start, longest) })
}

/// The error of a system call that has just answered other than 0.
fn succeeded(answer: libc::c_long) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A mask of nodes, and the length that is to be said of it.
fn mask(nodes: &[NodeId]) -> (Vec<libc::c_ulong>, libc::c_ulong) {
    let bits = libc::c_ulong::BITS;
    let mut mask: Vec<libc::c_ulong> = Vec::new();
    for node in nodes {
        let word = (node.0 / bits) as usize;
        mask.resize(mask.len().max(word + 1), 0);
        mask[word] |= 1 << (node.0 % bits);
    }
    // The kernel reads one bit less than the argument says (get_nodes in mm/mempolicy.c).
    let longest = mask.len() as libc::c_ulong * libc::c_ulong::from(bits) + 1;
    (mask, longest)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; the slices handed out borrow `self`, so none is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_zeroed_and_writable() {
        let mut mapping = Mapping::new(3 << 20, Backing::Transparent).unwrap();
        assert_eq!(mapping.words().len(), (3 << 20) / 8);
        assert!(mapping.words().as_ptr().addr().is_multiple_of(HUGE_PAGE));
        assert!(mapping.words().iter().all(|&word| word == 0));
        mapping.words_mut().fill(7);
        assert!(mapping.words().iter().all(|&word| word == 7));
    }

    #[test]
    fn more_memory_than_there_are_addresses_is_an_error() {
        assert!(Mapping::new(usize::MAX, Backing::Base).is_err());
        assert!(Mapping::new(usize::MAX / 2, Backing::Transparent).is_err());
    }

    #[test]
    fn touching_fills_the_range_and_no_more() {
        let mut mapping = Mapping::new(1 << 20, Backing::Base).unwrap();
        mapping.words_mut().fill(7);
        mapping.touch(4096..8192);
        assert_eq!(
            mapping.words().iter().filter(|&&word| word == 0).count(),
            (4096 / rustix::param::page_size()).max(1)
        );
        mapping.touch(0..usize::MAX);
        assert_eq!(mapping.page_kind(), PageKind::Base);
    }

    #[test]
    fn a_pool_without_pages_refuses_instead_of_killing() {
        // 1 GiB pages are in no pool here; where they are, populating works.
        match Mapping::new(
            1 << 30,
            Backing::Pool {
                page_bytes: 1 << 30,
            },
        ) {
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
            Ok(mapping) => assert_eq!(mapping.page_kind(), PageKind::Pool),
        }
    }
}
