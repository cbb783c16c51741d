//! Memory of a chosen node: mapped, bound, touched, and looked at where it went.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nearfar_machine::NodeId;
use nearfar_proc::maps;

use serde::{Deserialize, Serialize};

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
        match unsafe { libc::madvise(self.base().cast(), self.bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
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
    pub(crate) fn share_elsewhere(&self, node: NodeId) -> io::Result<f64> {
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
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
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
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, start, longest) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
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
