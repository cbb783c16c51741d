//! Moves a process's own pages to a node: move_pages(2) with MPOL_MF_MOVE.
//!
//! ```text
//! numa_maps ──► mappings with pages on other nodes ──► pagemap: which pages are there ──► move_pages: where each is
//!                                                                                                 │ on another node
//!                      counts: moved, shared, busy ... ◄── move_pages: to the node, by batches ◄──┘
//! ```
//!
//! migrate_pages(2) is shorter, and with CAP_SYS_NICE it also moves pages that other processes map (do_migrate_pages in
//! mm/mempolicy.c is given MPOL_MF_MOVE_ALL). MPOL_MF_MOVE answers EACCES for such a page.

use std::fs::File;
use std::io::{self, BufReader};
use std::ops::{AddAssign, Range};
use std::os::unix::fs::FileExt as _;

use nearfar_machine::{NodeId, NodeSet};
use nearfar_proc::move_pages::{move_own, where_are};

use super::maps::{self, Share};

/// Addresses in one call of move_pages: 64 MiB of small pages, a tenth of a second. Each call makes every CPU give up the pages it
/// has not put on a list yet (lru_cache_disable in mm/swap.c), so fewer would cost more.
const BATCH: usize = 16_384;
/// Entries of pagemap in one read.
const PAGEMAP_ENTRIES: usize = 16_384;
/// Set in an entry of pagemap whose page is in memory (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
/// What became of pages, in pages of the system's size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::keeper) struct Counts {
    /// They are on the node now.
    pub(in crate::keeper) moved: u64,
    /// Other processes map them as well.
    pub(in crate::keeper) shared: u64,
    /// In use by the kernel at that moment.
    pub(in crate::keeper) busy: u64,
    /// The node had no room.
    pub(in crate::keeper) no_memory: u64,
    /// Anything else: unmapped meanwhile, cannot be moved.
    pub(in crate::keeper) other: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.moved += more.moved;
        self.shared += more.shared;
        self.busy += more.busy;
        self.no_memory += more.no_memory;
        self.other += more.other;
    }
}

/// Moves the pages of a process that are on these nodes. `count` is called for each batch; after one `is_over` may end it.
///
/// # Errors
/// When the process is gone (`ESRCH`, `ENOENT`) or another user's, or the kernel refuses as a whole.
pub(super) fn move_to(
    pid: i32,
    from: &NodeSet,
    to: NodeId,
    is_over: &dyn Fn() -> bool,
    count: &mut dyn FnMut(Counts),
) -> io::Result<()> {
    let open = |name: &str| nearfar_proc::tasks::open(pid, name);
    let shares = maps::on_nodes(BufReader::new(open("numa_maps")?), from)?;
    let ranges = maps::ranges(BufReader::new(open("maps")?), &shares)?;
    let node = libc::c_int::try_from(to.0).map_err(io::Error::other)?;
    let page_bytes = rustix::param::page_size() as u64;
    let mut batch = Batch {
        pid,
        node,
        pages_each: 1,
        addresses: Vec::new(),
        count,
    };
    // Only its owner may open this one, whatever else this process may do (CAP_DAC_READ_SEARCH): the service may not.
    let walk = Walk {
        pid,
        from,
        page_bytes,
        pagemap: open("pagemap").ok(),
        is_over,
    };
    for (range, share) in ranges {
        let pages_each = (share.page_bytes / page_bytes).max(1);
        if pages_each != batch.pages_each {
            batch.flush()?;
            batch.pages_each = pages_each;
        }
        if !walk.mapping(range, share, &mut batch)? {
            return Ok(());
        }
    }
    batch.flush()
}

struct Walk<'a> {
    pid: i32,
    from: &'a NodeSet,
    page_bytes: u64,
    /// Without it every address of a mapping is asked for.
    pagemap: Option<File>,
    is_over: &'a dyn Fn() -> bool,
}

