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
mod mover;
mod pages;
mod record;

use std::fmt;
use std::sync::Arc;

use nearfar_machine::{Known, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use crate::change::Change;

pub use describe::{
    GroupMoveRequest, MoveRequestError, check_processes, planned_group_move, planned_move,
};

pub(crate) use checks::{MoveConditions, NODES, check, node_list, with_spare};
pub(crate) use describe::{REQUESTED, check_moves, check_plan_room, leave};
pub(crate) use mover::{Mover, RateLimit, State, StopReason, after, refused, undo};
pub(crate) use pages::{HeldProcess, LivePages};
pub(crate) use record::{RecordFile, RecordHeader, file_of};

#[doc(hidden)]
pub use record::read_any as read_record;

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

/// The rate at which hardware moves pages of 4 KiB, as published on LKML in May 2026: for estimates. Huge pages move at
/// about three times this rate.
pub const ASSUMED_BYTES_PER_S: u64 = 3_300_000_000;

const NO_SAVING: &str = "it saves nothing by the distances";

/// How long memory takes to move, and what that saves.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveEstimate {
    /// 0 where only the task moves.
    pub moved_bytes: u64,
    /// At [`ASSUMED_BYTES_PER_S`]. The task runs slower meanwhile.
    pub move_s: f64,
    /// CPU seconds a second, at most: how much less CPU time the same work takes by what far memory costs before and
    /// after, over the time in which the CPU time was used.
    pub saved_per_s: Known<f64>,
    /// When the saving has made up for the move, if the move takes one CPU and the task does not run meanwhile.
    pub pays_after_s: Known<f64>,
}

/// How long so many bytes take to move, at [`ASSUMED_BYTES_PER_S`].
pub fn move_seconds(bytes: u64) -> f64 {
    bytes as f64 / ASSUMED_BYTES_PER_S as f64
}

impl MoveEstimate {
    /// `saved_s` is of `cpu_s` seconds of CPU time, used within `period_s`.
    pub fn new(
        moved_bytes: u64,
        saved_s: Known<f64>,
        cpu_s: &Known<f64>,
        period_s: &Known<f64>,
    ) -> Self {
        let move_s = move_seconds(moved_bytes);
        let per_s = |seconds: f64| {
            period_s.as_ref().and_then(|&period| match period > 0.0 {
                true => Known::Yes(seconds / period),
                false => Known::no("it started just now"),
            })
        };
        let saved_per_s = saved_s.and_then(|saved| per_s(saved.max(0.0)));
        let cpu_share = cpu_s.as_ref().and_then(|&cpu_s| per_s(cpu_s));
        let pays_after_s = saved_per_s.as_ref().and_then(|&saved| {
            cpu_share.and_then(|cpu_share| match saved > 0.0 {
                true => Known::Yes(move_s * (1.0 + cpu_share) / saved),
                false => Known::no(NO_SAVING),
            })
        });
        Self {
            moved_bytes,
            move_s,
            saved_per_s,
            pays_after_s,
        }
    }
}

/// One sentence: `Moving 420 MiB takes about 0.13 s, in which the task runs slower; it saves ...`.
impl fmt::Display for MoveEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let saves = match &self.saved_per_s {
            Known::Yes(0.0) => NO_SAVING.to_owned(),
            Known::Yes(saved) => {
                format!("it saves at most {} CPU seconds per second", figure(*saved))
            }
            Known::No { unknown_reason } => format!("what it saves is unknown: {unknown_reason}"),
        };
        if self.moved_bytes == 0 {
            let (first, rest) = saves.split_at(1);
            return write!(f, "{}{rest}.", first.to_uppercase());
        }
        write!(
            f,
            "Moving {} takes about {}, in which the task runs slower; {saves}",
            size(self.moved_bytes),
            duration(self.move_s)
        )?;
        match &self.pays_after_s {
            Known::Yes(seconds) => write!(f, ", which pays after {}.", duration(*seconds)),
            Known::No { .. } => write!(f, "."),
        }
    }
}

/// A number of bytes as a person reads it: `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = UNITS.iter().find(|(_, shift)| bytes >> shift > 0);
    fits.map_or_else(
        || format!("{bytes} B"),
        |(unit, shift)| format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
    )
}

/// At least two digits that are not zero.
fn figure(number: f64) -> String {
    match number {
        10.0.. => format!("{number:.0}"),
        1.0.. => format!("{number:.1}"),
        0.1.. => format!("{number:.2}"),
        0.001.. => format!("{number:.4}"),
        _ => format!("{number:.1e}"),
    }
}

fn duration(seconds: f64) -> String {
    const UNITS: [(&str, f64); 3] = [("days", 86_400.0), ("h", 3600.0), ("min", 60.0)];
    let fits = UNITS.iter().find(|(_, length)| seconds >= 2.0 * length);
    match fits {
        Some((unit, length)) => format!("{} {unit}", figure(seconds / length)),
        None => format!("{} s", figure(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_by_node_are_shown_with_units() {
        assert_eq!(
            super::shown("N0=1048576 N10=512 x=y"),
            "N0=1.0 MiB N10=512 B x=y"
        );
    }

    fn estimate(bytes: u64, saved_s: f64, cpu_s: f64, period_s: f64) -> MoveEstimate {
        let known = Known::Yes;
        MoveEstimate::new(bytes, known(saved_s), &known(cpu_s), &known(period_s))
    }

    #[test]
    fn a_move_and_what_it_saves_are_one_sentence() {
        assert_eq!(
            estimate(440_401_920, 28.8, 26.2, 104.8).to_string(),
            "Moving 420.0 MiB takes about 0.13 s, in which the task runs slower; it saves at most 0.27 CPU seconds per second, \
             which pays after 0.61 s."
        );
        assert_eq!(
            estimate(0, 1.0, 1.0, 4.0).to_string(),
            "It saves at most 0.25 CPU seconds per second."
        );
        assert_eq!(
            estimate(1 << 36, 0.5, 1.0, 10_000.0).to_string(),
            "Moving 64.0 GiB takes about 21 s, in which the task runs slower; it saves at most 5.0e-5 CPU seconds per second, which \
             pays after 4.8 days."
        );
        assert_eq!(
            estimate(1 << 30, -0.5, 1.0, 10.0).to_string(),
            "Moving 1.0 GiB takes about 0.33 s, in which the task runs slower; it saves nothing by the distances."
        );
    }

    #[test]
    fn what_is_unknown_is_not_estimated() {
        let age = Known::no("no age");
        let unknown = MoveEstimate::new(1 << 30, Known::Yes(1.0), &Known::Yes(1.0), &age);
        assert_eq!(unknown.saved_per_s.unknown_reason(), Some("no age"));
        assert_eq!(unknown.pays_after_s.unknown_reason(), Some("no age"));
        assert!(
            unknown
                .to_string()
                .ends_with("what it saves is unknown: no age.")
        );
        assert_eq!(estimate(1, 1.0, 1.0, 0.0).saved_per_s.get(), None);
    }

    proptest! {
        #[test]
        fn more_saving_pays_earlier(bytes: u64, saved in 0.001..1e6, more in 1.0..10.0, cpu in 0.0..1e6, period in 0.001..1e9) {
            let (less, most) = (estimate(bytes, saved, cpu, period), estimate(bytes, saved * more, cpu, period));
            prop_assert!(most.pays_after_s.get() <= less.pays_after_s.get());
            prop_assert!(most.saved_per_s.get() >= less.saved_per_s.get());
            let text = serde_json::to_string(&less).unwrap();
            prop_assert_eq!(serde_json::from_str::<MoveEstimate>(&text).unwrap(), less);
        }
    }
}
