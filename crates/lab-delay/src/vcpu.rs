// SPDX-License-Identifier: GPL-2.0-or-later
//! One vCPU: the lines it used last, and what it has to wait for.
//!
//! Most accesses of most programs go to a line that was used a moment ago. Such a line is found by its virtual address
//! in a small table, and is still good if its word is what this vCPU left in it: whatever makes the copy invalid (another
//! vCPU's write, an eviction) changes the word.
//!
//! What it waits by is a [`Clock`]: some hundred nanoseconds pass without a system call.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::model::lines::{Cost, Word};
use crate::model::{Model, Place, Price};
use crate::region::transfers::{LineTransfer, Transfers};
use crate::region::{Count, Counters, Doorbells};
use crate::time::turns::{Polled, PolledLine};

/// Sets of the filter, and lines of a set: 32 KiB, the size of a first-level data cache. A copy of a page word by word, or a sum of three
/// arrays, uses lines of one set in turns.
pub const FILTER_SETS: usize = 128;
/// See above.
pub const FILTER_WAYS: usize = 4;
/// How much of what emulation itself takes for an access may count as part of its delay, in nanoseconds.
pub const OWN_COST_NS: u64 = 300;
/// How much of the instructions before an access may be part of its delay in simulated time, in nanoseconds: a core executes what
/// does not need a line while it waits for it, for as long as its reorder buffer has room.
pub const OVERLAP_NS: u64 = 20;
/// How much of what the model took too long for one delay may be taken off the next, in nanoseconds. Beyond it, the host ran
/// another task.
pub const OVERRUN_NS: u64 = 1000;
/// After how many accesses at most the next delay is one that follows at once, in the host's time, where they take time themselves.
pub const AT_ONCE: u64 = 4;
/// The same in simulated time: two lines of a stream, word by word.
pub const AT_ONCE_SIMULATED: u64 = 16;
/// More loads than a turn of a loop has that waits for something.
const MOST_POLLED: usize = 8;
const LINE_SHIFT: u32 = 6;
const PS_PER_NS: u64 = 1000;
const NOTHING: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Recent<'a> {
    line: u64,
    word: &'a AtomicU64,
    left: Word,
    /// Its number in the model.
    number: u32,
}

static NO_WORD: AtomicU64 = AtomicU64::new(0);
const EMPTY: Recent<'static> = Recent {
    line: NOTHING,
    word: &NO_WORD,
    left: Word(0),
    number: 0,
};

/// The lines that a vCPU used last, by virtual address: of each set, the last one first.
#[derive(Debug)]
struct Filter<'a>(Box<[[Recent<'a>; FILTER_WAYS]; FILTER_SETS]>);

impl<'a> Filter<'a> {
    /// Finds a line, which is the last one of its set from now on.
    #[inline(always)]
    fn find(&mut self, line: u64) -> Option<&Recent<'a>> {
        let set = &mut self.0[line as usize % FILTER_SETS];
        if set[0].line != line {
            let way = (1..FILTER_WAYS).find(|&way| set[way].line == line)?;
            set[..=way].rotate_right(1);
        }
        Some(&set[0])
    }

    /// Adds a line, and returns what was there of it.
    fn put(&mut self, recent: Recent<'a>) -> Option<Recent<'a>> {
        let before = self.find(recent.line).copied();
        let set = &mut self.0[recent.line as usize % FILTER_SETS];
        if before.is_none() {
            set.rotate_right(1);
        }
        set[0] = recent;
        before
    }
}

/// A load or a store of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// The instruction's virtual address.
    pub instruction: usize,
    /// Whether it is a store.
    pub write: bool,
}

/// What an access went to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Memory, by its guest physical address.
    Memory(u64),
    /// A device's register, by its guest physical address.
    Register(u64),
    /// QEMU has no record of it.
    Unknown,
}

/// A vCPU's own state; only its thread uses it.
#[derive(Debug)]
pub struct Vcpu<'a> {
    model: &'a Model,
    place: Place,
    counters: Counters,
    doorbells: Doorbells,
    transfers: Transfers,
    own: Word,
    filter: Filter<'a>,
    paid: Option<(usize, u32)>,
    ended: Option<Ended>,
    streams: Streams,
    /// The lines of the last accesses, by their number.
    last: [u64; MOST_POLLED],
    /// Since the last pause: whether it has stored anything, or used a line that the filter did not know.
    has_changed: bool,
    pause: Pause,
    /// Picoseconds that were delayed, and waited for, and are not counted yet.
    uncounted: (u64, u64),
}

