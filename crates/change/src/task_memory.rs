//! Moving the memory of a process: a change of many pages instead of one file.
//!
//! ```text
//!  process still the one planned? free memory, cpuset, policies? ─► record file ─► journal: intent (durable)
//!      │                                                                            │
//!      └ refused, with the figures          ┌─────────────────────────────────────◄─┘
//!                                           ▼
//!       pages of some 2 MiB ─► where are they ─► record ─► move_pages ─► where are they ─► counts
//!                ▲                                                                      │
//!                └──────────────────────────────────────────────────────────────────────┘
//!
//!  undo: same process? ─► record read back ─► pages on the target now ─► each to the node it came from
//! ```
//!
//! move_pages(2) reports wrong statuses: EBUSY for huge pages that moved, nothing for pinned ones. So the kernel is asked
//! again where each page is ([`nearfar_proc::move_pages`]).

mod checks;
mod describe;
mod group;
mod mover;
mod pages;
mod record;
mod survey;
mod undo;

use std::fmt;
use std::sync::Arc;

use nearfar_machine::{NodeId, NodeSet};

use crate::change::Change;

pub(crate) use crate::move_estimate::size;
pub(crate) use checks::{MoveConditions, NODES, check, node_list, with_spare};
pub use describe::{MoveRequestError, check_processes, planned_move};
pub(crate) use describe::{REQUESTED, check_moves, check_plan_room, leave, nodes_with_memory};
pub use group::{GroupMoveRequest, planned_group_move};
pub(crate) use mover::{Mover, RateLimit, State, StopReason, after};
pub(crate) use pages::{HeldProcess, LivePages};
#[doc(hidden)]
pub use record::read_any as read_record;
pub(crate) use record::{RecordFile, RecordHeader, file_of};
pub(crate) use undo::undo;

/// Which memory is to go where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoveRequest {
    pub pid: i32,
    /// Pages on these nodes are moved.
    pub from: NodeSet,
    pub to: NodeId,
    /// Also the pages that other processes map.
    pub shared: bool,
}

impl MoveRequest {
    /// Of a change; `None` if it is another kind of change.
    pub(crate) fn of(change: &Change) -> Option<Self> {
        let Change::TaskMemory {
            pid,
            from,
            to,
            shared,
        } = change
        else {
            return None;
        };
        Some(Self {
            pid: *pid,
            from: from.clone(),
            to: *to,
            shared: *shared,
        })
    }
}

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MoveProgress {
    /// Bytes that were tried.
    pub done_bytes: u64,
    /// Bytes that were to be moved when it began.
    pub total_bytes: u64,
}

/// Called after each batch.
#[derive(Clone)]
pub struct ProgressSink(pub Arc<dyn Fn(MoveProgress) + Send + Sync>);

impl fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressSink")
    }
}

/// `N0=1048576 N1=4096` with units; anything else as it is.
pub(crate) fn shown(text: &str) -> String {
    let words = text.split_whitespace().map(|word| {
        let with_unit = word.split_once('=').and_then(|(node, bytes)| {
            let bytes = bytes.parse().ok()?;
            Some(format!("{node}={}", size(bytes)))
        });
        with_unit.unwrap_or_else(|| word.to_owned())
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_by_node_are_shown_with_units() {
        assert_eq!(
            super::shown("N0=1048576 N10=512 x=y"),
            "N0=1.0 MiB N10=512 B x=y"
        );
    }
}
