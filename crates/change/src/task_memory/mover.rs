//! Moving pages batch by batch, each recorded before, and bringing them back, each to the node that it came from.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use nearfar_machine::{NodeBytes, NodeId};
use nearfar_proc::error_text;
use nearfar_proc::move_pages::{Moved, NotMoved, can_move_all, move_to, node_of};
use nearfar_proc::resident::{Next, Page};

use crate::outcome::{MovedMemory, RestoredMemory, UndoResult};
use crate::state::StateDir;
use crate::system::System;
use crate::task_memory::MoveRequest;
use crate::task_memory::pages::{HeldProcess, LivePages, Namespaces, Pages, ProcessChanged};
use crate::task_memory::record::{self, Batch, RecordFile, RecordHeader};

/// Bytes in one call of move_pages: the process runs between two calls, and a cancel waits for one.
const BATCH_BYTES: u64 = 2 << 20;
/// How long at most the mover waits before it looks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a move, or its undo, ended before its last page.
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

fn check(pages: &dyn Pages) -> Result<(), StopReason> {
    pages.check().map_err(StopReason::Process)
}

/// The end of the process is not the kernel's refusal.
pub(crate) fn refused(pages: &dyn Pages, error: io::Error) -> StopReason {
    check(pages).err().unwrap_or(StopReason::Refused(error))
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
        check(self.pages)?;
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
        check(self.pages)?;
        self.state.is_unsettled = true;
        let moved = move_to(self.pages, &addresses, self.request.to)
            .map_err(|error| refused(self.pages, error))?;
        let stayed = self.count(&far, &moved);
        self.state.is_unsettled = false;
        if !stayed.is_empty() {
            self.record
                .stayed(self.system, &stayed, page_bytes)
                .map_err(StopReason::NotRecorded)?;
        }
        let is_full = moved.pages.contains(&Err(NotMoved::NoMemory));
        match moved.refused {
            Some(error) => Err(refused(self.pages, error)),
            // Of hugetlbfs, neither the pool nor the memory has a free page of that size: smaller pages may still move.
            None if is_full && page_bytes <= system_page_bytes() => {
                Err(StopReason::NoFreeMemory(self.request.to))
            }
            None => Ok(()),
        }
    }

    /// Those that have not moved or gone since the walk found them.
    fn still_far(&self, batch: &[Page]) -> Result<Vec<Page>, StopReason> {
        let addresses: Vec<u64> = batch.iter().map(|page| page.address).collect();
        let now = self.pages.where_are(&addresses);
        let now = now.map_err(|error| refused(self.pages, error))?;
        let pages = addresses.iter().zip(now).filter_map(|(&address, status)| {
            let node = node_of(status)?;
            let is_far = self.request.from.contains(node);
            is_far.then_some(Page { address, node })
        });
        Ok(pages.collect())
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

/// How often a page is tried that the kernel has in use: it is for a moment after it was moved or faulted in.
const BUSY_ATTEMPTS: u32 = 5;
const BUSY_INTERVAL: Duration = Duration::from_millis(20);
/// How often pages are looked for that NUMA balancing hides: the process shows each when it uses it.
const HIDDEN_ATTEMPTS: u32 = 5;
const HIDDEN_INTERVAL: Duration = Duration::from_millis(200);

/// Puts back what the record with this name says. `pid` and `start_ticks` are the journal's: both files have to agree.
pub(crate) fn undo(
    state: &StateDir,
    name: &str,
    process: (i32, Option<u64>),
    force: bool,
) -> UndoResult {
    let failed = |reason: String| UndoResult::Failed {
        error: format!("record {}/{name}: {reason}", state.place),
    };
    let bytes = match record::load(state, name) {
        Ok(bytes) => bytes,
        Err(error) => return failed(error_text(&error)),
    };
    // Read as a whole before a page is moved.
    let header = match record::read(&bytes, &mut |_| {}) {
        Ok(Some(header)) => header,
        Ok(None) => return UndoResult::AlreadyBefore,
        Err(error) => return failed(error.to_string()),
    };
    if (header.pid, Some(header.start_ticks)) != process {
        return failed("it is of another process than the journal".to_owned());
    }
    let process = match open(&header) {
        Ok(process) => process,
        Err(result) => return result,
    };
    // A page that only this process mapped when it was moved may be mapped by others as well by now, such as one of a library
    // that a new process reads. It goes back all the same, where this process may move it (CAP_SYS_NICE).
    let shared = header.shared || can_move_all(header.pid);
    match put_back(&LivePages::new(process, shared), header.to, &bytes) {
        Ok(memory) => UndoResult::PagesBack {
            memory: RestoredMemory {
                abandoned: force && memory.not_moved.bytes() > 0,
                ..memory
            },
        },
        Err(StopReason::Process(changed)) if changed.is_end_of_pages() => UndoResult::ProcessGone {
            reason: changed.to_string(),
        },
        Err(reason) => UndoResult::Failed {
            error: reason.to_string(),
        },
    }
}

/// The process of a record. [`UndoResult::ProcessGone`] only where its pages are certainly gone: in all other cases the record stays.
fn open(header: &RecordHeader) -> Result<HeldProcess, UndoResult> {
    let pid = header.pid;
    let gone = |changed: ProcessChanged| UndoResult::ProcessGone {
        reason: changed.to_string(),
    };
    let failed = |error: String| UndoResult::Failed { error };
    let here = Namespaces::own();
    if let Some(then) = header.namespaces.as_ref().filter(|then| **then != here) {
        return Err(failed(format!(
            "process {pid} was moved in other namespaces ({then}) than this command runs in ({here}): its number and start \
             mean another process here"
        )));
    }
    let process =
        HeldProcess::open(pid, header.start_ticks).map_err(|error| match error.is_end() {
            true => gone(ProcessChanged::Ended(pid)),
            false => failed(error.to_string()),
        })?;
    match process.image() == header.image {
        true => Ok(process),
        false => Err(gone(ProcessChanged::OtherProgram(pid))),
    }
}

fn put_back(pages: &dyn Pages, to: NodeId, bytes: &[u8]) -> Result<RestoredMemory, StopReason> {
    let mut restoring = Restoring {
        pages,
        to,
        restored: RestoredMemory::default(),
        hidden: Vec::new(),
    };
    let mut result = Ok(());
    // Its lines were read before: only the batches are of interest.
    let _ = record::read(bytes, &mut |batch| {
        if result.is_ok() {
            result = restoring.put_back(batch);
        }
    });
    result.and_then(|()| restoring.finish())
}

/// A rollback under way.
struct Restoring<'a> {
    pages: &'a dyn Pages,
    /// Where apply moved the pages.
    to: NodeId,
    restored: RestoredMemory,
    /// Pages that move_pages(2) did not show: pagemap shows them, or they went meanwhile.
    hidden: Vec<Batch>,
}

