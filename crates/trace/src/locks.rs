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

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nearfar_machine::{CpuId, CpuSet, Known};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd as _, OwnedFd};
use serde::{Deserialize, Serialize};

use crate::format::{Format, FormatError, Number};
use crate::records::Sample;
use crate::symbols::Symbols;
use crate::{Finished, Ordered, Plan, Session, TraceError, Tracefs};

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
enum Waiter {
    Task(i32),
    /// An interrupt in an idle CPU: every idle task has number 0.
    Idle(CpuId),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
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

/// As many locks and call chains are told apart.
const MOST_WAITED: usize = 1 << 16;

/// Which locks were waited for, and from where, by the lock's address.
#[derive(Debug)]
pub struct WaitedLocks {
    decoder: Decoder,
    /// How many waits of each call chain.
    by_lock: HashMap<(u64, LockKind, Box<[u64]>), u64>,
}

impl WaitedLocks {
    pub fn new(decoder: Decoder) -> Self {
        Self {
            decoder,
            by_lock: HashMap::new(),
        }
    }

    /// Takes an event in.
    pub fn take(&mut self, cpu: CpuId, sample: &Sample<'_>) {
        if let Some(Event::Began {
            lock,
            kind,
            callers,
            ..
        }) = self.decoder.decode(cpu, sample)
        {
            let waited = (lock, kind, callers);
            if self.by_lock.len() < MOST_WAITED || self.by_lock.contains_key(&waited) {
                *self.by_lock.entry(waited).or_default() += 1;
            }
        }
    }

    /// For each lock by its address, where it is taken and its kind: the call site with most waits first, each once.
    pub fn call_sites(&self, symbols: &Symbols) -> BTreeMap<u64, Vec<(String, LockKind)>> {
        let mut counts = BTreeMap::<u64, BTreeMap<(String, LockKind), u64>>::new();
        for ((lock, kind, callers), count) in &self.by_lock {
            if let Some(site) = symbols.call_site(callers) {
                let of_lock = counts.entry(*lock).or_default();
                *of_lock.entry((site.to_owned(), *kind)).or_default() += count;
            }
        }
        let sorted = |sites: BTreeMap<_, u64>| {
            let mut sites = Vec::from_iter(sites);
            sites.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            Vec::from_iter(sites.into_iter().map(|(site, _)| site))
        };
        let all = counts.into_iter();
        all.map(|(lock, sites)| (lock, sorted(sites))).collect()
    }
}

/// What waits there were.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LockWaits {
    /// Seconds that all tasks together waited. A wait within another one counts once.
    pub wait_s: f64,
    /// Those of them in spinlocks and rwlocks, which keep the CPU busy.
    pub spin_s: f64,
    pub waits: u64,
    /// Waits whose begin or end was not seen: they had begun before, or lasted on, or an event was lost. Not in the other figures.
    pub incomplete: u64,
    /// Events that could not be parsed.
    pub unreadable: u64,
    /// Why call sites have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_names_reason: Option<String>,
    /// Why there may be waits for spinlocks although none is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_spin_reason: Option<String>,
    /// By call site and kind of lock, the longest wait in all first.
    pub sites: Vec<Site>,
    /// By process, the longest wait in all first.
    #[serde(default)]
    pub processes: Vec<ProcessWaits>,
}

/// What the tasks of a process waited.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProcessWaits {
    /// 0 for what interrupts waited for on idle CPUs.
    pub pid: i32,
    /// `None` once it has ended.
    pub name: Option<String>,
    pub waits: u64,
    pub wait_s: f64,
}

/// Where a lock is taken.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Site {
    /// The kernel function that takes the lock, or its address.
    pub call_site: String,
    pub kind: LockKind,
    pub waits: u64,
    pub wait_s: f64,
    pub longest_s: f64,
}

/// Why this kernel may take contended spinlocks without tracing them, by its /proc/cpuinfo: on x86 under a hypervisor without
/// paravirtual spinlocks it does not get to the queue, which has the tracepoints (`virt_spin_lock` in
/// arch/x86/include/asm/qspinlock.h).
fn untraced(cpuinfo: &str) -> Option<String> {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    let is_guest = flags.is_some_and(|it| it.split_whitespace().any(|flag| flag == "hypervisor"));
    is_guest.then(|| {
        "no wait for a spinlock was seen, and an x86 kernel under a hypervisor may not trace them; booted with \
         clearcpuid=hypervisor it does"
            .to_owned()
    })
}

/// Collects events into [`LockWaits`].
#[derive(Debug)]
pub struct Waits {
    decoder: Decoder,
    order: Ordered<Event>,
    found: Found,
    unreadable: u64,
}

#[derive(Debug, Default)]
struct Found {
    /// Of each task the waits that have not ended, the innermost last.
    open: HashMap<Waiter, Vec<Open>>,
    ended: HashMap<Waited, Times>,
    incomplete: u64,
}

