//! Moving pages batch by batch, each recorded before.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use nearfar_machine::{NodeBytes, NodeId};
use nearfar_proc::error_text;
use nearfar_proc::move_pages::{Moved, NotMoved, move_to, node_of};
use nearfar_proc::resident::{Next, Page};

use super::MoveRequest;
use super::pages::{Pages, ProcessChanged};
use super::record::RecordFile;
use crate::outcome::MovedMemory;
use crate::system::System;

/// Bytes in one call of move_pages: the process runs between two calls, and a cancel waits for one.
const BATCH_BYTES: u64 = 2 << 20;
/// How long at most the mover waits before it looks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a move ended before its last page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StopReason {
    #[error("interrupted")]
    Cancelled,
    #[error(transparent)]
    Process(ProcessChanged),
    #[error("node {0} has no free memory left")]
    NoFreeMemory(NodeId),
    #[error("cannot record where the next pages are, so they were not moved: {}", error_text(.0))]
    NotRecorded(io::Error),
    #[error("the kernel refuses to move pages: {}", error_text(.0))]
    Refused(io::Error),
}

/// A limit to the rate. Of each batch, so that a move that was slow or stopped does not catch up.
pub(crate) struct RateLimit {
    bytes_per_s: Option<u64>,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Self {
        Self {
            bytes_per_s: bytes_per_s.filter(|&rate| rate > 0),
        }
    }

    /// When the batch after one of so many bytes may begin.
    pub(crate) fn due(&self, began: Instant, bytes: u64) -> Instant {
        let seconds = self
            .bytes_per_s
            .map_or(0.0, |rate| bytes as f64 / rate as f64);
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        began.checked_add(wait).unwrap_or(began)
    }
}

/// A move that is under way.
pub(crate) struct Mover<'a> {
    pub(crate) pages: &'a dyn Pages,
    pub(crate) request: &'a MoveRequest,
    pub(crate) system: &'a dyn System,
    pub(crate) record: &'a mut RecordFile,
    pub(crate) rate: RateLimit,
    pub(crate) is_cancelled: &'a dyn Fn() -> bool,
    /// Called with the bytes that were tried.
    pub(crate) progress: &'a dyn Fn(u64),
    /// Bytes of a transparent huge page: one that begins in a batch is in it as a whole, since it moves as a whole.
    pub(crate) huge_page_bytes: u64,
    pub(crate) state: State,
}

/// How far a move is.
#[derive(Default)]
pub(crate) struct State {
    /// The next batch, in ascending order.
    batch: Vec<Page>,
    page_bytes: u64,
    tried_bytes: u64,
    pub(crate) moved: MovedMemory,
    pub(crate) moved_from: BTreeMap<NodeId, u64>,
    /// Whether pages may have moved that are not counted: the kernel did not answer where they are.
    pub(crate) is_unsettled: bool,
    pub(crate) end: Option<StopReason>,
}

