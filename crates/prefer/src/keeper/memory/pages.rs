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
use nearfar_proc::move_pages::{NotMoved, move_own, where_are};
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
    let node = libc::c_int::try_from(to.0).map_err(io::Error::other)?;
    let page_bytes = rustix::param::page_size() as u64;
    let mut batch = Batch {
        pid,
        node,
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
    node: libc::c_int,
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
            let reason = match NotMoved::of(error) {
                _ if now == self.node => &mut counts.moved,
                NotMoved::Shared => &mut counts.shared,
                NotMoved::Busy => &mut counts.busy,
                NotMoved::NoMemory => &mut counts.no_memory,
                NotMoved::Gone | NotMoved::Other => &mut counts.other,
            };
            *reason += self.pages_each;
        }
        (self.count)(counts);
        Ok(())
    }
}
