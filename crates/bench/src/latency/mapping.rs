//! Memory of a chosen node: mapped, bound, touched, and looked at where it went.

use std::io;
use std::ptr::NonNull;

use nearfar_machine::NodeId;

use super::PageKind;

/// `MPOL_BIND` of include/uapi/linux/mempolicy.h: take pages from these nodes and no others.
const MPOL_BIND: libc::c_ulong = 2;
/// How many pages of a mapping are asked for their node.
const PAGES_ASKED: usize = 128;
/// A huge page of x86-64 and of arm64 with 4 KiB pages; the size that alignment aims at.
const HUGE_PAGE: usize = 2 << 20;

/// Anonymous memory, unmapped when dropped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    /// Bytes mapped; `words` hands out the aligned middle.
    mapped: usize,
    /// Bytes from `start` to the first huge page boundary.
    lead: usize,
    /// Bytes usable from there on.
    bytes: usize,
}

impl Mapping {
    /// Maps at least `bytes`, aligned for huge pages and asking for them. No page is there yet.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let mapped = bytes.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let lead = start.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        let mapping = Self { start, mapped, lead, bytes };
        // SAFETY: the range lies within the mapping made above. A refusal only means base pages, which is
        // found out and reported by `page_kind`.
        unsafe { libc::madvise(mapping.base().cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(mapping)
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: `lead` is at most HUGE_PAGE, and the mapping is HUGE_PAGE longer than `bytes`.
        unsafe { self.start.as_ptr().add(self.lead) }
    }

    /// Binds the memory to a node. Pages follow when they are touched.
    pub(super) fn bind(&self, node: NodeId) -> io::Result<()> {
        let bits = libc::c_ulong::BITS;
        let mut mask: Vec<libc::c_ulong> = vec![0; (node.0 / bits) as usize + 1];
        if let Some(word) = mask.last_mut() {
            *word = 1 << (node.0 % bits);
        }
        // The kernel reads one bit less than it is told (get_nodes in mm/mempolicy.c).
        let longest = mask.len() as libc::c_ulong * libc::c_ulong::from(bits) + 1;
        let (flags, length) = (0 as libc::c_ulong, self.bytes as libc::c_ulong);
        // SAFETY: the address range is this mapping's; the mask outlives the call and is as long as said.
        let result =
            unsafe { libc::syscall(libc::SYS_mbind, self.base(), length, MPOL_BIND, mask.as_ptr(), longest, flags) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The memory as words, to be read.
    pub(super) fn words(&self) -> &[u64] {
        // SAFETY: the range is mapped, aligned to far more than a word, initialised by the kernel with zeroes, and
        // borrowed from `self`, so nothing writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(self.base().cast::<u64>(), self.bytes / size_of::<u64>()) }
    }

    /// The memory as words, to be written.
    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as for `words`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base().cast::<u64>(), self.bytes / size_of::<u64>()) }
    }

    /// The share of its pages that are not on `node`, from pages spread evenly over it.
    pub(super) fn share_elsewhere(&self, node: NodeId) -> io::Result<f64> {
        let page = rustix::param::page_size();
        let step = (self.bytes / PAGES_ASKED).max(page);
        let mut pages: Vec<*mut u8> =
            (0..self.bytes).step_by(step).map(|offset| self.base().wrapping_add(offset)).collect();
        let mut status: Vec<libc::c_int> = vec![0; pages.len()];
        let (this_process, count, flags) = (0 as libc::c_int, pages.len() as libc::c_ulong, 0 as libc::c_int);
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
        let elsewhere = status.iter().filter(|&&status| u32::try_from(status) != Ok(node.0)).count();
        Ok(elsewhere as f64 / status.len().max(1) as f64)
    }

    /// What its pages are, as `/proc/self/smaps` counts them.
    pub(super) fn page_kind(&self) -> PageKind {
        let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else {
            return PageKind::Unknown;
        };
        let start = self.base() as u64;
        match huge_bytes(&smaps, start, start + self.bytes as u64) {
            None => PageKind::Unknown,
            Some(0) => PageKind::Base,
            // The ends of a mapping need not be huge.
            Some(huge) if huge >= self.bytes as u64 / 10 * 9 => PageKind::Huge,
            Some(_) => PageKind::Mixed,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; the slices handed out borrow `self`, so none is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

/// Bytes of transparent huge pages in the areas of `smaps` that overlap an address range; `None` when none does.
/// Areas are counted whole: neighbours that the kernel merged into one have the same owner here.
fn huge_bytes(smaps: &str, start: u64, end: u64) -> Option<u64> {
    let (mut inside, mut found, mut huge) = (false, false, 0u64);
    for line in smaps.lines() {
        if let Some((from, to)) = address_range(line) {
            inside = from < end && to > start;
            found |= inside;
        } else if inside && let Some(size) = line.strip_prefix("AnonHugePages:") {
            let kilobytes = size.trim().strip_suffix("kB").and_then(|size| size.trim().parse::<u64>().ok());
            huge = huge.saturating_add(kilobytes.unwrap_or(0).saturating_mul(1024));
        }
    }
    found.then_some(huge)
}

fn address_range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
        Size:               4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr\n\
        7f0000400000-7f0000600000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\n";

    #[test]
    fn huge_pages_are_counted_in_the_areas_that_overlap() {
        assert_eq!(huge_bytes(SMAPS, 0x7f0000000000, 0x7f0000400000), Some(2 << 20));
        assert_eq!(huge_bytes(SMAPS, 0x7f0000200000, 0x7f0000600000), Some(4 << 20));
        assert_eq!(huge_bytes(SMAPS, 0x1000, 0x2000), None);
        assert_eq!(huge_bytes("", 0, u64::MAX), None);
    }

    #[test]
    fn a_mapping_is_aligned_zeroed_and_writable() {
        let mut mapping = Mapping::new(3 << 20).unwrap();
        assert_eq!(mapping.words().len(), (3 << 20) / 8);
        assert!(mapping.words().as_ptr().addr().is_multiple_of(HUGE_PAGE));
        assert!(mapping.words().iter().all(|&word| word == 0));
        mapping.words_mut().fill(7);
        assert!(mapping.words().iter().all(|&word| word == 7));
    }

    #[test]
    fn more_memory_than_there_are_addresses_is_an_error() {
        assert!(Mapping::new(usize::MAX).is_err());
        assert!(Mapping::new(usize::MAX / 2).is_err());
    }
}
