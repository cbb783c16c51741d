//! Bringing pages back, each to the node that it came from.

use std::io;
use std::time::Duration;

use crate::state::StateDir;
use nearfar_machine::NodeId;
use nearfar_proc::error_text;
use nearfar_proc::move_pages::{NotMoved, can_move_all, move_to, node_of};
use nearfar_proc::resident::Page;

use super::pages::{HeldProcess, LivePages, Namespaces, Pages, ProcessChanged};
use super::record::{self, Batch, RecordHeader};
use crate::outcome::{RestoredMemory, UndoResult};

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
        Err(Interrupted::Process(changed)) if changed.is_end_of_pages() => {
            UndoResult::ProcessGone {
                reason: changed.to_string(),
            }
        }
        Err(Interrupted::Process(changed)) => UndoResult::Failed {
            error: changed.to_string(),
        },
        Err(Interrupted::Refused(error)) => UndoResult::Failed {
            error: format!("the kernel refuses to move pages: {}", error_text(&error)),
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

enum Interrupted {
    Process(ProcessChanged),
    Refused(io::Error),
}

fn put_back(pages: &dyn Pages, to: NodeId, bytes: &[u8]) -> Result<RestoredMemory, Interrupted> {
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
    fn put_back(&mut self, batch: Batch) -> Result<(), Interrupted> {
        self.check()?;
        let addresses: Vec<u64> = batch.pages.iter().map(|page| page.address).collect();
        let now = self.pages.where_are(&addresses);
        let now = now.map_err(|error| self.refused(error))?;
        let entries = match self.pages.entries(&addresses) {
            Ok(entries) => Some(entries),
            // Without it a hidden page cannot be distinguished from one that is gone.
            Err(error) if now.contains(&-libc::ENOENT) => return Err(self.refused(error)),
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
    fn move_back(&mut self, pages: &[Page], batch: &Batch) -> Result<(), Interrupted> {
        let Some(node) = pages.first().map(|page| page.node) else {
            return Ok(());
        };
        let page_bytes = batch.page_bytes;
        let mut addresses: Vec<u64> = pages.iter().map(|page| page.address).collect();
        let mut gone = Vec::new();
        for attempt in 1..=BUSY_ATTEMPTS {
            self.check()?;
            let moved = move_to(self.pages, &addresses, node);
            let moved = moved.map_err(|error| self.refused(error))?;
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
                Some(error) if !is_of_node(&error) => return Err(self.refused(error)),
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
    fn finish(mut self) -> Result<RestoredMemory, Interrupted> {
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

    fn check(&self) -> Result<(), Interrupted> {
        self.pages.check().map_err(Interrupted::Process)
    }

    /// The end of the process is not the kernel's refusal.
    fn refused(&self, error: io::Error) -> Interrupted {
        self.check().err().unwrap_or(Interrupted::Refused(error))
    }
}

/// Whether an answer of move_pages(2) is about the node alone.
fn is_of_node(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::ENODEV))
}

#[cfg(test)]
mod tests;
