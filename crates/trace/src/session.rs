//! One trace: some tracepoints on some CPUs, read until the caller has enough.
//!
//! [`Ordered`] puts the events of several CPUs in one order. Rings are read one after the other, so a round of reading yields
//! events CPU by CPU. An event older than the newest one of the round before can no longer be followed by an older one: each
//! ring has been read since. The others wait for one more round (`perf report` orders its rounds the same way).
//!
//! ```text
//! round 1   CPU 0: 1 4 7     CPU 1: 2 3        newest 7       out: nothing
//! round 2   CPU 0: 9         CPU 1: 5 6 8      newest 9       out: 1 2 3 4 5 6 7
//! end                                                         out: 8 9
//! ```
//!
//! [`Losses`] say whether a trace is whole, and if not, which of two things happened:
//!
//! ```text
//! occurred ─┬─ read
//!           └─ lost ─┬─ a ring was full            the kernel says how many (PERF_FORMAT_LOST, since Linux 6.0)
//!                    └─ unwritten                  it counted them, and neither wrote them nor calls them lost
//! ```
//!
//! perf_swevent_event() in kernel/events/core.c adds to the count first and writes after. Linux as published leaves an event
//! out in between only when it was disabled meanwhile. A hosted virtual machine's own build of Linux 6.18 wrote none in whose
//! context process 1 or the idle task of CPU 1 was, and every other one (docs/trace.md).
//!
//! Count and ring are looked at one after the other, and events go on. What came in between must not stand in for one that is
//! missing, so a look counts only if nothing came ([`between_events`]).

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, CpuSet, Emulation, Machine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::TraceError;
use crate::format::Format;
use crate::open::{PerfEvent, With};
use crate::records::{Layout, Record, Ring, Sample};

/// Bytes of one CPU's ring when there is room: at 120 bytes an event it holds 35,000, some 100 ms of a fast disk's
/// commands from one CPU.
const LARGEST_RING: usize = 4 << 20;
/// With less than this a busy CPU would lose events between two looks.
const SMALLEST_RING: usize = 64 << 10;
/// Bytes of all rings together: with hundreds of CPUs each gets less.
const ALL_RINGS: usize = 256 << 20;

/// How long an event that was counted may take until it is written; microseconds, unless its CPU is taken away meanwhile: on
/// a busy virtual machine some were seen to take more than 50 ms.
const LATEST: Duration = Duration::from_secs(1);
/// The same after several waits without result: some kernels never write some of the events that they count
/// ([`Losses::unwritten`]), and an experiment that settles twice a run must not wait a second each time.
const SOONEST: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// On these CPUs; those that are not online are left out, see [`Session::not_traced`].
    pub cpus: &'a CpuSet,
    /// These tracepoints, with the filter that each has in the kernel: `pid == 17 || pid == 18`
    /// (Documentation/trace/events.rst), at most a page.
    pub tracepoints: &'a [(&'a Format, Option<String>)],
    /// Whether to remember the names that processes get meanwhile ([`Session::name_of`]): a few bytes each until the end.
    pub names: bool,
    /// Whether to remember what is mapped meanwhile of programs and libraries ([`Session::mappings`]).
    pub mappings: bool,
    /// The event ([`Format::id`]) with the kernel's call chain ([`Sample::callers`]); the samples of the others have a
    /// function of it or none.
    pub callers_of: Option<u16>,
}

/// An open trace. Dropping it closes its events, which takes some milliseconds for each CPU: nothing of it stays in the kernel.
pub struct Session {
    cpus: Vec<OnCpu>,
    not_traced: CpuSet,
    shared: Shared,
    enabled: Option<Instant>,
    /// How long [`Self::settle`] waits for events that were counted and not written: [`LATEST`], a quarter of that after each
    /// time without result, and all of it again after waiting helped.
    patience: Duration,
}

/// What the rings of all CPUs are read with.
#[derive(Default)]
struct Shared {
    /// For records that are in two pieces.
    scratch: Vec<u8>,
    /// The last name that each process got, and when.
    names: HashMap<i32, (u64, String)>,
    mappings: BTreeSet<Mapping>,
}

