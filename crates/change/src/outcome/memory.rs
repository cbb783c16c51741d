//! What became of memory that was moved, in bytes.

use nearfar_proc::move_pages::NotMoved;
use serde::Serialize;

use crate::task_memory::size;

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
