//! Bringing pages back, each to the node that it came from.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use nearfar_lease::StateDir;
use nearfar_machine::NodeId;
use nearfar_proc::error_text;
use nearfar_proc::move_pages::{NotMoved, can_move_all};

use super::pages::{LivePages, Lost, Pages, Process, ProcessError};
use super::record::{self, Batch, RecordHeader};
use crate::outcome::{RestoredMemory, UndoResult};

/// How often a page is tried that the kernel has in use: it is for a moment after it was moved or faulted in.
const BUSY_ATTEMPTS: u32 = 5;
const BUSY_INTERVAL: Duration = Duration::from_millis(20);

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
        Err(Closed::Ended(because)) => return UndoResult::ProcessGone { because },
        Err(Closed::Failed(error)) => return UndoResult::Failed { error },
    };
    let pages = LivePages {
        process,
        // A page that only this process mapped when it was moved may be mapped by others as well by now, such as one of a library
        // that a new process reads. It goes back all the same, where this process may move it (CAP_SYS_NICE).
        shared: header.shared || can_move_all(header.pid),
    };
    match put_back(&pages, header.to, &bytes) {
        Ok(memory) => UndoResult::PagesBack {
            memory: RestoredMemory {
                abandoned: force && memory.not_moved.bytes() > 0,
                ..memory
            },
        },
        Err(Interrupted::Lost(lost)) => UndoResult::ProcessGone {
            because: lost.to_string(),
        },
        Err(Interrupted::Refused(error)) => UndoResult::Failed {
            error: format!("the kernel refuses to move pages: {}", error_text(&error)),
        },
    }
}

enum Closed {
    /// There is nothing left to undo.
    Ended(String),
    Failed(String),
}

fn open(header: &RecordHeader) -> Result<Process, Closed> {
    let pid = header.pid;
    let process = Process::open(pid, header.start_ticks).map_err(|error| match error {
        ProcessError::Read { .. } => Closed::Failed(error.to_string()),
        ProcessError::OtherStart { .. } | ProcessError::None(_) | ProcessError::Zombie(_) => {
            Closed::Ended(Lost::Ended(pid).to_string())
        }
        ProcessError::KernelThread(_) => Closed::Ended(error.to_string()),
    })?;
    if process.image() == header.image {
        Ok(process)
    } else {
        Err(Closed::Ended(Lost::OtherProgram(pid).to_string()))
    }
}

enum Interrupted {
    Lost(Lost),
    Refused(io::Error),
}

fn put_back(pages: &dyn Pages, to: NodeId, bytes: &[u8]) -> Result<RestoredMemory, Interrupted> {
    let mut restored = RestoredMemory::default();
    let mut result = Ok(());
    // Its lines were read before: only the batches are of interest.
    let _ = record::read(bytes, &mut |batch| {
        if result.is_ok() {
            result = put_batch_back(pages, to, &batch, &mut restored);
        }
    });
    result.map(|()| restored)
}

fn put_batch_back(
    pages: &dyn Pages,
    to: NodeId,
    batch: &Batch,
    restored: &mut RestoredMemory,
) -> Result<(), Interrupted> {
    let refused = |error: io::Error| match pages.check() {
        Err(lost) => Interrupted::Lost(lost),
        Ok(()) => Interrupted::Refused(error),
    };
    pages.check().map_err(Interrupted::Lost)?;
    let addresses: Vec<u64> = batch.pages.iter().map(|page| page.address).collect();
    let now = pages.where_are(&addresses).map_err(refused)?;
    // By node: the kernel moves neighbours that go to one node in one go.
    let mut ours: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
    for (page, now) in batch.pages.iter().zip(now) {
        match u32::try_from(now).map(NodeId) {
            Ok(now) if now == to => ours.entry(page.node).or_default().push(page.address),
            Ok(now) if now == page.node => restored.already_bytes += batch.page_bytes,
            _ => restored.changed_bytes += batch.page_bytes,
        }
    }
    for (node, mut addresses) in ours {
        for attempt in 1..=BUSY_ATTEMPTS {
            let statuses = move_back(pages, node, &addresses).map_err(refused)?;
            let after = pages.where_are(&addresses).map_err(refused)?;
            let mut busy = Vec::new();
            for ((address, status), now) in addresses.into_iter().zip(statuses).zip(after) {
                match (u32::try_from(now).map(NodeId), NotMoved::of(status)) {
                    (Ok(now), _) if now == node => restored.back_bytes += batch.page_bytes,
                    (Err(_), _) => restored.changed_bytes += batch.page_bytes,
                    (_, NotMoved::Busy) if attempt < BUSY_ATTEMPTS => busy.push(address),
                    (_, reason) => restored.not_moved.add(reason, batch.page_bytes),
                }
            }
            if busy.is_empty() {
                break;
            }
            addresses = busy;
            std::thread::sleep(BUSY_INTERVAL);
        }
    }
    Ok(())
}

fn move_back(pages: &dyn Pages, node: NodeId, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
    match pages.move_to(addresses, node) {
        // The node has no room, or is no longer there: the others may go back.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENODEV)) => {
            Ok(vec![-libc::ENOMEM; addresses.len()])
        }
        answer => answer,
    }
}

#[cfg(test)]
mod tests;
