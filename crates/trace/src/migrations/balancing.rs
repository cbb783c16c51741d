//! What NUMA balancing does to tasks, as its own tracepoints tell (kernel/sched/fair.c, mm/migrate.c).
//!
//! ```text
//! sched_move_numa     100: 3 -> 9            balancing wants this task on the node of its memory
//! sched_swap_numa     100 <-> 200            or changes it with one there
//! sched_stick_numa    100: 3 -> 9            that failed; with no CPU to go to (-1) it was not even tried
//! mm_migrate_pages    current 100, 1 page    it moved memory to the task instead, in the task's own page fault
//! ```

use nearfar_machine::Known;
use serde::{Deserialize, Serialize};

use super::Event;
use crate::TraceError;
use crate::format::{Format, FormatError, Number};
use crate::tracefs::Tracefs;

/// The four events as this kernel describes them.
#[derive(Clone, Debug)]
pub(super) struct Formats {
    moved: Format,
    swapped: Format,
    stuck: Format,
    pages: Format,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder {
    moved: (u16, Number),
    swapped: (u16, Number, Number),
    stuck: (u16, Number, Number, Number),
    /// Who, why, how many; and the number that means "for NUMA balancing".
    pages: (u16, Number, Number, Number, i64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Balanced {
    /// How often it moved the task to another node, by itself or in exchange for another: so many of the task's
    /// cross-node migrations are its doing, the others the load balancer's or a wake-up's.
    pub task_moves: u64,
    /// How many pages (of the smallest size) it moved to a node where the task used them.
    pub pages_migrated: u64,
}

impl Balanced {
    pub(super) fn add(&mut self, other: &Self) {
        self.task_moves += other.task_moves;
        self.pages_migrated += other.pages_migrated;
    }
}

impl Formats {
    /// Reads the descriptions; unknown where this kernel lacks one or it cannot be used.
    pub fn read(tracefs: &Tracefs) -> Known<(Self, Decoder)> {
        Known::from_result(Self::descriptions(tracefs)).and_then(|formats| {
            Known::from_result(Decoder::new(&formats)).map(|decoder| (formats, decoder))
        })
    }

    fn descriptions(tracefs: &Tracefs) -> Result<Self, TraceError> {
        let read = |system, name| tracefs.tracepoint(system, name);
        Ok(Self {
            moved: read("sched", "sched_move_numa")?,
            swapped: read("sched", "sched_swap_numa")?,
            stuck: read("sched", "sched_stick_numa")?,
            pages: read("migrate", "mm_migrate_pages")?,
        })
    }

    pub fn all(&self) -> [&Format; 4] {
        [&self.moved, &self.swapped, &self.stuck, &self.pages]
    }

    /// Each with the filter that lets only these tasks' events pass, in the kernel's words.
    pub fn only(&self, filter: impl Fn(&str) -> String) -> [(&Format, Option<String>); 4] {
        [
            (&self.moved, Some(filter("pid"))),
            (
                &self.swapped,
                Some(format!("{}||{}", filter("src_pid"), filter("dst_pid"))),
            ),
            (
                &self.stuck,
                Some(format!("{}||{}", filter("src_pid"), filter("dst_pid"))),
            ),
            (&self.pages, Some(filter("common_pid"))),
        ]
    }
}

impl Decoder {
    fn new(formats: &Formats) -> Result<Self, FormatError> {
        let Formats {
            moved,
            swapped,
            stuck,
            pages,
        } = formats;
        Ok(Self {
            moved: (moved.id(), moved.number("pid")?),
            swapped: (
                swapped.id(),
                swapped.number("src_pid")?,
                swapped.number("dst_pid")?,
            ),
            stuck: (
                stuck.id(),
                stuck.number("src_pid")?,
                stuck.number("dst_pid")?,
                stuck.number("dst_cpu")?,
            ),
            pages: (
                pages.id(),
                pages.number("common_pid")?,
                pages.number("reason")?,
                pages.number("succeeded")?,
                pages.number_meaning("reason", "numa_misplaced")?,
            ),
        })
    }

    /// What an event of this kind says; `None` where it is none of the four or says nothing of a followed task's fate.
    pub fn decode(&self, kind: u16, event: &[u8]) -> Option<Event> {
        let tid = |number: &Number| i32::try_from(number.read(event)?).ok();
        match *self {
            Self {
                moved: (id, task), ..
            } if id == kind => Some(Event::Steered {
                tid: tid(&task)?,
                with: None,
            }),
            Self {
                swapped: (id, task, other),
                ..
            } if id == kind => Some(Event::Steered {
                tid: tid(&task)?,
                with: some(tid(&other)?),
            }),
            Self {
                stuck: (id, task, other, cpu),
                ..
            } if id == kind && cpu.read(event)? >= 0 => Some(Event::Stuck {
                tid: tid(&task)?,
                with: some(tid(&other)?),
            }),
            Self {
                pages: (id, task, reason, count, misplaced),
                ..
            } if id == kind => {
                let pages = u64::try_from(count.read(event)?).ok()?;
                (reason.read(event)? == misplaced && pages > 0).then_some(Event::PagesMoved {
                    tid: tid(&task)?,
                    pages,
                })
            }
            _ => None,
        }
    }
}

fn some(tid: i32) -> Option<i32> {
    (tid > 0).then_some(tid)
}