/// Who waited, where, for what.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waited {
    process: i32,
    callers: Box<[u64]>,
    kind: LockKind,
}

#[derive(Debug)]
struct Open {
    lock: u64,
    since_ns: u64,
    /// Time in waits within this one.
    inner_ns: u64,
    waited: Waited,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    waits: u64,
    wait_ns: u64,
    longest_ns: u64,
}

impl Times {
    fn wait_s(self) -> f64 {
        self.wait_ns as f64 / 1e9
    }

    fn add(&mut self, other: Self) {
        self.waits += other.waits;
        self.wait_ns += other.wait_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

impl Waits {
    pub fn new(decoder: Decoder) -> Self {
        let (order, found) = (Ordered::default(), Found::default());
        Self {
            decoder,
            order,
            found,
            unreadable: 0,
        }
    }

    /// Takes an event.
    pub fn take(&mut self, cpu: CpuId, sample: &Sample<'_>) {
        match self.decoder.decode(cpu, sample) {
            Some(event) => self.order.push(sample.time_ns, event),
            None => self.unreadable += 1,
        }
    }

    /// Every CPU's events have been read once more.
    pub fn end_round(&mut self) {
        let found = &mut self.found;
        self.order
            .end_round(&mut |time, event| found.take(time, event));
    }

    /// An interval has ended, all events of which have been taken: a wait that lasts on does not end in a later one.
    pub(crate) fn cut(&mut self) {
        let found = &mut self.found;
        self.order
            .until(u64::MAX, &mut |time, event| found.take(time, event));
        let open = std::mem::take(&mut found.open);
        found.incomplete += open.values().map(|it| it.len() as u64).sum::<u64>();
    }

    /// Nothing more will come. Waits of all tasks, or of those of some processes; events that are incomplete or unreadable are
    /// counted for all. `cpuinfo`: the machine's /proc/cpuinfo, which says whether it may take contended spinlocks untraced.
    pub fn finish(
        self,
        symbols: &Known<Symbols>,
        processes: Option<&BTreeSet<i32>>,
        cpuinfo: &str,
    ) -> LockWaits {
        let mut found = self.found;
        self.order
            .finish(&mut |time, event| found.take(time, event));
        // A wait of any process shows that the kernel traces them.
        let has_spun = found.ended.keys().any(|it| it.kind.is_spinning());
        if let Some(processes) = processes {
            found.ended.retain(|it, _| processes.contains(&it.process));
        }
        let answer = found.answer(symbols, self.unreadable);
        LockWaits {
            no_spin_reason: untraced(cpuinfo).filter(|_| !has_spun),
            ..answer
        }
    }
}

impl Found {
    fn take(&mut self, time_ns: u64, event: Event) {
        match event {
            Event::Began {
                waiter,
                process,
                lock,
                kind,
                callers,
            } => {
                let open = self.open.entry(waiter).or_default();
                // A mutex is first spun for, then slept for: two begins, one end (kernel/locking/mutex.c).
                if open.last().is_none_or(|it| it.lock != lock) {
                    open.push(Open {
                        lock,
                        since_ns: time_ns,
                        inner_ns: 0,
                        waited: Waited {
                            process,
                            callers,
                            kind,
                        },
                    });
                }
            }
            Event::Ended { waiter, lock } => self.end(waiter, lock, time_ns),
        }
    }

    fn end(&mut self, waiter: Waiter, lock: u64, time_ns: u64) {
        let open = self.open.entry(waiter).or_default();
        let Some(place) = open.iter().rposition(|it| it.lock == lock) else {
            self.incomplete += 1;
            return;
        };
        // Those within it whose end was not seen.
        self.incomplete += (open.len() - place - 1) as u64;
        open.truncate(place + 1);
        let Some(ended) = open.pop() else { return };
        let all_ns = time_ns.saturating_sub(ended.since_ns);
        if let Some(outer) = open.last_mut() {
            outer.inner_ns += all_ns;
        }
        let wait_ns = all_ns.saturating_sub(ended.inner_ns);
        let times = self.ended.entry(ended.waited).or_default();
        times.add(Times {
            waits: 1,
            wait_ns,
            longest_ns: wait_ns,
        });
    }

    fn answer(self, symbols: &Known<Symbols>, unreadable: u64) -> LockWaits {
        let open: usize = self.open.values().map(Vec::len).sum();
        let mut by_site: BTreeMap<(String, LockKind), Times> = BTreeMap::new();
        let mut by_process: BTreeMap<i32, Times> = BTreeMap::new();
        for (waited, times) in self.ended {
            let site = (call_site(symbols, &waited.callers), waited.kind);
            by_site.entry(site).or_default().add(times);
            by_process.entry(waited.process).or_default().add(times);
        }
        let process = |(pid, times): (i32, Times)| ProcessWaits {
            pid,
            name: None,
            waits: times.waits,
            wait_s: times.wait_s(),
        };
        let mut processes: Vec<ProcessWaits> = by_process.into_iter().map(process).collect();
        processes.sort_by(|a, b| b.wait_s.total_cmp(&a.wait_s));
        let mut sites: Vec<Site> = by_site.into_iter().map(site).collect();
        sites.sort_by(|a, b| b.wait_s.total_cmp(&a.wait_s));
        LockWaits {
            wait_s: sum(&sites),
            spin_s: sum(sites.iter().filter(|it| it.kind.is_spinning())),
            waits: sites.iter().map(|it| it.waits).sum(),
            incomplete: self.incomplete + open as u64,
            unreadable,
            no_names_reason: symbols.unknown_reason().map(ToString::to_string),
            no_spin_reason: None,
            sites,
            processes,
        }
    }
}

/// A sum of no waits is 0, not -0.
fn sum<'a>(sites: impl IntoIterator<Item = &'a Site>) -> f64 {
    sites.into_iter().fold(0.0, |sum, site| sum + site.wait_s)
}

fn call_site(symbols: &Known<Symbols>, callers: &[u64]) -> String {
    let name = symbols.get().and_then(|symbols| symbols.call_site(callers));
    match (name, callers.first()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(address)) if *address != 0 => format!("{address:#x}"),
        _ => "unknown".to_owned(),
    }
}