/// The general registers of a vCPU.
pub type Registers = [u64; 16];

/// The last instruction by which the vCPU said that it waits in a loop.
#[derive(Clone, Copy, Default, Debug)]
struct Pause {
    instruction: usize,
    /// How many accesses there were before it.
    accesses: u64,
    /// What the registers were, if the turn of the loop before it has changed nothing else.
    registers: Option<Registers>,
}

/// Lines that may be of sequential streams.
#[derive(Clone, Copy, Default, Debug)]
struct Streams {
    all: [Stream; STREAMS],
    oldest: usize,
}

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Its last line, by virtual address.
    last: u64,
    /// How often it has gone on.
    run: u32,
}

/// Streams that a core follows at once: half of the 32 of Intel's second-level prefetcher.
const STREAMS: usize = 16;
/// How far from its last line a stream may go on: unrolled loops do not load the lines of a turn in their order.
const STREAM_LINES: u64 = 4;
/// From how many lines after the first on it is one: by chance, a random line is next to one of the last.
const STREAM_RUN: u32 = 2;

impl Streams {
    /// Whether a line is of a stream. It is the last of that now, or may begin one.
    fn goes_on(&mut self, line: u64) -> bool {
        let near = |it: &&mut Stream| it.last.abs_diff(line) <= STREAM_LINES;
        if let Some(stream) = self.all.iter_mut().find(near) {
            stream.last = line;
            stream.run = stream.run.saturating_add(1);
            return stream.run >= STREAM_RUN;
        }
        self.all[self.oldest] = Stream { last: line, run: 0 };
        self.oldest = (self.oldest + 1) % STREAMS;
        false
    }
}

/// The end of a delay.
#[derive(Clone, Copy, Debug)]
struct Ended {
    /// When the delay was to end, and when it did, in ticks: the model may take longer than a short delay.
    due: u64,
    at: u64,
    /// The number of the access.
    access: u64,
}

impl<'a> Vcpu<'a> {
    /// A vCPU that has used no line yet.
    pub fn new(
        model: &'a Model,
        place: Place,
        counters: Counters,
        doorbells: Doorbells,
        transfers: Transfers,
    ) -> Self {
        let own = Word::written(place.vcpu, place.cache);
        Self {
            model,
            place,
            counters,
            doorbells,
            transfers,
            own,
            filter: Filter(Box::new([[EMPTY; FILTER_WAYS]; FILTER_SETS])),
            paid: None,
            ended: None,
            streams: Streams::default(),
            last: [NOTHING; MOST_POLLED],
            has_changed: true,
            pause: Pause::default(),
            uncounted: (0, 0),
        }
    }

    /// QEMU's number of it.
    pub fn number(&self) -> usize {
        usize::from(self.place.vcpu)
    }

    /// Forgets what virtual addresses stand for: the guest switches to another address space.
    pub fn forget(&mut self) {
        self.filter.0.as_flattened_mut().fill(EMPTY);
    }

    /// Counts an access, and says whether the filter knows its line, so that it costs nothing.
    ///
    /// This runs for every load and store of the guest: a few instructions, and arguments in registers.
    #[inline(always)]
    pub fn passes(&mut self, address: u64, write: bool) -> bool {
        let number = self.counters.add(Count::Accesses, 1);
        let line = address >> LINE_SHIFT;
        self.last[number as usize % MOST_POLLED] = line;
        self.has_changed |= write;
        let own = self.own.0;
        self.filter.find(line).is_some_and(|recent| {
            recent.word.load(Relaxed) == if write { own } else { recent.left.0 }
        })
    }

