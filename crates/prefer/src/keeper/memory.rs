//! Memory of kept processes, where that was asked for: their own pages move to a node, move_pages(2) with MPOL_MF_MOVE.
//!
//! ```text
//! numa_maps ──► mappings with pages on other nodes ──► pagemap: which pages are there ──► move_pages: where each is
//!                                                                                                 │ on another node
//!                      counts: moved, shared, busy ... ◄── move_pages: to the node, by batches ◄──┘
//! ```
//!
//! migrate_pages(2) is shorter, and with CAP_SYS_NICE it also moves pages that other processes map (do_migrate_pages in
//! mm/mempolicy.c is given MPOL_MF_MOVE_ALL). MPOL_MF_MOVE answers EACCES for such a page.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearfar_machine::{NodeId, NodeSet};
use nearfar_proc::move_pages::{NotMoved, PagesOf, move_to as move_list};
use nearfar_proc::resident::{Next, Walk};
use nearfar_proc::{TaskId, tasks};

use crate::keeper::MovedMemory;

/// What is under way when the keeper ends has so long to be finished.
const TIME_TO_FINISH: Duration = Duration::from_secs(10);

/// Moves pages in a thread of its own: gigabytes take seconds.
pub(crate) struct Mover {
    orders: Option<Sender<TaskId>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the mover's thread and its owner share.
#[derive(Default)]
struct Shared {
    moved: Mutex<MovedMemory>,
    /// When the thread has to end.
    end: OnceLock<Instant>,
}

impl Shared {
    fn moved(&self) -> MutexGuard<'_, MovedMemory> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.end.get().is_some_and(|&end| Instant::now() >= end)
    }

    /// Moves one process's pages, and counts them.
    fn serve(&self, task: TaskId, from: &NodeSet, to: NodeId) {
        let is_there = || tasks::stat(task.tid).is_ok_and(|stat| stat.id == task);
        if !is_there() {
            return;
        }
        self.moved().moves += 1;
        let over = || self.is_over() || !is_there();
        let mut count = |counts: &MovedMemory| {
            tracing::debug!(
                pid = task.tid,
                node = to.0,
                moved = counts.pages_moved,
                shared = counts.left_shared,
                busy = counts.left_busy,
                "move pages"
            );
            self.moved().add(counts);
        };
        match move_to(task.tid, from, to, &over, &mut count) {
            Ok(()) => self.moved().is_interrupted |= self.is_over(),
            // It has ended.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {}
            Err(error) => {
                tracing::warn!(pid = task.tid, node = to.0, reason = %error, "pages not moved");
                self.moved().refused = Some(error.to_string());
            }
        }
    }
}

impl Mover {
    /// Moves from these nodes to this one.
    pub(crate) fn start(from: &NodeSet, to: NodeId) -> Self {
        let (orders, inbox) = mpsc::channel::<TaskId>();
        let shared = Arc::new(Shared::default());
        let (from, working) = (from.clone(), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("mover".to_owned())
            .spawn(move || {
                while let Ok(first) = inbox.recv() {
                    // A process that is asked for twice meanwhile is moved once.
                    let tasks: BTreeSet<TaskId> =
                        std::iter::once(first).chain(inbox.try_iter()).collect();
                    for task in tasks {
                        if working.is_over() {
                            working.moved().is_interrupted = true;
                            return;
                        }
                        working.serve(task, &from, to);
                    }
                }
            });
        Self {
            orders: Some(orders),
            shared,
            thread: thread.ok(),
        }
    }

    /// This process's pages are to follow it to its node.
    pub(crate) fn follow(&self, pid: i32) {
        let (Some(orders), Ok(stat)) = (&self.orders, tasks::stat(pid)) else {
            return;
        };
        let _ = orders.send(stat.id);
    }

    pub(crate) fn moved(&self) -> MovedMemory {
        self.shared.moved().clone()
    }

    /// Moves what it was asked for, as far as the time allows, and says all that was moved.
    pub(crate) fn end(mut self) -> MovedMemory {
        self.finish(TIME_TO_FINISH);
        self.moved()
    }

    fn finish(&mut self, within: Duration) {
        drop(self.orders.take());
        let _ = self.shared.end.set(Instant::now() + within);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.finish(Duration::ZERO);
    }
}

/// Addresses in one call of move_pages: 64 MiB of small pages, a tenth of a second. Each call makes every CPU give up the pages it
/// has not put on a list yet (lru_cache_disable in mm/swap.c), so fewer would cost more.
const BATCH: usize = 16_384;

/// Moves the pages of a process that are on these nodes. `count` is called for each batch; after one `is_over` may end it.
///
/// # Errors
/// When the process is gone (`ESRCH`, `ENOENT`) or another user's, or the kernel refuses as a whole.
fn move_to(
    pid: i32,
    from: &NodeSet,
    to: NodeId,
    is_over: &dyn Fn() -> bool,
    count: &mut dyn FnMut(&MovedMemory),
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
    count: &'a mut dyn FnMut(&MovedMemory),
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
        let mut counts = MovedMemory::default();
        for page in &moved.pages {
            let sum = match page {
                Ok(()) => &mut counts.pages_moved,
                Err(NotMoved::Shared) => &mut counts.left_shared,
                // Or behind busy pages, where the kernel ended every call.
                Err(NotMoved::Busy | NotMoved::NotTried) => &mut counts.left_busy,
                Err(NotMoved::NoMemory) => &mut counts.left_no_memory,
                Err(_) => &mut counts.left_other,
            };
            *sum += self.pages_each;
            if page.is_err() {
                counts.pages_left += self.pages_each;
            }
        }
        (self.count)(&counts);
        moved.refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_that_is_under_way_at_the_end_is_counted() {
        let node = NodeId(0);
        let mover = Mover::start(&NodeSet::single(node), node);
        mover.follow(std::process::id().cast_signed());
        let moved = mover.end();
        assert_eq!(moved.moves, 1, "{moved:?}");
        // Some containers and kernels refuse; with one node for both, everything found there is there.
        assert!(
            moved.pages_moved > 0 || moved.refused.is_some(),
            "{moved:?}"
        );
    }

    #[test]
    fn a_process_that_has_ended_is_not_mistaken_for_a_later_one() {
        let node = NodeId(0);
        let mover = Mover::start(&NodeSet::single(node), node);
        let me = tasks::stat(std::process::id().cast_signed()).unwrap().id;
        mover
            .orders
            .as_ref()
            .unwrap()
            .send(TaskId {
                start: me.start + 1,
                ..me
            })
            .unwrap();
        assert_eq!(mover.end(), MovedMemory::default());
    }
}
