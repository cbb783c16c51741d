//! Lock contention: who waited for a kernel lock, where, and how long (`lock:contention_begin`, `contention_end`, Linux 5.19 and later).
//!
//! ```text
//! contention_begin   lock_addr, flags, call chain    a task begins to wait for a lock that another one holds
//! contention_end     lock_addr                       it has the lock, or gave up
//!
//! events ─► Decoder ─► Ordered ─► Waits ─► LockWaits     by call site, with Symbols for the names
//! ```
//!
//! The call site is the first function of the call chain that does not itself implement a lock: those are between
//! `__lock_text_start` and `__lock_text_end`, and between the same of `__sched_text`, as perf(1) has it.

mod recorder;
mod symbols;
mod waits;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_machine::{CpuId, Known};
use serde::{Deserialize, Serialize};

use crate::TraceError;
use crate::format::{Format, FormatError, Number};
use crate::records::Sample;
use crate::tracefs::Tracefs;

pub use recorder::{Recorded, Recorder};
pub use symbols::Symbols;
pub use waits::{LockWaits, ProcessWaits, Site, Waits};

/// Whether a trace of this process has seen that spinlocks are traced: a kernel decides that at boot.
static ARE_SPINS_TRACED: AtomicBool = AtomicBool::new(false);

/// The waits on this machine, named by this kernel's symbols: of all tasks, or of those of some processes.
pub fn answer(
    waits: Waits,
    processes: Option<&BTreeSet<i32>>,
    symbols: &Known<Symbols>,
) -> LockWaits {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut answer = waits.finish(symbols, processes, &cpuinfo);
    match answer.no_spin_reason {
        None => ARE_SPINS_TRACED.store(true, Ordering::Relaxed),
        Some(_) if ARE_SPINS_TRACED.load(Ordering::Relaxed) => answer.no_spin_reason = None,
        Some(_) => {}
    }
    for process in &mut answer.processes {
        let name = std::fs::read(format!("/proc/{}/comm", process.pid));
        process.name = name
            .ok()
            .map(|it| String::from_utf8_lossy(it.trim_ascii_end()).into_owned());
    }
    answer
}

const SYSTEM: &str = "lock";

/// Flags of `contention_begin` (LCB_F_* in include/trace/events/lock.h).
const SPIN: i64 = 1 << 0;
const READ: i64 = 1 << 1;
const WRITE: i64 = 1 << 2;
const RT: i64 = 1 << 3;
const PERCPU: i64 = 1 << 4;
const MUTEX: i64 = 1 << 5;

/// What a lock is, and how it was wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockKind {
    Spinlock,
    RwlockRead,
    RwlockWrite,
    Mutex,
    RwsemRead,
    RwsemWrite,
    PercpuRwsemRead,
    PercpuRwsemWrite,
    RtMutex,
    Semaphore,
}

impl LockKind {
    /// From the flags of `contention_begin`.
    pub fn of_flags(flags: i64) -> Self {
        let has = |flag| flags & flag != 0;
        match () {
            () if has(MUTEX) => Self::Mutex,
            () if has(PERCPU) && has(WRITE) => Self::PercpuRwsemWrite,
            () if has(PERCPU) => Self::PercpuRwsemRead,
            () if has(SPIN) && has(READ) => Self::RwlockRead,
            () if has(SPIN) && has(WRITE) => Self::RwlockWrite,
            () if has(SPIN) => Self::Spinlock,
            () if has(READ) => Self::RwsemRead,
            () if has(WRITE) => Self::RwsemWrite,
            () if has(RT) => Self::RtMutex,
            () => Self::Semaphore,
        }
    }

    /// Whether a task that waits for it keeps its CPU busy all the time. For a mutex or a semaphore it may, for some of the time.
    pub fn is_spinning(self) -> bool {
        matches!(self, Self::Spinlock | Self::RwlockRead | Self::RwlockWrite)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Spinlock => "spinlock",
            Self::RwlockRead => "rwlock, read",
            Self::RwlockWrite => "rwlock, write",
            Self::Mutex => "mutex",
            Self::RwsemRead => "rwsem, read",
            Self::RwsemWrite => "rwsem, write",
            Self::PercpuRwsemRead => "percpu rwsem, read",
            Self::PercpuRwsemWrite => "percpu rwsem, write",
            Self::RtMutex => "rt mutex",
            Self::Semaphore => "semaphore",
        }
    }
}

/// Both events as this kernel describes them.
#[derive(Clone, Debug)]
pub struct Formats {
    begin: Format,
    end: Format,
}

impl Formats {
    /// Reads the descriptions.
    ///
    /// # Errors
    /// When the kernel has no such events (before Linux 5.19), or they cannot be read.
    pub fn read(tracefs: &Tracefs) -> Result<Self, TraceError> {
        Ok(Self {
            begin: tracefs.tracepoint(SYSTEM, "contention_begin")?,
            end: tracefs.tracepoint(SYSTEM, "contention_end")?,
        })
    }

    /// From the texts of both `format` files.
    ///
    /// # Errors
    /// As [`Format::parse`].
    pub fn parse(begin: &str, end: &str) -> Result<Self, FormatError> {
        let (begin, end) = (Format::parse(begin)?, Format::parse(end)?);
        Ok(Self { begin, end })
    }

    /// What a session traces.
    pub fn tracepoints(&self) -> [(&Format, Option<String>); 2] {
        [(&self.begin, None), (&self.end, None)]
    }

    /// The event whose call chain is wanted, see [`Plan::callers_of`](crate::Plan::callers_of).
    pub fn callers_of(&self) -> u16 {
        self.begin.id()
    }
}

/// Reads both events.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    kind: Number,
    begin: (u16, Number, Number),
    end: (u16, Number),
}

/// In whose context a lock was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Waiter {
    Task(i32),
    /// An interrupt in an idle CPU: every idle task has number 0.
    Idle(CpuId),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Began {
        waiter: Waiter,
        process: i32,
        lock: u64,
        kind: LockKind,
        callers: Box<[u64]>,
    },
    Ended {
        waiter: Waiter,
        lock: u64,
    },
}

impl Decoder {
    /// Finds the fields in this kernel's layouts.
    ///
    /// # Errors
    /// When one is missing or is of another kind.
    pub fn new(formats: &Formats) -> Result<Self, FormatError> {
        let Formats { begin, end } = formats;
        Ok(Self {
            kind: begin.number("common_type")?,
            begin: (
                begin.id(),
                begin.number("lock_addr")?,
                begin.number("flags")?,
            ),
            end: (end.id(), end.number("lock_addr")?),
        })
    }

    /// `None` where the bytes hold neither.
    fn decode(&self, cpu: CpuId, sample: &Sample<'_>) -> Option<Event> {
        let event = sample.event;
        let kind = u16::try_from(self.kind.read(event)?).ok()?;
        let waiter = match sample.tid {
            0 => Waiter::Idle(cpu),
            tid => Waiter::Task(tid),
        };
        let (begin, lock, flags) = &self.begin;
        if kind == *begin {
            return Some(Event::Began {
                waiter,
                process: sample.pid,
                lock: lock.read_address(event)?,
                kind: LockKind::of_flags(flags.read(event)?),
                callers: sample.callers().collect(),
            });
        }
        let (end, lock) = &self.end;
        let lock = lock.read_address(event)?;
        (kind == *end).then_some(Event::Ended { waiter, lock })
    }
}