impl Mover<'_> {
    /// Takes pages as the walk finds them; moves whole batches.
    pub(crate) fn take(&mut self, pages: &[Page], page_bytes: u64) -> Next {
        if (self.is_cancelled)() {
            self.state.end = Some(StopReason::Cancelled);
        }
        if page_bytes != self.state.page_bytes {
            self.flush();
            self.state.page_bytes = page_bytes;
        }
        for &page in pages {
            if self.is_full_before(page) {
                self.flush();
            }
            if self.state.end.is_some() {
                return Next::Stop;
            }
            self.state.batch.push(page);
        }
        match self.state.end {
            Some(_) => Next::Stop,
            None => Next::Continue,
        }
    }

    fn is_full_before(&self, page: Page) -> bool {
        let State {
            batch, page_bytes, ..
        } = &self.state;
        let region = |page: &Page| page.address / self.huge_page_bytes.max(1);
        let bytes = (batch.len() as u64).saturating_mul(*page_bytes);
        bytes >= BATCH_BYTES
            && batch
                .last()
                .is_some_and(|last| region(last) != region(&page))
    }

    /// Moves what was taken and not moved yet.
    pub(crate) fn flush(&mut self) {
        let batch = std::mem::take(&mut self.state.batch);
        if batch.is_empty() || self.state.end.is_some() {
            return;
        }
        let began = Instant::now();
        if (self.is_cancelled)() {
            self.state.end = Some(StopReason::Cancelled);
        } else if let Err(end) = self.move_batch(&batch) {
            self.state.end = Some(end);
        }
        let bytes = batch.len() as u64 * self.state.page_bytes;
        self.state.tried_bytes += bytes;
        (self.progress)(self.state.tried_bytes);
        self.wait_until(self.rate.due(began, bytes));
    }

    fn move_batch(&mut self, batch: &[Page]) -> Result<(), StopReason> {
        self.check()?;
        let far = self.still_far(batch)?;
        if far.is_empty() {
            return Ok(());
        }
        let page_bytes = self.state.page_bytes;
        let addresses: Vec<u64> = far.iter().map(|page| page.address).collect();
        let kinds = self.pages.entries(&addresses).ok();
        let kinds: Option<Vec<bool>> =
            kinds.map(|entries| entries.iter().map(|entry| entry.is_of_file()).collect());
        self.record
            .before(self.system, &far, kinds.as_deref(), page_bytes)
            .map_err(StopReason::NotRecorded)?;
        // Again: recording took time, in which the process may have ended and its number been given to another.
        self.check()?;
        self.state.is_unsettled = true;
        let moved = move_to(self.pages, &addresses, self.request.to)
            .map_err(|error| self.refusal(error))?;
        let stayed = self.count(&far, &moved);
        self.state.is_unsettled = false;
        if !stayed.is_empty() {
            self.record
                .stayed(self.system, &stayed, page_bytes)
                .map_err(StopReason::NotRecorded)?;
        }
        let is_full = moved.pages.contains(&Err(NotMoved::NoMemory));
        match moved.refused {
            Some(error) => Err(self.refusal(error)),
            // Of hugetlbfs, neither the pool nor the memory has a free page of that size: smaller pages may still move.
            None if is_full && page_bytes <= system_page_bytes() => {
                Err(StopReason::NoFreeMemory(self.request.to))
            }
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<(), StopReason> {
        self.pages.check().map_err(StopReason::Process)
    }

    /// Those that have not moved or gone since the walk found them.
    fn still_far(&self, batch: &[Page]) -> Result<Vec<Page>, StopReason> {
        let addresses: Vec<u64> = batch.iter().map(|page| page.address).collect();
        let now = self.pages.where_are(&addresses);
        let now = now.map_err(|error| self.refusal(error))?;
        let pages = addresses.iter().zip(now).filter_map(|(&address, status)| {
            let node = node_of(status)?;
            let is_far = self.request.from.contains(node);
            is_far.then_some(Page { address, node })
        });
        Ok(pages.collect())
    }

    /// The end of the process is not the kernel's refusal.
    fn refusal(&self, error: io::Error) -> StopReason {
        match self.pages.check() {
            Err(changed) => StopReason::Process(changed),
            Ok(()) => StopReason::Refused(error),
        }
    }

    /// Counts what became of each page; those that are known to be on another node than the target. A page that is not there is
    /// not one of them: before Linux 6.6 NUMA balancing hides pages, and this one may have moved.
    fn count(&mut self, pages: &[Page], moved: &Moved) -> Vec<Page> {
        let mut stayed = Vec::new();
        let bytes = self.state.page_bytes;
        for (page, result) in pages.iter().zip(&moved.pages) {
            match result {
                Ok(()) => {
                    self.state.moved.moved_bytes += bytes;
                    *self.state.moved_from.entry(page.node).or_default() += bytes;
                }
                Err(reason) => {
                    self.state.moved.not_moved.add(*reason, bytes);
                    if *reason != NotMoved::Gone {
                        stayed.push(*page);
                    }
                }
            }
        }
        stayed
    }

    fn wait_until(&self, due: Instant) {
        while self.state.end.is_none() && !(self.is_cancelled)() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(CANCEL_INTERVAL));
        }
    }
}

fn system_page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The memory by node after a move, from that before.
pub(crate) fn after(
    before: &[NodeBytes],
    moved_from: &BTreeMap<NodeId, u64>,
    to: NodeId,
) -> Vec<NodeBytes> {
    let mut bytes: BTreeMap<NodeId, u64> = before.iter().map(|on| (on.node, on.bytes)).collect();
    for (node, moved) in moved_from {
        let on = bytes.entry(*node).or_default();
        *on = on.saturating_sub(*moved);
        *bytes.entry(to).or_default() += moved;
    }
    let all = bytes.into_iter().filter(|(_, bytes)| *bytes > 0);
    all.map(|(node, bytes)| NodeBytes { node, bytes }).collect()
}
