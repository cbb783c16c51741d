//! What came of it, change by change. All of it is what `--format json` prints.

mod memory;

use serde::Serialize;

use crate::change::Change;
use crate::change_set_id::ChangeSetId;
use crate::kind::Setting;

pub use memory::{MovedMemory, NotMovedMemory, RestoredMemory};

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

/// What came of undoing a write. Values are the file's text without its line end.
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
    /// The file is gone, with its device, queue or interrupt.
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
    /// The system refused.
    Failed {
        /// Its answer.
        error: String,
    },
}

impl UndoResult {
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
