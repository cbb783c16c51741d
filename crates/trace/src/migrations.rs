//! Migrations: which task the scheduler moved from which CPU to which, over its whole life, and where that left it.
//!
//! ```text
//! sched_process_fork    parent 100, child 101        the child is followed when its parent is
//! sched_wakeup_new      101 on CPU 3                 its life begins there
//! sched_migrate_task    101 from CPU 3 to CPU 5      classed by what the two CPUs share; time on CPU 3's node ends
//! sched_process_exec    100, before: 102             task 102 got its process' number: it ended all its other threads
//! sched_process_exit    101                          its life ends
//! ```
//!
//! All five come from per-CPU events: a migration happens in the context of the task that moves it, so an event attached to
//! the task itself, or to its control group (PERF_FLAG_PID_CGROUP), would stay silent. Task numbers are those of the
//! kernel's first pid namespace ([`in_first_pid_namespace`]). Where the kernel has events of them, also what NUMA balancing
//! itself does ([`Balanced`]).
//!
//! What NUMA balancing does to tasks is in tracepoints of its own (kernel/sched/fair.c, mm/migrate.c):
//!
//! ```text
//! sched_move_numa     100: 3 -> 9            balancing wants this task on the node of its memory
//! sched_swap_numa     100 <-> 200            or changes it with one there
//! sched_stick_numa    100: 3 -> 9            that failed; with no CPU to go to (-1) it was not even tried
//! mm_migrate_pages    current 100, 1 page    it moved memory to the task instead, in the task's own page fault
//! ```
//!
//! [`NodeMigrations`] are how many tasks the scheduler moves from one node to another, counted by the kernel: no event is written or
//! read.
//!
//! ```text
//! sched_migrate_task, on each CPU:  (orig_cpu>=0&&orig_cpu<=3)&&(dest_cpu<0||dest_cpu>3) || ...
//! ```

mod moves;

use std::fmt::Write as _;

use nearfar_machine::{CpuId, CpuSet, Known, Machine};
use serde::{Deserialize, Serialize};

use crate::TraceError;
use crate::format::{Format, FormatError, Number, Text, Tracefs};
use crate::open::PerfEvent;

pub use moves::{
    Class, ClassCounts, FromTo, Migrations, Moves, NodeTime, NumaBalancing, Sharing, TaskMoves,
};

pub const SYSTEM: &str = "sched";

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It was moved.
    Moved {
        tid: i32,
        name: String,
        /// From this CPU.
        from: CpuId,
        to: CpuId,
    },
    /// It made another: a process or a thread.
    Forked {
        parent: i32,
        child: i32,
        /// The new one's name, which is its parent's.
        name: String,
    },
    /// It is new and runs for the first time.
    Born { tid: i32, cpu: CpuId },
    /// It became another program, and with that took another number: a thread that does this takes the number of its process'
    /// first thread, which has ended by then (de_thread() in fs/exec.c). Of a first thread there is no such event.
    Renumbered {
        /// Its number until then.
        old: i32,
        /// Its number from then on.
        new: i32,
    },
    Ended {
        tid: i32,
        /// The name it had then.
        name: String,
    },
    /// NUMA balancing decided to move it to another node; the migration, if it comes to that, is an event of its own.
    Steered { tid: i32, with: Option<i32> },
    /// It came to nothing: what [`Event::Steered`] said last of these did not happen.
    Stuck {
        tid: i32,
        /// The one it would have changed places with.
        with: Option<i32>,
    },
    /// NUMA balancing moved memory to where the task runs.
    PagesMoved {
        /// The task, in whose page fault that was.
        tid: i32,
        /// How many pages of the smallest size.
        pages: u64,
    },
}

/// The events as this kernel describes them.
#[derive(Clone, Debug)]
pub struct Formats {
    migrate: Format,
    fork: Format,
    wakeup_new: Format,
    exec: Format,
    exit: Format,
    balancing: Known<(BalancingFormats, BalancingDecoder)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// In every event: the number of its kind, which stands first in each of those below.
    kind: Number,
    migrate: (u16, Number, Text, Number, Number),
    fork: (u16, Number, Number, Text),
    wakeup_new: (u16, Number, Number),
    exec: (u16, Number, Number),
    exit: (u16, Number, Text),
    balancing: Option<BalancingDecoder>,
}

