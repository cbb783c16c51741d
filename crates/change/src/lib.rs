//! Carries a plan out and undoes it. Knows how a typed change becomes a write to one file, and how to leave the system
//! as it was; does not choose what to change.
//!
//! ```text
//!  Plan ─► check ─► lock ─► for each change:
//!                             read ─► as planned? ─► journal: intent (durable) ─► write ─► read back ─► journal: done
//!                                                                                   │
//!                             journal ◄─ failed, or the next nearest CPU ◄──────────┘ refused
//!
//!  rollback ─► lock ─► journal read back ─► newest write first: ours? ─► journal: undoing ─► old bytes ─► undone
//! ```
//!
//! Memory of a process is moved in batches (`task_memory`); where its pages were is recorded before each.
//!
//! Two rules hold everything together. No write happens before the bytes it replaces are on disk, so a kill at any
//! point can be undone. And nothing is overwritten that is neither what was there before nor what this program wrote,
//! so undoing never overwrites another program's decision.
//!
//! What is **not** defined here: two change sets against one system with different state directories do not see each other's
//! lock. Changes to sysfs and procfs do not survive a reboot; [`export`] writes what does.

mod apply;
mod change;
mod cpuset_memory;
pub mod export;
mod history;
mod journal;
mod kind;
pub mod lease;
mod outcome;
mod owner;
mod rebind;
mod rollback;
mod state;
pub mod system;
mod task_memory;
pub mod trusted;

pub use apply::{ApplyError, ApplyOptions, apply, apply_with, check_plan};
pub use change::{
    Change, DistanceChange, LeftAlone, NearestCpus, NodeCpus, Owner, PLAN_FORMAT, Plan, PlanError,
    Planned, ProcessIdentity, check, memory_by_node,
};
pub use cpuset_memory::{
    CpusetMemoryError, CpusetMemoryRequest, check_cpusets, planned_cpuset_memory,
};
pub use history::{ChangeSet, ChangeSetState, ChangeSetWrite, WriteState, history, history_with};
pub use journal::ChangeSetId;
pub use kind::{Setting, is_interface_name, wanted};
pub use outcome::{
    Applied, Effective, MovedMemory, NotMovedMemory, Outcome, RestoredMemory, Reverted,
    RollbackOutcome, Tried, UndoResult,
};
pub use rollback::{RollbackOptions, Selection, rollback, rollback_with};
pub use state::{LabelLock, Lock, StateDir, StateError};
pub use system::Target;
pub use task_memory::{
    ASSUMED_BYTES_PER_S, GroupMoveRequest, MoveEstimate, MoveProgress, MoveRequest,
    MoveRequestError, ProgressSink, check_processes, move_seconds, planned_group_move,
    planned_move, read_record, size,
};