fn site(((call_site, kind), times): ((String, LockKind), Times)) -> Site {
    Site {
        call_site,
        kind,
        waits: times.waits,
        wait_s: times.wait_s(),
        longest_s: times.longest_ns as f64 / 1e9,
    }
}

/// The longest time between two looks at the rings.
const LOOK: Duration = Duration::from_millis(100);

/// A trace of lock contention on some CPUs. Dropping it ends it.
pub struct Recorder {
    wake: Arc<OwnedFd>,
    /// Until it begins.
    opened: Option<(Session, Waits)>,
    thread: Option<JoinHandle<Result<Recorded, TraceError>>>,
}

/// What a [`Recorder`] saw, without names yet ([`answer`]). Dropping it closes the events, as dropping a [`Session`] does.
pub struct Recorded {
    pub waits: Waits,
    pub finished: Finished,
    _session: Session,
}

impl Recorder {
    /// Opens the trace of all tasks on these CPUs, which takes nothing before [`Self::begin`]. To be opened before a load begins,
    /// see [`Session::open`].
    ///
    /// # Errors
    /// When the kernel has no such events, or does not let this user trace.
    pub fn open(cpus: &CpuSet) -> Result<Self, TraceError> {
        let formats = Tracefs::find().and_then(|tracefs| Formats::read(&tracefs))?;
        let decoder = Decoder::new(&formats).map_err(|problem| TraceError::Format {
            file: "lock:contention_begin".to_owned(),
            problem,
        })?;
        let plan = Plan {
            cpus,
            tracepoints: &formats.tracepoints(),
            names: false,
            mappings: false,
            callers_of: Some(formats.callers_of()),
        };
        let session = Session::open(&plan)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| TraceError::Thread(error.into()))?);
        let opened = Some((session, Waits::new(decoder)));
        Ok(Self {
            wake,
            opened,
            thread: None,
        })
    }

    /// Opens the trace and begins.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::begin`].
    pub fn start(cpus: &CpuSet) -> Result<Self, TraceError> {
        let mut recorder = Self::open(cpus)?;
        recorder.begin()?;
        Ok(recorder)
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// When the kernel refuses, or it has begun already.
    pub fn begin(&mut self) -> Result<(), TraceError> {
        let (mut session, waits) = self.opened.take().ok_or(TraceError::Ended)?;
        session.enable()?;
        let end = Arc::clone(&self.wake);
        let thread = std::thread::Builder::new()
            .name("locks".to_owned())
            .spawn(move || record(session, waits, &end));
        self.thread = Some(thread.map_err(TraceError::Thread)?);
        Ok(())
    }

    /// Ends it; what was waited for until now.
    ///
    /// # Errors
    /// When reading the events failed.
    pub fn finish(mut self) -> Result<Recorded, TraceError> {
        self.end();
        let thread = self.thread.take().ok_or(TraceError::Ended)?;
        thread.join().map_err(|_| TraceError::Ended)?
    }

    fn end(&self) {
        // An eventfd has room for this.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn record(mut session: Session, mut waits: Waits, end: &OwnedFd) -> Result<Recorded, TraceError> {
    loop {
        session.wait(LOOK, &[end.as_fd()])?;
        if rustix::io::read(end, &mut [0; 8]).is_ok() {
            break;
        }
        session.drain(&mut |cpu, sample| waits.take(cpu, sample));
        waits.end_round();
    }
    let finished = session.finish(&mut |cpu, sample| waits.take(cpu, sample))?;
    Ok(Recorded {
        waits,
        finished,
        _session: session,
    })
}
