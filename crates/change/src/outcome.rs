//! What came of it, change by change. All of it is what `--format json` prints.

use std::io;

use nearfar_proc::error_text;
use nearfar_proc::move_pages::NotMoved;
use serde::Serialize;

use crate::change::Change;
use crate::journal::ChangeSetId;
use crate::kind::Setting;
use crate::task_memory::size;

/// What came of carrying out a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Outcome {
    /// The change set that rollback undoes; `None` where nothing had to be written.
    pub change_set: Option<ChangeSetId>,
    /// Every change of the plan, in its order.
    pub changes: Vec<Tried>,
    /// Why everything this change set had made was undone again, where it was.
    pub undone_reason: Option<String>,
    /// Why the change set ended early, where it did: the journal could not be written. What was made stays recorded.
    pub stopped_reason: Option<String>,
    /// What the reader should know beyond the changes.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Whether every change is now as the plan wants it.
    pub fn is_complete(&self) -> bool {
        self.stopped_reason.is_none()
            && self.undone_reason.is_none()
            && self
                .changes
                .iter()
                .all(|tried| tried.result.is_as_planned())
    }
}

/// A change of the plan and what came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Tried {
    /// The change as planned.
    pub change: Change,
    /// The file it writes.
    pub file: String,
    /// What came of it.
    pub result: Applied,
}

/// What came of a change. Values are the file's text without its line end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum Applied {
    /// Written and read back.
    Made {
        /// The value before.
        before: String,
        /// The value the file shows now.
        after: String,
        /// Whether the interrupt controller follows; `None` for what is no interrupt.
        effective: Option<Effective>,
        /// What differs from the plan, such as the CPU that was taken instead of a full one.
        note: Option<String>,
    },
    /// Memory was moved. The values are bytes by node: `N0=1048576 N1=4096`.
    Moved {
        before: String,
        /// Computed from what was moved.
        after: String,
        memory: MovedMemory,
    },
    /// The process, one of several of the plan, has ended: it has no memory to move.
    ProcessGone { reason: String },
    /// It was as wanted before; nothing was written.
    AlreadySo { now: String },
    /// Not written, for a reason that is no fault: managed by the kernel, changed since the plan, in use.
    LeftAlone { reason: String },
    /// The system refused.
    Failed {
        /// What was tried and the system's answer.
        error: String,
    },
    /// Made, and undone because of another change or an interruption.
    Undone {
        /// The value now, as before.
        now: String,
    },
    /// Made, and undoing it failed: `rollback` tries again.
    NotUndone {
        /// What came of undoing it.
        undo: UndoResult,
    },
}

impl Applied {
    /// Whether something was changed that is not undone.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Made { .. } | Self::Moved { .. })
    }

    /// Whether the system is now as the change wants it.
    pub fn is_as_planned(&self) -> bool {
        match self {
            Self::Made { .. } | Self::AlreadySo { .. } | Self::ProcessGone { .. } => true,
            Self::Moved { memory, .. } => memory.is_as_planned(),
            _ => false,
        }
    }
}

/// What is in effect: the CPUs that the interrupt controller uses (`effective_affinity_list`), the nodes of a control group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "follows", rename_all = "kebab-case")]
pub enum Effective {
    /// Those wanted, or some of them.
    Now {
        /// The list.
        cpus: String,
    },
    /// Still the old ones: the affinity follows with the next interrupt, unless interrupts are remapped.
    WithTheNextInterrupt {
        /// The list.
        cpus: String,
    },
    /// The nodes that the group may have memory on (`cpuset.mems.effective`).
    Nodes {
        /// The list.
        nodes: String,
    },
    /// The kernel does not tell.
    NotKnown {
        /// Why.
        reason: String,
    },
}

/// What came of undoing a change set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RollbackOutcome {
    /// The change set; `None` where there was nothing to undo.
    pub change_set: Option<ChangeSetId>,
    /// What was put back, in the order it was: newest write first.
    pub changes: Vec<Reverted>,
    /// What the reader should know beyond the changes.
    pub notes: Vec<String>,
}