impl Formats {
    /// Reads the descriptions of the events.
    ///
    /// # Errors
    /// When one of the first five is missing or cannot be read.
    pub fn read(tracefs: &Tracefs) -> Result<Self, TraceError> {
        Ok(Self {
            migrate: tracefs.tracepoint(SYSTEM, "sched_migrate_task")?,
            fork: tracefs.tracepoint(SYSTEM, "sched_process_fork")?,
            wakeup_new: tracefs.tracepoint(SYSTEM, "sched_wakeup_new")?,
            exec: tracefs.tracepoint(SYSTEM, "sched_process_exec")?,
            exit: tracefs.tracepoint(SYSTEM, "sched_process_exit")?,
            balancing: BalancingFormats::read(tracefs),
        })
    }

    /// Whether what NUMA balancing does to single tasks shows on this kernel.
    pub fn balancing(&self) -> Known<()> {
        self.balancing.as_ref().map(|_| ())
    }

    /// What a session has to trace to follow tasks and those they make.
    pub fn following(&self) -> Vec<(&Format, Option<String>)> {
        let balancing = self.balancing.get().into_iter();
        let balancing = balancing.flat_map(|(formats, _)| formats.all());
        [
            &self.migrate,
            &self.fork,
            &self.wakeup_new,
            &self.exec,
            &self.exit,
        ]
        .into_iter()
        .chain(balancing)
        .map(|f| (f, None))
        .collect()
    }

    /// What a session has to trace for these tasks and no others, which the kernel sorts out itself: the least cost. The numbers of
    /// their processes' first threads belong to them, also of those that have ended: a thread that becomes another program takes
    /// that number. `None` where they are more than a filter holds (a page, include/linux/perf_event.h and ftrace_profile_set_filter()).
    pub fn only(&self, tids: &[i32]) -> Option<Vec<(&Format, Option<String>)>> {
        let any_of = |field: &str| {
            let tids: Vec<String> = tids.iter().map(|tid| format!("{field}=={tid}")).collect();
            tids.join("||")
        };
        let balancing = self
            .balancing
            .get()
            .into_iter()
            .flat_map(|(formats, _)| formats.only(any_of));
        let own = [&self.migrate, &self.exit].map(|format| (format, Some(any_of("pid"))));
        let exec = (&self.exec, Some(any_of("old_pid")));
        let tracepoints: Vec<_> = own.into_iter().chain([exec]).chain(balancing).collect();
        let fits =
            |filter: &Option<String>| filter.as_ref().is_some_and(|filter| filter.len() < 4096);
        (!tids.is_empty() && tracepoints.iter().all(|(_, filter)| fits(filter)))
            .then_some(tracepoints)
    }
}

impl Decoder {
    /// Finds the fields in this kernel's layouts.
    ///
    /// # Errors
    /// When one is missing or is of another kind.
    pub fn new(formats: &Formats) -> Result<Self, FormatError> {
        let Formats {
            migrate,
            fork,
            wakeup_new,
            exec,
            exit,
            balancing,
        } = formats;
        Ok(Self {
            kind: migrate.number("common_type")?,
            migrate: (
                migrate.id(),
                migrate.number("pid")?,
                migrate.text("comm")?,
                migrate.number("orig_cpu")?,
                migrate.number("dest_cpu")?,
            ),
            fork: (
                fork.id(),
                fork.number("parent_pid")?,
                fork.number("child_pid")?,
                fork.text("child_comm")?,
            ),
            wakeup_new: (
                wakeup_new.id(),
                wakeup_new.number("pid")?,
                wakeup_new.number("target_cpu")?,
            ),
            exec: (exec.id(), exec.number("pid")?, exec.number("old_pid")?),
            exit: (exit.id(), exit.number("pid")?, exit.text("comm")?),
            balancing: balancing.get().map(|(_, decoder)| *decoder),
        })
    }

    /// What an event says; `None` where its bytes hold none of those above.
    pub fn decode(&self, event: &[u8]) -> Option<Event> {
        let kind = u16::try_from(self.kind.read(event)?).ok()?;
        let tid = |number: &Number| i32::try_from(number.read(event)?).ok();
        let cpu = |number: &Number| {
            let cpu = u32::try_from(number.read(event)?).ok()?;
            // No set could hold a higher one.
            (cpu <= nearfar_machine::MAX_NUMBER).then_some(CpuId(cpu))
        };
        let name = |text: &Text| Some(String::from_utf8_lossy(text.read(event)?).into_owned());
        match kind {
            _ if kind == self.migrate.0 => {
                let (_, pid, comm, from, to) = &self.migrate;
                Some(Event::Moved {
                    tid: tid(pid)?,
                    name: name(comm)?,
                    from: cpu(from)?,
                    to: cpu(to)?,
                })
            }
            _ if kind == self.fork.0 => {
                let (_, parent, child, comm) = &self.fork;
                Some(Event::Forked {
                    parent: tid(parent)?,
                    child: tid(child)?,
                    name: name(comm)?,
                })
            }
            _ if kind == self.wakeup_new.0 => Some(Event::Born {
                tid: tid(&self.wakeup_new.1)?,
                cpu: cpu(&self.wakeup_new.2)?,
            }),
            _ if kind == self.exec.0 => {
                let (_, new, old) = &self.exec;
                let (old, new) = (tid(old)?, tid(new)?);
                (old != new).then_some(Event::Renumbered { old, new })
            }
            _ if kind == self.exit.0 => Some(Event::Ended {
                tid: tid(&self.exit.1)?,
                name: name(&self.exit.2)?,
            }),
            _ => self.balancing.as_ref()?.decode(kind, event),
        }
    }
}

