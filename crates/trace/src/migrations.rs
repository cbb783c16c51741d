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

mod balancing;
mod class;
mod moves;

pub use balancing::Balanced;
pub use class::{Class, Sharing};
pub use moves::{ClassCounts, FromTo, Migrations, Moves, NodeTime, NumaBalancing, TaskMoves};

use nearfar_machine::{CpuId, Known};

use crate::TraceError;
use crate::format::{Format, FormatError, Number, Text};
use crate::tracefs::Tracefs;

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
    balancing: Known<(balancing::Formats, balancing::Decoder)>,
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
    balancing: Option<balancing::Decoder>,
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
            balancing: balancing::Formats::read(tracefs),
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