    /// Looks an access up that did not pass, and waits for as long as it costs. Returns whether the line came from another vCPU.
    #[cold]
    #[inline(never)]
    pub fn look(
        &mut self,
        access: Access,
        clock: &impl Clock,
        target: impl FnOnce() -> Target,
    ) -> bool {
        self.has_changed = true;
        // The delay counts from here, so the time the model itself takes is part of it, not added to it.
        let start = clock.now();
        let physical = match target() {
            Target::Memory(physical) => physical,
            Target::Register(physical) if access.write && self.doorbells.can_exist() => {
                self.write_register(physical, start, clock);
                return false;
            }
            Target::Register(_) | Target::Unknown => return false,
        };
        let Some(spot) = self.model.spot(physical) else {
            return false;
        };
        let touched = self.model.touch(self.place, spot.line, access.write);
        let is_paid = self.is_paid(touched.cost, access, spot.line);
        let line = access.address >> LINE_SHIFT;
        let recent = Recent {
            line,
            word: touched.word,
            left: touched.left,
            number: spot.line,
        };
        // It has loaded the line since another vCPU did, and loads it again.
        let polls = self
            .filter
            .put(recent)
            .is_some_and(|it| it.left != self.own)
            && !access.write;
        if is_paid {
            self.counters.add(Count::CacheHits, 1);
            return false;
        }
        let is_miss = touched.cost == Cost::Memory;
        let is_in_stream = is_miss && self.streams.goes_on(line);
        let now_ps = clock.simulated_ps();
        let price = self
            .model
            .price(self.place, &touched, spot, is_in_stream, now_ps);
        let near = spot.node == self.place.node;
        self.counters.add(
            match touched.cost {
                Cost::Hit => Count::CacheHits,
                Cost::Memory if near => Count::Near,
                Cost::Memory => Count::Far,
                Cost::TransferCore | Cost::TransferSame => Count::TransfersSame,
                Cost::TransferOther if price.from == Some(self.place.node) => {
                    Count::TransfersSameNode
                }
                Cost::TransferOther => Count::TransfersOther,
            },
            1,
        );
        if is_miss {
            self.counters.miss_to(spot.node, price.wait_ps);
        }
        if let Some(from) = price.from {
            self.counters.transfer_from(from);
        }
        let has_passed = !matches!(touched.cost, Cost::Hit | Cost::Memory);
        if has_passed {
            self.transfers.note(LineTransfer {
                instruction: access.instruction as u64,
                line: line << LINE_SHIFT,
                home: self.model.nodes()[spot.node],
                is_from_other_node: price.from.is_some_and(|from| from != self.place.node),
                ps: price.ps,
            });
        }
        let mut ready = self.ready(start, clock);
        match now_ps {
            Some(_) if access.write => self.model.stores().note(spot.line, ready),
            Some(now_ps) if polls && !is_miss => {
                ready = ready.min(self.model.stores().seen_late(spot.line, now_ps));
            }
            _ => {}
        }
        if price.ps != 0 {
            let until = ready + clock.ticks(price.ps);
            clock.wait(until);
            let access = self.counters.get(Count::Accesses);
            self.ended = Some(Ended {
                due: until,
                at: clock.now(),
                access,
            });
            self.count(price);
        }
        has_passed
    }

    fn count(&mut self, price: Price) {
        let (ps, wait_ps) = &mut self.uncounted;
        for (sum, more, count) in [
            (ps, price.ps, Count::DelayNs),
            (wait_ps, price.wait_ps, Count::WaitNs),
        ] {
            *sum += more;
            self.counters.add(count, *sum / PS_PER_NS);
            *sum %= PS_PER_NS;
        }
    }

    /// Waits if the register is a doorbell. The device has the write already: QEMU reports it afterwards.
    fn write_register(&self, physical: u64, start: u64, clock: &impl Clock) {
        let Some(node) = self.doorbells.node(physical) else {
            return;
        };
        let near = node == self.model.nodes()[self.place.node];
        let count = match near {
            true => Count::DoorbellsNear,
            false => Count::DoorbellsFar,
        };
        self.counters.add(count, 1);
        let ns = self.model.device_nanoseconds(self.place, node);
        if ns != 0 {
            clock.wait(start + clock.ticks(u64::from(ns) * PS_PER_NS));
            self.counters.add(Count::DelayNs, u64::from(ns));
        }
    }

    /// From when on a delay counts. What passes between two accesses that are delayed one right after the other (a chain of
    /// dependent loads, a line that is handed back and forth) is part of the second delay, up to a limit, and so is what the
    /// first took too long: such a chain runs at the speed that was asked for, and code that computes in between is not given
    /// the time it computes. What passes is what emulation takes, or the time of instructions in simulated time.
    fn ready(&self, start: u64, clock: &impl Clock) -> u64 {
        let (at_once, most_ns) = match clock.simulated_ps() {
            Some(_) => (AT_ONCE_SIMULATED, OVERLAP_NS),
            None => (AT_ONCE, OWN_COST_NS),
        };
        let accesses = self.counters.get(Count::Accesses);
        match self.ended {
            Some(ended) if accesses.wrapping_sub(ended.access) <= at_once => {
                let between = start
                    .saturating_sub(ended.at)
                    .min(clock.ticks(most_ns * PS_PER_NS));
                let overrun = ended
                    .at
                    .saturating_sub(ended.due)
                    .min(clock.ticks(OVERRUN_NS * PS_PER_NS));
                start.saturating_sub(between).saturating_sub(overrun)
            }
            _ => start,
        }
    }