/// The number of the first pid namespace's file (PROC_PID_INIT_INO in include/uapi/linux/nsfs.h, the same since Linux 3.8).
pub const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether task numbers here are those that the events carry. In a container they are not.
pub fn in_first_pid_namespace() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|file| file.ino() == FIRST_PID_NAMESPACE)
}

/// The four events as this kernel describes them.
#[derive(Clone, Debug)]
struct BalancingFormats {
    moved: Format,
    swapped: Format,
    stuck: Format,
    pages: Format,
}

#[derive(Clone, Copy, Debug)]
struct BalancingDecoder {
    moved: (u16, Number),
    /// Who, and with whom.
    swapped: (u16, Number, Number),
    stuck: (u16, Number, Number),
    stuck_on: Number,
    /// Who, how many.
    pages: (u16, Number, Number),
    reason: Number,
    /// The reason that means "for NUMA balancing".
    misplaced: i64,
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

impl BalancingFormats {
    /// Reads the descriptions; unknown where this kernel lacks one or it cannot be used.
    fn read(tracefs: &Tracefs) -> Known<(Self, BalancingDecoder)> {
        Known::from_result(Self::descriptions(tracefs)).and_then(|formats| {
            Known::from_result(BalancingDecoder::new(&formats)).map(|decoder| (formats, decoder))
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

    fn all(&self) -> [&Format; 4] {
        [&self.moved, &self.swapped, &self.stuck, &self.pages]
    }

    /// Each with the filter that lets only these tasks' events pass, in the kernel's words.
    fn only(&self, filter: impl Fn(&str) -> String) -> [(&Format, Option<String>); 4] {
        let both = format!("{}||{}", filter("src_pid"), filter("dst_pid"));
        [
            (&self.moved, Some(filter("pid"))),
            (&self.swapped, Some(both.clone())),
            (&self.stuck, Some(both)),
            (&self.pages, Some(filter("common_pid"))),
        ]
    }
}

impl BalancingDecoder {
    fn new(formats: &BalancingFormats) -> Result<Self, FormatError> {
        let numbers = |format: &Format, fields: [&'static str; 2]| -> Result<_, FormatError> {
            let [first, second] = fields;
            Ok((format.id(), format.number(first)?, format.number(second)?))
        };
        let (moved, stuck, pages) = (&formats.moved, &formats.stuck, &formats.pages);
        Ok(Self {
            moved: (moved.id(), moved.number("pid")?),
            swapped: numbers(&formats.swapped, ["src_pid", "dst_pid"])?,
            stuck: numbers(stuck, ["src_pid", "dst_pid"])?,
            stuck_on: stuck.number("dst_cpu")?,
            pages: numbers(pages, ["common_pid", "succeeded"])?,
            reason: pages.number("reason")?,
            misplaced: pages.number_meaning("reason", "numa_misplaced")?,
        })
    }

    /// What an event of this kind says; `None` where it is none of the four or says nothing of a followed task's fate.
    fn decode(&self, kind: u16, event: &[u8]) -> Option<Event> {
        let tid = |number: &Number| i32::try_from(number.read(event)?).ok();
        let other = |number: &Number| Some(Some(tid(number)?).filter(|it| *it > 0));
        if kind == self.moved.0 {
            let tid = tid(&self.moved.1)?;
            return Some(Event::Steered { tid, with: None });
        }
        if kind == self.swapped.0 {
            let (tid, with) = (tid(&self.swapped.1)?, other(&self.swapped.2)?);
            return Some(Event::Steered { tid, with });
        }
        if kind == self.stuck.0 && self.stuck_on.read(event)? >= 0 {
            let (tid, with) = (tid(&self.stuck.1)?, other(&self.stuck.2)?);
            return Some(Event::Stuck { tid, with });
        }
        if kind != self.pages.0 || self.reason.read(event)? != self.misplaced {
            return None;
        }
        let pages = u64::try_from(self.pages.2.read(event)?).ok()?;
        let tid = tid(&self.pages.1)?;
        (pages > 0).then_some(Event::PagesMoved { tid, pages })
    }
}

const TRACEPOINT: &str = "sched_migrate_task";
/// Bytes of a filter, with its NUL (perf_event_set_filter() in kernel/events/core.c).
const MAX_FILTER_BYTES: usize = 4096;

/// Counts moves of all tasks between nodes. Dropping it closes its events.
pub struct NodeMigrations {
    events: Vec<(CpuId, PerfEvent)>,
    cpus: CpuSet,
}

impl NodeMigrations {
    /// Counts from now on, on every CPU of the running system that is online, which the machine describes.
    ///
    /// # Errors
    /// When the kernel does not let this user trace, or its nodes have too many ranges of CPUs for a filter.
    pub fn open(machine: &Machine) -> Result<Self, TraceError> {
        let nodes: Vec<&CpuSet> = machine
            .online_nodes()
            .map(|node| node.known_cpus())
            .collect();
        let filter = filter(&nodes)?;
        let format = Tracefs::find()?.tracepoint(SYSTEM, TRACEPOINT)?;
        let cpus = machine.cpu_states.online.clone();
        let mut events = Vec::new();
        for cpu in cpus.iter() {
            // One that went offline since then moves nothing.
            if let Some(event) = open_on(&format, cpu, &filter)? {
                events.push((cpu, event));
            }
        }
        match events.is_empty() {
            true => Err(TraceError::NoCpu),
            false => Ok(Self { events, cpus }),
        }
    }

    /// The CPUs that were online. What happens on one that came online later is not counted.
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// Moves since it was opened.
    ///
    /// # Errors
    /// When a count cannot be read.
    pub fn count(&self) -> Result<u64, TraceError> {
        let mut sum = 0_u64;
        for (cpu, event) in &self.events {
            let count = event.count().map_err(|source| TraceError::Step {
                step: "reading a count",
                cpu: *cpu,
                source,
            })?;
            sum = sum.saturating_add(count.occurred);
        }
        Ok(sum)
    }
}

fn open_on(format: &Format, cpu: CpuId, filter: &str) -> Result<Option<PerfEvent>, TraceError> {
    let Some(event) = PerfEvent::open_count(format, cpu)? else {
        return Ok(None);
    };
    let failed = |step: &'static str| move |source| TraceError::Step { step, cpu, source };
    event.filter(filter).map_err(failed("setting a filter"))?;
    event.enable().map_err(failed("enabling an event"))?;
    Ok(Some(event))
}

/// From a CPU of each node to one that is not of it.
fn filter(nodes: &[&CpuSet]) -> Result<String, TraceError> {
    let mut filter = String::new();
    for cpus in nodes.iter().filter(|cpus| !cpus.is_empty()) {
        let ranges = ranges(cpus);
        let join = |parts: Vec<String>, operator: &str| parts.join(operator);
        let inside = ranges.iter().map(|(first, last)| match first == last {
            true => format!("orig_cpu=={first}"),
            false => format!("(orig_cpu>={first}&&orig_cpu<={last})"),
        });
        let outside = ranges.iter().map(|(first, last)| match first == last {
            true => format!("dest_cpu!={first}"),
            false => format!("(dest_cpu<{first}||dest_cpu>{last})"),
        });
        let or = if filter.is_empty() { "" } else { "||" };
        let (inside, outside) = (join(inside.collect(), "||"), join(outside.collect(), "&&"));
        let _ = write!(filter, "{or}(({inside})&&{outside})");
    }
    match filter.len() < MAX_FILTER_BYTES {
        true => Ok(filter),
        false => Err(TraceError::LongFilter {
            event: TRACEPOINT.to_owned(),
        }),
    }
}

/// The first and last CPU of each range.
fn ranges(cpus: &CpuSet) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for CpuId(cpu) in cpus.iter() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn the_filter_passes_moves_to_other_nodes() {
        let (even, odd) = (set("0-3,8"), set("4-7"));
        assert_eq!(
            filter(&[&even, &set(""), &odd]).unwrap(),
            "(((orig_cpu>=0&&orig_cpu<=3)||orig_cpu==8)&&(dest_cpu<0||dest_cpu>3)&&dest_cpu!=8)\
             ||(((orig_cpu>=4&&orig_cpu<=7))&&(dest_cpu<4||dest_cpu>7))"
        );
    }

    #[test]
    fn a_filter_that_the_kernel_has_no_room_for_is_an_error() {
        let every_second: CpuSet = (0..512).step_by(2).map(CpuId).collect();
        assert!(matches!(
            filter(&[&every_second]),
            Err(TraceError::LongFilter { .. })
        ));
    }
}