impl RollbackOutcome {
    /// There was nothing to undo.
    pub fn nothing() -> Self {
        Self {
            change_set: None,
            changes: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether everything of the change set is as before it.
    pub fn is_complete(&self) -> bool {
        let refused = |result: &UndoResult| matches!(result, UndoResult::OtherOwner { .. });
        self.changes
            .iter()
            .all(|reverted| reverted.result.is_settled() && !refused(&reverted.result))
    }
}

/// A write and what came of undoing it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reverted {
    /// What was written.
    pub setting: Setting,
    /// Its file.
    pub file: String,
    /// What came of it.
    pub result: UndoResult,
}

/// What came of undoing a write, or a change of a lease. Values are the file's text without its line end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum UndoResult {
    /// The old bytes were written back.
    Restored {
        /// The value found.
        from: String,
        /// The value now.
        to: String,
        /// What is not as before all the same, such as a driver that could not be bound again while in use.
        note: Option<String>,
    },
    /// The file was as before.
    AlreadyBefore,
    /// The file, thread or resource is gone, with its device, queue or interrupt.
    Gone,
    /// It was made in an earlier boot of this system; the reboot has reset it.
    GoneWithReboot,
    /// Neither the value before nor the one written: another program changed it since. Kept.
    ChangedSince {
        /// The value found.
        now: String,
        /// The later change set that wrote it, where it was nearfar: undo that one first.
        by_change_set: Option<ChangeSetId>,
    },
    /// The interrupt, interface, subsystem or PCI address is another device's now. Nothing was written.
    OtherOwner {
        /// Whose it was.
        was: String,
        /// Whose it is.
        now: String,
        /// Whether the value is gone with its owner, so that nothing is left to undo.
        gone: bool,
    },
    /// Pages of a process were moved back.
    PagesBack { memory: RestoredMemory },
    /// The process whose memory was moved has ended, or runs another program: nothing is left to undo.
    ProcessGone { reason: String },
    /// Threads that a lease had confined have the masks that they asked for.
    MasksBack,
    /// What a lease had made was removed.
    Removed,
    /// The system refused; a lease stays, and the next nearfar tries again.
    Failed {
        /// Its answer.
        error: String,
    },
}

impl UndoResult {
    pub(crate) fn failed(error: &io::Error) -> Self {
        Self::Failed {
            error: error_text(error),
        }
    }

    /// A file that cannot be read or written; where that is so because its device or group is gone, nothing is left to undo.
    pub(crate) fn gone_or_failed(error: &io::Error) -> Self {
        match error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
        {
            true => Self::Gone,
            false => Self::failed(error),
        }
    }

    /// Whether what was written ended with its device or process, so that nothing was put back.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Gone
                | Self::GoneWithReboot
                | Self::ProcessGone { .. }
                | Self::OtherOwner { gone: true, .. }
        )
    }

    /// Whether nothing is left to undo.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::ChangedSince { .. }
            | Self::OtherOwner { gone: false, .. }
            | Self::Failed { .. } => false,
            Self::PagesBack { memory } => memory.abandoned || memory.not_moved.bytes() == 0,
            _ => true,
        }
    }
}

/// What became of memory that was to be moved.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct MovedMemory {
    /// What was to be moved when it began: without pages that other processes map, unless those were asked for.
    pub wanted_bytes: u64,
    /// It is on the target now.
    pub moved_bytes: u64,
    #[serde(flatten)]
    pub not_moved: NotMovedMemory,
    /// Why the rest was not tried, where it was not.
    pub stopped_reason: Option<String>,
}

impl MovedMemory {
    /// Whether what was wanted is as planned: nothing ended the move, and at least half of it moved. Some pages of any process
    /// are in use or gone at that moment.
    pub fn is_as_planned(&self) -> bool {
        self.stopped_reason.is_none() && self.moved_bytes >= self.wanted_bytes / 2
    }

    /// What the walk did not come to: gone before, or hidden by NUMA balancing (before Linux 6.6).
    fn not_found_bytes(&self) -> u64 {
        let others = self.not_moved.bytes() - self.not_moved.shared_bytes;
        let found = self.moved_bytes.saturating_add(others);
        self.wanted_bytes.saturating_sub(found)
    }

    /// In words: `4.0 MiB moved, 12.0 KiB shared with others`.
    pub fn described(&self) -> String {
        let mut parts = Vec::new();
        if self.moved_bytes > 0 {
            parts.push(format!("{} moved", size(self.moved_bytes)));
        }
        parts.extend(self.not_moved.parts());
        if self.not_moved.shared_bytes > 0 {
            parts.push("--shared moves what is shared".to_owned());
        }
        parts.extend(self.stopped_reason.clone());
        if !self.is_as_planned() {
            parts.push(format!("{} were to move", size(self.wanted_bytes)));
            if self.stopped_reason.is_none() && self.not_found_bytes() > 0 {
                let bytes = size(self.not_found_bytes());
                parts.push(format!(
                    "{bytes} not found (hidden by NUMA balancing, or gone)"
                ));
            }
        }
        match parts.is_empty() {
            true => "it is all gone".to_owned(),
            false => parts.join(", "),
        }
    }
}