/// Code of a file at addresses of some process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mapping {
    /// Its first virtual address.
    pub start: u64,
    /// Behind its last one.
    pub end: u64,
    /// Where it begins in the file.
    pub file_offset: u64,
    /// The file's path.
    pub file: String,
}

impl Mapping {
    /// Whether an address is in it.
    pub fn has(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Where an address of it is in the file.
    pub fn offset(&self, address: u64) -> u64 {
        (address - self.start).wrapping_add(self.file_offset)
    }
}

/// As many are remembered: each run of a program adds some.
const MOST_MAPPINGS: usize = 1 << 16;

struct OnCpu {
    cpu: CpuId,
    ring: Ring,
    /// The first owns the ring, the others write into it.
    events: Vec<PerfEvent>,
    losses: Losses,
    /// Events that were counted and not read when the trace last settled: they are not waited for a second time.
    given_up: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    pub elapsed: Duration,
    pub losses: Losses,
    /// CPUs that were offline when it began ([`Session::not_traced`]).
    pub cpus_not_traced: CpuSet,
}

impl Session {
    /// Opens the events and maps the rings, and counts nothing yet. Open sessions early and once: multi-threaded emulation
    /// (QEMU's TCG) has been seen to crash a guest's kernel over events being opened and closed under load.
    ///
    /// # Errors
    /// When the kernel does not let this user trace, has no room for the rings, or refuses a filter.
    pub fn open(plan: &Plan<'_>) -> Result<Self, TraceError> {
        Self::open_within(plan, ALL_RINGS)
    }

    /// As [`Self::open`], with rings of about so many bytes together, for events that are rare.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_within(plan: &Plan<'_>, rings_bytes: usize) -> Result<Self, TraceError> {
        let size = ring_size(plan.cpus.len(), rings_bytes);
        let mut session = Self {
            cpus: Vec::new(),
            not_traced: CpuSet::new(),
            shared: Shared::default(),
            enabled: None,
            patience: LATEST,
        };
        for cpu in plan.cpus.iter() {
            match open_on(plan, cpu, size)? {
                Some(on_cpu) => session.cpus.push(on_cpu),
                None => _ = session.not_traced.insert(cpu),
            }
        }
        if session.cpus.is_empty() {
            Err(TraceError::NoCpu)
        } else {
            Ok(session)
        }
    }

    /// CPUs that were asked for and are offline. One that comes online later is not traced either.
    pub fn not_traced(&self) -> &CpuSet {
        &self.not_traced
    }