    /// An instruction that reads and writes a line (an atomic one, above all) gets it once: QEMU reports the read, which
    /// pays, and then the write.
    fn is_paid(&mut self, cost: Cost, access: Access, line: u32) -> bool {
        let paid = self.paid == Some((access.instruction, line));
        self.paid = (cost != Cost::Hit && !access.write).then_some((access.instruction, line));
        access.write && paid
    }
}

impl Vcpu<'static> {
    /// The lines that the vCPU polls, if it is before an instruction that pauses a loop, and the last turn of the loop has changed
    /// nothing: no memory, no register. The next turns will neither, until another vCPU stores to one of these lines.
    pub fn polls(
        &mut self,
        instruction: usize,
        registers: impl FnOnce() -> Option<Registers>,
    ) -> Option<Polled> {
        let accesses = self.counters.get(Count::Accesses);
        let before = std::mem::replace(
            &mut self.pause,
            Pause {
                instruction,
                accesses,
                registers: None,
            },
        );
        let has_changed = std::mem::replace(&mut self.has_changed, false);
        let loads = accesses.wrapping_sub(before.accesses);
        let is_few = (1..=MOST_POLLED as u64).contains(&loads);
        if has_changed || before.instruction != instruction || !is_few {
            return None;
        }
        let registers = registers()?;
        self.pause.registers = Some(registers);
        if before.registers != Some(registers) {
            return None;
        }
        let last = |back: u64| self.last[accesses.wrapping_sub(back) as usize % MOST_POLLED];
        let polled = |back| {
            self.filter.find(last(back)).map(|it| PolledLine {
                word: it.word,
                before: it.left.0,
                number: it.number,
            })
        };
        let lines = (1..=loads).map(polled).collect::<Option<_>>()?;
        let model: &'static Model = self.model;
        let stores = model.stores();
        Some(Polled { lines, stores })
    }
}

/// What a vCPU waits by.
pub trait Clock {
    /// Now, in ticks.
    fn now(&self) -> u64;
    /// Picoseconds in ticks.
    fn ticks(&self, ps: u64) -> u64;
    /// Returns when it is `until`, in ticks.
    fn wait(&self, until: u64);
    /// Now, in picoseconds of simulated time, which only waiting makes pass; `None` in the host's time.
    fn simulated_ps(&self) -> Option<u64>;
}

/// The host's time stamp counter, or its monotonic clock where there is none that can be read cheaply.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    ticks_per_ns: f64,
}

impl HostClock {
    /// Measures how fast the counter runs; takes ten milliseconds.
    pub fn calibrated() -> Self {
        let mut clock = Self { ticks_per_ns: 1.0 };
        let (time, ticks) = (Instant::now(), clock.now());
        while time.elapsed() < Duration::from_millis(10) {
            spin_loop();
        }
        clock.ticks_per_ns = (clock.now() - ticks) as f64 / time.elapsed().as_nanos() as f64;
        clock
    }

    #[cfg(target_arch = "x86_64")]
    fn counter(&self) -> u64 {
        // SAFETY: reading the time stamp counter touches no memory, and every x86-64 processor has one.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn counter(&self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to the value above; the monotonic clock exists on every Linux.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

impl Clock for HostClock {
    fn now(&self) -> u64 {
        self.counter()
    }

    fn ticks(&self, ps: u64) -> u64 {
        (ps as f64 / 1000.0 * self.ticks_per_ns) as u64
    }

    fn wait(&self, until: u64) {
        while self.counter() < until {
            spin_loop();
        }
    }

    fn simulated_ps(&self) -> Option<u64> {
        None
    }
}

/// Waiting that only counts, in picoseconds of a vCPU's local time.
#[derive(Debug)]
pub struct Charged(Cell<u64>);

impl Charged {
    /// From a local time on.
    pub fn from(local_ps: u64) -> Self {
        Self(Cell::new(local_ps))
    }
}

impl Clock for Charged {
    fn now(&self) -> u64 {
        self.0.get()
    }

    fn ticks(&self, ps: u64) -> u64 {
        ps
    }

    fn wait(&self, until: u64) {
        self.0.set(until.max(self.0.get()));
    }

    fn simulated_ps(&self) -> Option<u64> {
        Some(self.0.get())
    }
}