/// Memory that did not move, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct NotMovedMemory {
    /// Other processes map it as well.
    pub shared_bytes: u64,
    /// In use by the kernel at that moment, or pinned.
    pub busy_bytes: u64,
    /// The node had no free memory.
    pub no_room_bytes: u64,
    /// Unmapped or swapped out meanwhile.
    pub gone_bytes: u64,
    /// A cpuset forbids the node.
    pub forbidden_bytes: u64,
    /// The node is offline or has no memory.
    pub no_node_bytes: u64,
    /// Behind pinned pages, where the kernel ended every call.
    pub not_tried_bytes: u64,
    /// Watched by NUMA balancing, which hides it from move_pages(2) before Linux 6.6.
    pub hidden_bytes: u64,
    /// The kernel cannot move it.
    pub other_bytes: u64,
}

impl NotMovedMemory {
    pub(crate) fn add(&mut self, reason: NotMoved, bytes: u64) {
        let sum = match reason {
            NotMoved::Shared => &mut self.shared_bytes,
            NotMoved::Busy => &mut self.busy_bytes,
            NotMoved::NoMemory => &mut self.no_room_bytes,
            NotMoved::Gone => &mut self.gone_bytes,
            NotMoved::Forbidden => &mut self.forbidden_bytes,
            NotMoved::NoNode => &mut self.no_node_bytes,
            NotMoved::NotTried => &mut self.not_tried_bytes,
            NotMoved::Other => &mut self.other_bytes,
        };
        *sum = sum.saturating_add(bytes);
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        let all = self.by_reason().into_iter();
        all.fold(0, |sum, (bytes, _)| sum.saturating_add(bytes))
    }

    fn by_reason(&self) -> [(u64, &'static str); 9] {
        [
            (self.shared_bytes, "shared with other processes"),
            (self.busy_bytes, "busy or pinned"),
            (self.no_room_bytes, "without free memory on the node"),
            (self.gone_bytes, "gone meanwhile"),
            (
                self.forbidden_bytes,
                "kept by a cpuset that forbids the node",
            ),
            (
                self.no_node_bytes,
                "for a node that is offline or without memory",
            ),
            (self.not_tried_bytes, "not tried behind pinned pages"),
            (
                self.hidden_bytes,
                "hidden by NUMA balancing (repeat this when the process has used it)",
            ),
            (self.other_bytes, "not movable"),
        ]
    }

    fn parts(&self) -> impl Iterator<Item = String> {
        let all = self.by_reason().into_iter();
        all.filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, why)| format!("{} {why}", size(bytes)))
    }
}

/// What became of memory that was to be put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RestoredMemory {
    /// Moved to the node that it came from.
    pub back_bytes: u64,
    /// It was on that node: an earlier rollback moved it, or it never left.
    pub already_bytes: u64,
    /// Gone, or moved to another node since; left where it is.
    pub changed_bytes: u64,
    /// It is still on the target.
    #[serde(flatten)]
    pub not_moved: NotMovedMemory,
    /// Whether what is still on the target counts as undone (`--force`).
    pub abandoned: bool,
}

impl RestoredMemory {
    /// In words: `4.0 MiB back, 12.0 KiB gone or moved since`.
    pub fn described(&self) -> String {
        let mut parts = vec![format!("{} back", size(self.back_bytes))];
        if self.already_bytes > 0 {
            parts.push(format!("{} back before", size(self.already_bytes)));
        }
        if self.changed_bytes > 0 {
            parts.push(format!("{} gone or moved since", size(self.changed_bytes)));
        }
        parts.extend(self.not_moved.parts());
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_of_less_than_half_is_not_as_planned_and_says_why() {
        let busy = NotMovedMemory {
            busy_bytes: 3 << 20,
            shared_bytes: 9 << 20,
            ..NotMovedMemory::default()
        };
        let moved = |moved_bytes| MovedMemory {
            wanted_bytes: 8 << 20,
            moved_bytes,
            not_moved: busy,
            stopped_reason: None,
        };
        assert!(moved(4 << 20).is_as_planned());
        assert_eq!(
            moved(1 << 20).described(),
            "1.0 MiB moved, 9.0 MiB shared with other processes, 3.0 MiB busy or pinned, --shared moves what is \
             shared, 8.0 MiB were to move, 4.0 MiB not found (hidden by NUMA balancing, or gone)"
        );
        let result = crate::outcome::Applied::Moved {
            before: String::new(),
            after: String::new(),
            memory: moved(1 << 20),
        };
        assert!(!result.is_as_planned());
    }
}