    /// Counts from now on, CPU by CPU.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enable(&mut self) -> Result<(), TraceError> {
        for on_cpu in &self.cpus {
            on_cpu.each("enabling an event", PerfEvent::enable)?;
        }
        self.enabled = Some(Instant::now());
        Ok(())
    }

    /// Waits until a ring has got half full, one of `others` can be read, the time is over or a signal came.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn wait(&self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<(), TraceError> {
        let rings = self
            .cpus
            .iter()
            .filter_map(|on_cpu| Some(on_cpu.events.first()?.as_fd()));
        let all = rings.chain(others.iter().copied());
        let mut all: Vec<PollFd<'_>> = all
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut all, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(TraceError::Wait(error.into())),
        }
    }

    /// Visits every event since the last time, CPU by CPU; within a CPU in order of time.
    pub fn drain(&mut self, visit: &mut dyn FnMut(CpuId, &Sample<'_>)) {
        for on_cpu in &mut self.cpus {
            on_cpu.drain(&mut self.shared, visit);
        }
    }

    /// How many events had no room in a ring or could not be read, of those that were drained so far.
    pub fn lost(&self) -> u64 {
        self.cpus
            .iter()
            .map(|on_cpu| on_cpu.losses.lost + on_cpu.losses.damaged)
            .sum()
    }

    /// The kernel's name of a process: the last it got during the trace, else the one it has now.
    pub fn name_of(&self, pid: i32) -> Option<String> {
        // The idle task has no directory; what happens in its context happens in an interrupt.
        let now = || match pid {
            0 => Some("(interrupt)".to_owned()),
            _ => Some(nearfar_proc::tasks::name(pid).ok()?.to_text()),
        };
        let named = self.shared.names.get(&pid);
        named.map(|(_, name)| name.clone()).or_else(now)
    }

    /// What was mapped of programs and libraries during the trace, as far as it was drained.
    pub fn mappings(&self) -> &BTreeSet<Mapping> {
        &self.shared.mappings
    }

    /// Visits what is left until now, and says whether all was read and how long it took. The trace is over.
    ///
    /// # Errors
    /// When the kernel does not say how often an event occurred, or does not end it.
    pub fn finish(
        &mut self,
        visit: &mut dyn FnMut(CpuId, &Sample<'_>),
    ) -> Result<Finished, TraceError> {
        let elapsed = self
            .enabled
            .take()
            .map_or(Duration::ZERO, |since| since.elapsed());
        let losses = self.settle(visit)?;
        for on_cpu in &self.cpus {
            on_cpu.each("disabling an event", PerfEvent::disable)?;
        }
        Ok(Finished {
            elapsed,
            losses,
            cpus_not_traced: self.not_traced.clone(),
        })
    }

    /// Visits every event that occurred before this call, and maybe some that came since; says what has been counted, read
    /// and lost since the trace began, which goes on.
    ///
    /// # Errors
    /// When the kernel does not say how often an event occurred.
    pub fn settle(
        &mut self,
        visit: &mut dyn FnMut(CpuId, &Sample<'_>),
    ) -> Result<Losses, TraceError> {
        // The kernel counts an event before it writes it, and does not write it when it was disabled in between: the fix of a
        // race in perf_swevent_event(), kernel/events/core.c. So events stay enabled until all that were counted are there.
        let begin = Instant::now();
        let mut counts = Vec::with_capacity(self.cpus.len());
        for on_cpu in &mut self.cpus {
            counts.push(on_cpu.settle(&mut self.shared, visit)?);
        }
        let mut waited = false;
        while missing(&self.cpus, &counts) && begin.elapsed() < self.patience {
            self.wait(Duration::from_millis(1), &[])?;
            for (on_cpu, count) in self.cpus.iter_mut().zip(&mut counts) {
                if on_cpu.is_missing(count) {
                    *count = on_cpu.settle(&mut self.shared, visit)?;
                }
            }
            waited = true;
        }
        match missing(&self.cpus, &counts) {
            true => self.patience = (self.patience / 4).max(SOONEST),
            false if waited => self.patience = LATEST,
            false => {}
        }
        Ok(Losses::of_all(self.cpus.iter_mut().zip(counts).map(
            |(on_cpu, count)| {
                on_cpu.given_up = on_cpu.losses.missing(&count);
                on_cpu.losses.counted(&count)
            },
        )))
    }
}

/// Whether events of any CPU are missing that have not been waited for yet.
fn missing(cpus: &[OnCpu], counts: &[Count]) -> bool {
    cpus.iter()
        .zip(counts)
        .any(|(on_cpu, count)| on_cpu.is_missing(count))
}

impl OnCpu {
    fn each(
        &self,
        step: &'static str,
        mut f: impl FnMut(&PerfEvent) -> std::io::Result<()>,
    ) -> Result<(), TraceError> {
        let cpu = self.cpu;
        self.events
            .iter()
            .try_for_each(|event| f(event).map_err(|source| TraceError::Step { step, cpu, source }))
    }

    /// Visits every event since the last time, in order of time.
    fn drain(&mut self, shared: &mut Shared, visit: &mut dyn FnMut(CpuId, &Sample<'_>)) {
        let Self {
            cpu, ring, losses, ..
        } = self;
        let (names, mappings) = (&mut shared.names, &mut shared.mappings);
        ring.drain(&mut shared.scratch, &mut |record| match record {
            Record::Sample(sample) => {
                losses.read += 1;
                visit(*cpu, &sample);
            }
            // A process has its main thread's name.
            Record::Named {
                pid,
                tid,
                time_ns,
                name,
            } if pid == tid => {
                let known = names.entry(pid).or_default();
                if time_ns >= known.0 {
                    *known = (time_ns, String::from_utf8_lossy(name).into_owned());
                }
            }
            // Memory without a file has a name of the kernel's making: //anon, [vdso].
            Record::Mapped(mapping)
                if mappings.len() < MOST_MAPPINGS
                    && mapping.file.starts_with('/')
                    && !mapping.file.starts_with("//") =>
            {
                mappings.insert(mapping);
            }
            Record::Lost(count) => losses.lost += count,
            Record::Throttled => losses.throttled += 1,
            Record::Damaged => losses.damaged += 1,
            Record::Named { .. } | Record::Mapped(_) | Record::Other => {}
        });
    }

    /// Visits every event until now, and says how often they had occurred by then.
    fn settle(
        &mut self,
        shared: &mut Shared,
        visit: &mut dyn FnMut(CpuId, &Sample<'_>),
    ) -> Result<Count, TraceError> {
        between_events(self, Self::count, |on_cpu| on_cpu.drain(shared, visit))
    }

    /// Whether events are missing that have not been waited for yet.
    fn is_missing(&self, count: &Count) -> bool {
        self.losses.missing(count) > self.given_up
    }

    fn count(&self) -> Result<Count, TraceError> {
        let mut counts = Vec::with_capacity(self.events.len());
        self.each("reading an event's count", |event| {
            counts.push(event.count()?);
            Ok(())
        })?;
        Ok(counts.into_iter().sum())
    }
}

/// All events of one CPU, with one ring.
fn open_on(plan: &Plan<'_>, cpu: CpuId, size: usize) -> Result<Option<OnCpu>, TraceError> {
    let step =
        |step: &'static str| move |source: std::io::Error| TraceError::Step { step, cpu, source };
    let layout = Layout {
        callers: plan.callers_of.is_some(),
    };
    let mut events: Vec<PerfEvent> = Vec::new();
    let mut ring = None;
    for (format, filter) in plan.tracepoints {
        let Some(event) = PerfEvent::open(
            format,
            cpu,
            With {
                names: plan.names && events.is_empty(),
                mappings: plan.mappings && events.is_empty(),
                callers_of: plan.callers_of,
            },
        )?
        else {
            return Ok(None);
        };
        if let Some(filter) = filter {
            event
                .filter(filter)
                .map_err(step("setting the filter of an event"))?;
        }
        match events.first() {
            Some(first) => event
                .write_to(first)
                .map_err(step("sharing a ring buffer"))?,
            None => ring = Some(map(&event, cpu, size, layout)?),
        }
        events.push(event);
    }
    Ok(ring.map(|ring| OnCpu {
        cpu,
        ring,
        events,
        losses: Losses::default(),
        given_up: 0,
    }))
}

/// A ring of that size or, where the kernel allows this user no more, a smaller one.
fn map(event: &PerfEvent, cpu: CpuId, mut size: usize, layout: Layout) -> Result<Ring, TraceError> {
    loop {
        match Ring::map(event.as_fd(), size, layout) {
            Ok(ring) => return Ok(ring),
            Err(_) if size / 2 >= SMALLEST_RING.max(rustix::param::page_size()) => size /= 2,
            Err(source) => {
                return Err(TraceError::Map {
                    cpu,
                    bytes: size,
                    source,
                });
            }
        }
    }
}

fn ring_size(cpus: usize, all: usize) -> usize {
    let share = (all / cpus.max(1)).clamp(SMALLEST_RING, LARGEST_RING);
    // The largest power of two that is not above the share; pages are at most 64 KiB.
    1 << share.ilog2()
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Traced<T> {
    pub seconds: f64,
    pub losses: Losses,
    /// CPUs that were offline when the trace began; one that comes online later is not traced either.
    pub cpus_not_traced: CpuSet,
    /// The emulated machine that was traced; `None` for a real one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
    /// The command that ran meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Ended>,
    #[serde(flatten)]
    pub answer: T,
}

impl<T> Traced<T> {
    /// An answer of a session on that machine, while that command ran.
    pub fn new(finished: Finished, machine: &Machine, command: Option<Ended>, answer: T) -> Self {
        Self {
            seconds: finished.elapsed.as_secs_f64(),
            losses: finished.losses,
            cpus_not_traced: finished.cpus_not_traced,
            emulation: machine.origin.emulation.clone(),
            command,
            answer,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ended {
    pub command: Vec<String>,
    /// Its exit code; `null` where a signal ended it.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
}

/// Events waiting for their turn, by time.
#[derive(Debug)]
pub struct Ordered<T> {
    waiting: Vec<(u64, T)>,
    newest_before: u64,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            newest_before: 0,
        }
    }
}

impl<T> Ordered<T> {
    pub fn push(&mut self, time_ns: u64, event: T) {
        self.waiting.push((time_ns, event));
    }

    /// Every ring has been read once more: visits what can no longer be preceded, in order of time; events of one time in
    /// the order in which they came.
    pub fn end_round(&mut self, visit: &mut dyn FnMut(u64, T)) {
        self.waiting.sort_by_key(|(time, _)| *time);
        let Some((newest, _)) = self.waiting.last() else {
            return;
        };
        let newest = *newest;
        self.until(self.newest_before, visit);
        self.newest_before = self.newest_before.max(newest);
    }

    /// Visits what happened up to that time, in order; the caller knows that every event so old has been taken in
    /// ([`Session::settle`](crate::Session::settle)).
    pub fn until(&mut self, time_ns: u64, visit: &mut dyn FnMut(u64, T)) {
        self.waiting.sort_by_key(|(time, _)| *time);
        let settled = self.waiting.partition_point(|(time, _)| *time <= time_ns);
        self.waiting
            .drain(..settled)
            .for_each(|(time, event)| visit(time, event));
    }

    /// Visits all that is left: nothing more will come.
    pub fn finish(mut self, visit: &mut dyn FnMut(u64, T)) {
        self.until(u64::MAX, visit);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Losses {
    /// Events that the kernel counted, whether or not it could write them.
    pub occurred: u64,
    pub read: u64,
    /// Events that occurred and were not read.
    pub lost: u64,
    /// How many of the lost ones were not for want of room in a ring: the kernel counted them and did not write them. `None`
    /// where it does not tell the two apart, which it does since Linux 6.0.
    #[serde(default)]
    pub unwritten: Option<u64>,
    /// Records that made no sense; none are known from any kernel.
    pub damaged: u64,
    /// How often the kernel paused an event for being too frequent.
    pub throttled: u64,
}

/// What the kernel says of an event, or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    pub(crate) occurred: u64,
    /// How many of those found no room in the ring; `None` before Linux 6.0.
    pub(crate) no_room: Option<u64>,
}

/// So many looks at one CPU are made to find a quiet one; each takes some microseconds a tracepoint.
const LOOKS: usize = 20;

/// Reads a ring at a moment between two events: how often they had occurred by then, all of which are written by now or never
/// will be, but for one that is being written. Where events do not cease for as long as a look takes, those of the last
/// look may stand in for as many that are missing: too few are called lost then, never too many.
fn between_events<T, E>(
    cpu: &mut T,
    count: impl Fn(&T) -> Result<Count, E>,
    mut drain: impl FnMut(&mut T),
) -> Result<Count, E> {
    let mut before = count(cpu)?;
    for _ in 0..LOOKS {
        drain(cpu);
        let after = count(cpu)?;
        if after.occurred == before.occurred {
            return Ok(after);
        }
        before = after;
    }
    drain(cpu);
    Ok(before)
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        let none = Self {
            occurred: 0,
            no_room: Some(0),
        };
        counts.fold(none, |sum, one| Self {
            occurred: sum.occurred + one.occurred,
            no_room: sum.no_room.zip(one.no_room).map(|(a, b)| a + b),
        })
    }
}

impl Losses {
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.damaged == 0 && self.throttled == 0
    }

    /// What was counted after `earlier`, which is the same session's.
    pub fn since(&self, earlier: &Self) -> Self {
        let read = self.read.saturating_sub(earlier.read);
        let lost = self.lost.saturating_sub(earlier.lost);
        let unwritten = self
            .unwritten
            .zip(earlier.unwritten)
            .map(|(now, then)| now.saturating_sub(then).min(lost));
        Self {
            // What was given up for lost by then and came after all is among those read.
            occurred: self
                .occurred
                .saturating_sub(earlier.occurred)
                .max(read + lost),
            read,
            lost,
            unwritten,
            damaged: self.damaged.saturating_sub(earlier.damaged),
            throttled: self.throttled.saturating_sub(earlier.throttled),
        }
    }

    /// How many of so many events were neither read nor found no room: they may still be written.
    fn missing(&self, count: &Count) -> u64 {
        count
            .occurred
            .saturating_sub(self.read + self.no_room(count))
    }

    /// The same with the kernel's own count, which is needed because a ring says that records were lost only with the next
    /// one that fits: after the last event of a trace it says nothing more.
    fn counted(self, count: &Count) -> Self {
        let lost = self.lost.max(count.occurred.saturating_sub(self.read));
        let unwritten = count.no_room.map(|_| self.missing(count));
        // Events may have been read that came after the count, if they did not cease.
        Self {
            occurred: count.occurred.max(self.read + lost),
            lost,
            unwritten,
            ..self
        }
    }

    /// Of all CPUs together, of which there is one at least.
    fn of_all(each: impl IntoIterator<Item = Self>) -> Self {
        let none = Self {
            unwritten: Some(0),
            ..Self::default()
        };
        each.into_iter().fold(none, |sum, one| Self {
            occurred: sum.occurred + one.occurred,
            read: sum.read + one.read,
            lost: sum.lost + one.lost,
            unwritten: sum.unwritten.zip(one.unwritten).map(|(a, b)| a + b),
            damaged: sum.damaged + one.damaged,
            throttled: sum.throttled + one.throttled,
        })
    }

    /// How many found no room, as far as that is known: a ring may have said so of some since they were counted.
    fn no_room(&self, count: &Count) -> u64 {
        self.lost.max(count.no_room.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_powers_of_two_and_smaller_the_more_cpus_there_are() {
        assert_eq!(
            [1, 64, 65, 512, 8192, 1 << 20].map(|cpus| ring_size(cpus, ALL_RINGS) >> 10),
            [4096, 4096, 2048, 512, 64, 64]
        );
    }

    fn counted(losses: Losses, occurred: u64, no_room: Option<u64>) -> Losses {
        losses.counted(&Count { occurred, no_room })
    }

    #[test]
    fn events_that_were_counted_and_not_read_are_lost_even_when_no_record_says_so() {
        let losses = Losses {
            read: 7,
            lost: 2,
            ..Losses::default()
        };
        assert_eq!(counted(losses, 10, None).lost, 3);
        assert_eq!(counted(losses, 8, None).lost, 2, "the kernel said so");
        assert!(!counted(losses, 10, None).is_whole());
        let seven = Losses {
            read: 7,
            ..Losses::default()
        };
        assert!(counted(seven, 7, Some(0)).is_whole());
        let (early, late) = (
            counted(losses, 12, None),
            counted(
                Losses {
                    read: 12,
                    ..Losses::default()
                },
                12,
                None,
            ),
        );
        assert_eq!(early.lost, 5);
        let between = late.since(&early);
        assert_eq!(
            (between.occurred, between.read, between.lost),
            (5, 5, 0),
            "those given up came after all"
        );
        assert_eq!(
            counted(Losses { read: 9, ..seven }, 7, None).occurred,
            9,
            "two came after the count"
        );
    }

    #[test]
    fn what_found_no_room_is_told_from_what_was_never_written() {
        let losses = Losses {
            read: 7,
            ..Losses::default()
        };
        let told = |occurred, no_room| {
            let losses = counted(losses, occurred, no_room);
            (losses.lost, losses.unwritten)
        };
        assert_eq!(told(10, Some(3)), (3, Some(0)), "the ring was full");
        assert_eq!(told(10, Some(1)), (3, Some(2)));
        assert_eq!(told(10, Some(0)), (3, Some(3)));
        assert_eq!(told(10, None), (3, None), "an old kernel does not tell");
        assert_eq!(
            losses.missing(&Count {
                occurred: 10,
                no_room: Some(3)
            }),
            0,
            "events that found no room are not waited for"
        );
        assert_eq!(
            losses.missing(&Count {
                occurred: 10,
                no_room: None
            }),
            3
        );
        let said_since = Losses { lost: 2, ..losses };
        assert_eq!(
            counted(said_since, 10, Some(1)).unwritten,
            Some(1),
            "a record said so after the count"
        );
    }

    /// A CPU on which one event comes after every count, so many times, and some were never written.
    struct Busy {
        coming: usize,
        written: u64,
        never_written: u64,
        losses: Losses,
    }

    impl Busy {
        /// How many are found to be missing, and how many events are still to come.
        fn settled(coming: usize) -> (u64, usize) {
            let mut busy = Self {
                coming,
                written: 10,
                never_written: 3,
                losses: Losses::default(),
            };
            let count = |busy: &Self| -> Result<Count, ()> {
                Ok(Count {
                    occurred: busy.written + busy.never_written,
                    no_room: Some(0),
                })
            };
            let drain = |busy: &mut Self| {
                if busy.coming > 0 {
                    busy.coming -= 1;
                    busy.written += 1;
                }
                busy.losses.read = busy.written;
            };
            let count = between_events(&mut busy, count, drain).unwrap();
            (busy.losses.missing(&count), busy.coming)
        }
    }

    #[test]
    fn events_that_come_during_a_look_do_not_stand_in_for_missing_ones() {
        assert_eq!(Busy::settled(0), (3, 0));
        assert_eq!(Busy::settled(1), (3, 0));
        assert_eq!(Busy::settled(LOOKS - 1), (3, 0));
        let (missing, to_come) = Busy::settled(1000);
        assert_eq!(
            missing, 2,
            "the one of the last look is taken for one of them"
        );
        assert_eq!(to_come, 1000 - LOOKS - 1, "looking ends");
    }

    #[test]
    fn one_event_of_which_it_is_not_known_makes_the_sum_unknown() {
        let [known, unknown] = [Some(2), None].map(|no_room| Count {
            occurred: 5,
            no_room,
        });
        assert_eq!(
            [known, known].into_iter().sum::<Count>(),
            Count {
                occurred: 10,
                no_room: Some(4)
            }
        );
        assert_eq!(
            [known, unknown].into_iter().sum::<Count>(),
            Count {
                occurred: 10,
                no_room: None
            }
        );
        let [known, unknown] = [Some(1), None].map(|unwritten| Losses {
            lost: 1,
            unwritten,
            ..Losses::default()
        });
        assert_eq!(Losses::of_all([known, known]).unwritten, Some(2));
        assert_eq!(
            Losses::of_all([known, unknown]),
            Losses {
                lost: 2,
                ..Losses::default()
            }
        );
        assert_eq!(known.since(&unknown).unwritten, None);
        assert_eq!(
            Losses {
                lost: 4,
                unwritten: Some(3),
                ..known
            }
            .since(&known)
            .unwritten,
            Some(2)
        );
    }

    #[test]
    fn what_was_stored_before_the_two_were_told_apart_is_read() {
        let stored = r#"{"occurred": 3, "read": 2, "lost": 1, "damaged": 0, "throttled": 0}"#;
        let losses: Losses = serde_json::from_str(stored).unwrap();
        assert_eq!(
            losses,
            Losses {
                occurred: 3,
                read: 2,
                lost: 1,
                ..Losses::default()
            }
        );
    }
}
