//! One trace: some tracepoints on some CPUs, read until the caller has enough.
//!
//! [`Ordered`] puts the events of several CPUs in one order. Rings are read one after the other, so a round of reading yields events CPU by CPU. An event older than the newest one
//! of the round before can no longer be followed by an older one: each ring has been read since. The others wait for one
//! more round (`perf report` orders its rounds the same way).
//!
//! ```text
//! round 1   CPU 0: 1 4 7     CPU 1: 2 3        newest 7       out: nothing
//! round 2   CPU 0: 9         CPU 1: 5 6 8      newest 9       out: 1 2 3 4 5 6 7
//! end                                                         out: 8 9
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, CpuSet, Emulation, Machine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::TraceError;
use crate::format::Format;
use crate::losses::{Count, Losses, between_events};
use crate::open::PerfEvent;
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
}

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
        let names = &mut shared.names;
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
            Record::Lost(count) => losses.lost += count,
            Record::Throttled => losses.throttled += 1,
            Record::Damaged => losses.damaged += 1,
            Record::Named { .. } | Record::Other => {}
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
            plan.names && events.is_empty(),
            plan.callers_of,
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
}