impl Restoring<'_> {
    fn put_back(&mut self, batch: Batch) -> Result<(), StopReason> {
        check(self.pages)?;
        let addresses: Vec<u64> = batch.pages.iter().map(|page| page.address).collect();
        let now = self.pages.where_are(&addresses);
        let now = now.map_err(|error| refused(self.pages, error))?;
        let entries = match self.pages.entries(&addresses) {
            Ok(entries) => Some(entries),
            // Without it a hidden page cannot be distinguished from one that is gone.
            Err(error) if now.contains(&-libc::ENOENT) => return Err(refused(self.pages, error)),
            Err(_) => None,
        };
        let (mut moved, mut hidden) = (Vec::new(), Vec::new());
        for (index, (page, status)) in batch.pages.iter().zip(now).enumerate() {
            let entry = entries.as_ref().map(|entries| entries[index]);
            match node_of(status) {
                None if status == -libc::ENOENT && entry.is_some_and(|it| it.is_present()) => {
                    hidden.push(*page);
                }
                Some(now) if now == page.node => self.restored.already_bytes += batch.page_bytes,
                Some(now) if now == self.to && batch.has_kind(page, entry) => moved.push(*page),
                _ => self.restored.changed_bytes += batch.page_bytes,
            }
        }
        // By node: the kernel moves neighbours that go to one node in one go.
        moved.sort_by_key(|page| page.node);
        for pages in moved.chunk_by(|one, next| one.node == next.node) {
            self.move_back(pages, &batch)?;
        }
        self.look_again(hidden, &batch);
        Ok(())
    }

    fn look_again(&mut self, pages: Vec<Page>, batch: &Batch) {
        if !pages.is_empty() {
            let (page_bytes, files) = (batch.page_bytes, batch.files.clone());
            self.hidden.push(Batch {
                page_bytes,
                pages,
                files,
            });
        }
    }

    /// Moves pages of a batch that came from one node back to it.
    fn move_back(&mut self, pages: &[Page], batch: &Batch) -> Result<(), StopReason> {
        let Some(node) = pages.first().map(|page| page.node) else {
            return Ok(());
        };
        let page_bytes = batch.page_bytes;
        let mut addresses: Vec<u64> = pages.iter().map(|page| page.address).collect();
        let mut gone = Vec::new();
        for attempt in 1..=BUSY_ATTEMPTS {
            check(self.pages)?;
            let moved = move_to(self.pages, &addresses, node);
            let moved = moved.map_err(|error| refused(self.pages, error))?;
            let mut again = Vec::new();
            for (address, result) in addresses.into_iter().zip(moved.pages) {
                match result {
                    Ok(()) => self.restored.back_bytes += page_bytes,
                    // Or hidden meanwhile.
                    Err(NotMoved::Gone) => gone.push(Page { address, node }),
                    Err(NotMoved::Busy | NotMoved::NotTried) if attempt < BUSY_ATTEMPTS => {
                        again.push(address);
                    }
                    Err(reason) => self.restored.not_moved.add(reason, page_bytes),
                }
            }
            match moved.refused {
                // Of this node; the pages of others may go back.
                Some(error) if !is_of_node(&error) => return Err(refused(self.pages, error)),
                _ if again.is_empty() => break,
                _ => {}
            }
            addresses = again;
            std::thread::sleep(BUSY_INTERVAL);
        }
        self.look_again(gone, batch);
        Ok(())
    }

    /// Looks for the hidden pages again.
    fn finish(mut self) -> Result<RestoredMemory, StopReason> {
        for _ in 0..HIDDEN_ATTEMPTS {
            if self.hidden.is_empty() {
                break;
            }
            std::thread::sleep(HIDDEN_INTERVAL);
            for batch in std::mem::take(&mut self.hidden) {
                self.put_back(batch)?;
            }
        }
        let bytes = |batch: &Batch| batch.pages.len() as u64 * batch.page_bytes;
        self.restored.not_moved.hidden_bytes = self.hidden.iter().map(bytes).sum();
        Ok(self.restored)
    }
}

/// Whether an answer of move_pages(2) is about the node alone.
fn is_of_node(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::ENODEV))
}

#[cfg(test)]
mod tests;
