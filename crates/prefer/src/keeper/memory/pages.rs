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

use std::io;
use std::ops::AddAssign;

use nearfar_machine::{NodeId, NodeSet};
use nearfar_proc::move_pages::{NotMoved, PagesOf, move_to as move_list};
use nearfar_proc::resident::{Next, Walk};

/// Addresses in one call of move_pages: 64 MiB of small pages, a tenth of a second. Each call makes every CPU give up the pages it
/// has not put on a list yet (lru_cache_disable in mm/swap.c), so fewer would cost more.
const BATCH: usize = 16_384;
/// What became of pages, in pages of the system's size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::keeper) struct Counts {
    /// They are on the node now.
    pub(in crate::keeper) moved: u64,
    /// Other processes map them as well.
    pub(in crate::keeper) shared: u64,
    /// In use by the kernel at that moment, or behind such pages where the kernel ended every call.
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
    let page_bytes = rustix::param::page_size() as u64;
    let mut batch = Batch {
        pid,
        node: to,
        pages_each: 1,
        addresses: Vec::new(),
        count,
    };
    let mut is_stopped = false;
    Walk::new(pid, from).each(&mut |pages, bytes_each| {
        is_stopped = is_over();
        if is_stopped {
            return Ok(Next::Stop);
        }
        batch.add(
            pages.iter().map(|page| page.address),
            bytes_each / page_bytes,
        )?;
        Ok(Next::Continue)
    })?;
    if is_stopped { Ok(()) } else { batch.flush() }
}

/// Pages to be moved with the next call.
struct Batch<'a> {
    pid: i32,
    node: NodeId,
    /// Pages of the system's size in each.
    pages_each: u64,
    addresses: Vec<u64>,
    count: &'a mut dyn FnMut(Counts),
}

impl Batch<'_> {
    fn add(&mut self, addresses: impl Iterator<Item = u64>, pages_each: u64) -> io::Result<()> {
        if pages_each != self.pages_each {
            self.flush()?;
            self.pages_each = pages_each;
        }
        self.addresses.extend(addresses);
        if self.addresses.len() >= BATCH {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let addresses = std::mem::take(&mut self.addresses);
        if addresses.is_empty() {
            return Ok(());
        }
        let own = PagesOf {
            pid: self.pid,
            shared: false,
        };
        let moved = move_list(&own, &addresses, self.node)?;
        let mut counts = Counts::default();
        for page in &moved.pages {
            let sum = match page {
                Ok(()) => &mut counts.moved,
                Err(NotMoved::Shared) => &mut counts.shared,
                Err(NotMoved::Busy | NotMoved::NotTried) => &mut counts.busy,
                Err(NotMoved::NoMemory) => &mut counts.no_memory,
                Err(_) => &mut counts.other,
            };
            *sum += self.pages_each;
        }
        (self.count)(counts);
        moved.refused.map_or(Ok(()), Err)
    }
}
