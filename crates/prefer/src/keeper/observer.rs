//! Who made whom and who asked for other CPUs, as the kernel's tracepoints tell it, where this user may use them.
//!
//! ```text
//! sched_process_fork               the thread that made it and the new one           descent
//! sched_process_exec               the number that a thread had before               a thread becomes its process's first
//! sys_enter/exit_sched_setaffinity the caller, whose affinity, whether it was done   the choice of a program
//! ```
//!
//! /proc does not tell these three apart from what looks the same: a thread that inherited a mask from one that set the same
//! mask itself, for example. Opening them takes root, tracefs and the initial pid namespace, since two of the events name tasks
//! by their numbers there. The events are closed with this value.

use std::collections::HashMap;

use nearfar_machine::CpuSet;
use nearfar_trace::format::{Format, Number};
use nearfar_trace::records::Sample;
use nearfar_trace::{Ordered, Plan, Session, TraceError, Tracefs, now_ns};

/// Bytes of all rings together: an event takes about 100.
const RINGS_BYTES: usize = 16 << 20;
/// The number of the initial pid namespace's file (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A thread or process was made.
    Made {
        /// The thread that made it.
        maker: i32,
        /// It.
        made: i32,
    },
    /// A thread became another program, and with that the first thread of its process.
    Executed {
        /// The number that it had.
        before: i32,
        /// The number that it has: its process's.
        now: i32,
    },
    /// The affinity of a thread was set, by a program that is not this process.
    Chose {
        /// The thread.
        tid: i32,
    },
}

/// What a record of the kernel says, before two are put together.
enum Raw {
    Event(Event),
    Called { caller: i32, target: i32 },
    Answered { caller: i32, done: bool },
}

/// The open events.
pub(super) struct Observer {
    session: Session,
    fields: Fields,
    order: Ordered<Raw>,
    /// Whose affinity a thread is about to set.
    calls: HashMap<i32, i32>,
}

struct Fields {
    fork: (u16, Number, Number),
    exec: (u16, Number, Number),
    enter: (u16, Number),
    exit: (u16, Number),
}

impl Observer {
    /// Opens the events on these CPUs. None where this user may not, or the kernel has none of them.
    pub(super) fn open(cpus: &CpuSet) -> Option<Self> {
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        if namespace.as_os_str() != INITIAL_PID_NAMESPACE {
            return None;
        }
        Self::try_open(cpus).ok()
    }

    fn try_open(cpus: &CpuSet) -> Result<Self, TraceError> {
        let tracefs = Tracefs::find()?;
        let fork = tracefs.tracepoint("sched", "sched_process_fork")?;
        let exec = tracefs.tracepoint("sched", "sched_process_exec")?;
        let enter = tracefs.tracepoint("syscalls", "sys_enter_sched_setaffinity")?;
        let exit = tracefs.tracepoint("syscalls", "sys_exit_sched_setaffinity")?;
        let number = |format: &Format, field| {
            format.number(field).map_err(|problem| TraceError::Format { file: format.name().to_owned(), problem })
        };
        let fields = Fields {
            fork: (fork.id(), number(&fork, "parent_pid")?, number(&fork, "child_pid")?),
            exec: (exec.id(), number(&exec, "old_pid")?, number(&exec, "pid")?),
            enter: (enter.id(), number(&enter, "pid")?),
            exit: (exit.id(), number(&exit, "ret")?),
        };
        let tracepoints = [&fork, &exec, &enter, &exit].map(|format| (format, None));
        let plan = Plan { cpus, tracepoints: &tracepoints, names: false };
        let mut session = Session::open_within(&plan, RINGS_BYTES)?;
        session.enable()?;
        Ok(Self { session, fields, order: Ordered::default(), calls: HashMap::new() })
    }

    /// What happened since the last time and before this call, in order of time.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let Self { session, fields, order, calls } = self;
        let me = std::process::id().cast_signed();
        let until = now_ns();
        session.drain(&mut |_, sample| {
            if let Some(raw) = fields.read(sample).filter(|raw| sample.pid != me || matches!(raw, Raw::Event(_))) {
                order.push(sample.time_ns, raw);
            }
        });
        let mut events = Vec::new();
        order.until(until, &mut |_, raw| match raw {
            Raw::Event(event) => events.push(event),
            Raw::Called { caller, target } => drop(calls.insert(caller, if target == 0 { caller } else { target })),
            Raw::Answered { caller, done } => {
                events.extend(calls.remove(&caller).filter(|_| done).map(|tid| Event::Chose { tid }));
            }
        });
        events
    }
}

impl Fields {
    fn read(&self, sample: &Sample<'_>) -> Option<Raw> {
        let number = |field: &Number| i32::try_from(field.read(sample.event)?).ok();
        // The first field of every event: its kind (common_type).
        let kind = u16::from_ne_bytes(sample.event.get(..2)?.try_into().ok()?);
        let caller = sample.tid;
        match kind {
            _ if kind == self.fork.0 => {
                Some(Raw::Event(Event::Made { maker: number(&self.fork.1)?, made: number(&self.fork.2)? }))
            }
            _ if kind == self.exec.0 => {
                let (before, now) = (number(&self.exec.1)?, number(&self.exec.2)?);
                (before != now).then_some(Raw::Event(Event::Executed { before, now }))
            }
            // The argument's register may have anything in its upper half.
            _ if kind == self.enter.0 => {
                let target = self.enter.1.read(sample.event)? as i32;
                let same = target == 0 || target == caller || same_numbers(caller);
                same.then_some(Raw::Called { caller, target })
            }
            _ if kind == self.exit.0 => Some(Raw::Answered { caller, done: self.exit.1.read(sample.event)? == 0 }),
            _ => None,
        }
    }
}

/// Whether a thread numbers tasks as this process does. One that has ended is taken for one that does.
fn same_numbers(tid: i32) -> bool {
    let namespace = std::fs::read_link(format!("/proc/{tid}/ns/pid"));
    namespace.map_or(true, |namespace| namespace.as_os_str() == INITIAL_PID_NAMESPACE)
}