impl Walk<'_> {
    /// The pages of one mapping; whether to go on with the next.
    fn mapping(&self, range: Range<u64>, share: Share, batch: &mut Batch<'_>) -> io::Result<bool> {
        let mut entries = vec![0; 8 * PAGEMAP_ENTRIES];
        let (mut at, mut left) = (range.start, share.pages);
        // A mapping may be a hundred terabytes with a few pages in it: no further than the last of them.
        while at < range.end && left > 0 {
            if (self.is_over)() {
                return Ok(false);
            }
            let pages = usize::try_from((range.end - at) / self.page_bytes)
                .unwrap_or(usize::MAX)
                .min(PAGEMAP_ENTRIES);
            let read = match &self.pagemap {
                Some(pagemap) => {
                    pagemap.read_at(&mut entries[..8 * pages], at / self.page_bytes * 8)? / 8
                }
                None => pages,
            };
            if read == 0 {
                break;
            }
            let entry = |index: usize| {
                entries[8 * index..]
                    .first_chunk()
                    .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
            };
            // Only the first address of a page of hugetlbfs can be asked for.
            let first = (at - range.start) / self.page_bytes;
            let begins = |&index: &usize| (first + index as u64).is_multiple_of(batch.pages_each);
            let present = (0..read)
                .filter(begins)
                .filter(|&index| self.pagemap.is_none() || entry(index) & PRESENT != 0);
            let present: Vec<u64> = present
                .map(|index| at + index as u64 * self.page_bytes)
                .collect();
            let nodes = where_are(self.pid, &present)?;
            let is_far = |node: libc::c_int| {
                u32::try_from(node).is_ok_and(|node| self.from.contains(NodeId(node)))
            };
            let far = present
                .iter()
                .zip(nodes)
                .filter(|&(_, node)| is_far(node))
                .map(|(&address, _)| address);
            let before = batch.addresses.len();
            batch.addresses.extend(far);
            left = left.saturating_sub((batch.addresses.len() - before) as u64);
            if batch.addresses.len() >= BATCH {
                batch.flush()?;
            }
            at += read as u64 * self.page_bytes;
        }
        Ok(true)
    }
}

/// Pages to be moved with the next call.
struct Batch<'a> {
    pid: i32,
    node: libc::c_int,
    /// Pages of the system's size in each.
    pages_each: u64,
    addresses: Vec<u64>,
    count: &'a mut dyn FnMut(Counts),
}

impl Batch<'_> {
    fn flush(&mut self) -> io::Result<()> {
        let addresses = std::mem::take(&mut self.addresses);
        if addresses.is_empty() {
            return Ok(());
        }
        let statuses = move_own(self.pid, &addresses, self.node)?;
        // The second address in a huge page finds the page taken from its list already, and moves with the first.
        let (again, errors): (Vec<u64>, Vec<libc::c_int>) = addresses
            .iter()
            .copied()
            .zip(statuses)
            .filter(|&(_, status)| status != self.node)
            .unzip();
        let now = where_are(self.pid, &again)?;
        let mut counts = Counts {
            moved: (addresses.len() - again.len()) as u64 * self.pages_each,
            ..Counts::default()
        };
        for (error, now) in errors.into_iter().zip(now) {
            let reason = match -error {
                _ if now == self.node => &mut counts.moved,
                libc::EACCES => &mut counts.shared,
                libc::EBUSY => &mut counts.busy,
                libc::ENOMEM => &mut counts.no_memory,
                _ => &mut counts.other,
            };
            *reason += self.pages_each;
        }
        (self.count)(counts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_page_is_found_in_a_mapping_with_few() {
        let (bytes, page) = (1_usize << 36, rustix::param::page_size());
        // SAFETY: a new mapping.
        let begin = unsafe {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let Ok(begin) = begin else {
            return println!("skipped: kernel: no 64 GiB of addresses here");
        };
        // SAFETY: inside the mapping.
        unsafe { begin.cast::<u8>().add(bytes / 64).write(1) };
        let pid = std::process::id().cast_signed();
        let nodes: NodeSet = (0..64).map(NodeId).collect();
        let range = begin as u64..begin as u64 + bytes as u64;
        let share = Share {
            pages: 1,
            page_bytes: page as u64,
        };
        for pagemap in [File::open("/proc/self/pagemap").ok(), None] {
            let walk = Walk {
                pid,
                from: &nodes,
                page_bytes: page as u64,
                pagemap,
                is_over: &|| false,
            };
            let mut batch = Batch {
                pid,
                node: 0,
                pages_each: 1,
                addresses: Vec::new(),
                count: &mut |_| {},
            };
            match walk.mapping(range.clone(), share, &mut batch) {
                Err(error) => println!("skipped: kernel: {error}"),
                Ok(_) => {
                    assert!(
                        batch
                            .addresses
                            .contains(&(begin as u64 + bytes as u64 / 64)),
                        "{:?}",
                        batch.addresses
                    )
                }
            }
        }
        // SAFETY: the mapping made above, which nothing points into any more.
        unsafe { rustix::mm::munmap(begin, bytes).unwrap() };
    }
}
