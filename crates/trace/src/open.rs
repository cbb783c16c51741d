//! Opening one tracepoint, or the clock, on one CPU (perf_event_open(2)).
//!
//! Every task on that CPU, every occurrence (period 1), with thread, time and the event's own bytes. An event attached to
//! a task instead would not do: `sched_migrate_task` fires in the context of the task that moves it, so an event on the
//! moved one stays silent.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nearfar_machine::{CpuId, Known};
use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_FORMAT_LOST, PERF_SAMPLE_CALLCHAIN,
    PERF_SAMPLE_RAW, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT,
    perf_event_attr,
};
use rustix::time::ClockId;

use crate::TraceError;
use crate::format::Format;
use crate::session::Count;

/// Functions of a call chain: more than a lock's own, tracing and the path to the call site take.
const MAX_CALLERS: u16 = 16;

/// One clock for all CPUs, the same as the caller's: events of several CPUs are put in order by it.
const CLOCK: ClockId = ClockId::Monotonic;

/// An open event. Closing it ends it.
pub(crate) struct PerfEvent(OwnedFd);

/// What is recorded in addition to the events, as [`Plan`](crate::Plan) has it. Names and mappings are one event's of a CPU to record.
#[derive(Clone, Copy)]
pub(crate) struct With {
    pub names: bool,
    pub mappings: bool,
    pub callers_of: Option<u16>,
}

impl PerfEvent {
    /// Opens a tracepoint on a CPU, not counting yet. `Ok(None)`: that CPU is offline.
    pub(crate) fn open(
        format: &Format,
        cpu: CpuId,
        with: With,
    ) -> Result<Option<Self>, TraceError> {
        let mut attributes = attributes(PERF_TYPE_TRACEPOINT, u64::from(format.id()));
        attributes.__bindgen_anon_1.sample_period = 1;
        if let Some(of) = with.callers_of {
            // All events of a ring have one layout; those whose callers no reader wants have the shortest chain.
            with_callers(
                &mut attributes,
                if format.id() == of { MAX_CALLERS } else { 1 },
            );
        }
        attributes.set_comm(with.names.into());
        attributes.set_mmap(with.mappings.into());
        // Since Linux 6.0; one before refuses a format it does not know, and is asked for the count alone.
        attributes.read_format = u64::from(PERF_FORMAT_LOST);
        let opened = open_on(&mut attributes, cpu).or_else(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                attributes.read_format = 0;
                open_on(&mut attributes, cpu)
            }
            _ => Err(error),
        });
        event_of(opened, format.name(), cpu)
    }

    /// Opens a tracepoint on a CPU that is counted and not recorded, not counting yet. `Ok(None)`: that CPU is offline.
    pub(crate) fn open_count(format: &Format, cpu: CpuId) -> Result<Option<Self>, TraceError> {
        let mut attributes = attributes(PERF_TYPE_TRACEPOINT, u64::from(format.id()));
        attributes.sample_type = 0;
        event_of(open_on(&mut attributes, cpu), format.name(), cpu)
    }

    /// Opens the clock of a CPU (PERF_COUNT_SW_CPU_CLOCK), which samples so many times a second what runs there, with callers; not
    /// counting yet. `Ok(None)`: that CPU is offline.
    pub(crate) fn open_clock(cpu: CpuId, hertz: u32) -> Result<Option<Self>, TraceError> {
        let clock = u64::from(PERF_COUNT_SW_CPU_CLOCK);
        // Of a sample without an event's own bytes the kernel writes four that are 0, so that its layout is that of tracepoints.
        let mut attributes = attributes(PERF_TYPE_SOFTWARE, clock);
        attributes.__bindgen_anon_1.sample_freq = u64::from(hertz);
        attributes.set_freq(1);
        with_callers(&mut attributes, MAX_CALLERS);
        event_of(open_on(&mut attributes, cpu), "cpu-clock", cpu)
    }

    /// Opens an event of a process on whichever CPU it runs.
    pub(crate) fn of_process(attributes: &mut perf_event_attr, pid: i32) -> io::Result<Self> {
        opened(attributes, pid, -1).map(Self)
    }

    /// Sends this event's records into another's ring, which must be on the same CPU.
    pub(crate) fn write_to(&self, other: &Self) -> io::Result<()> {
        // SAFETY: takes a descriptor by number; both are open.
        done(unsafe { sys::ioctls::SET_OUTPUT(self.0.as_raw_fd(), other.0.as_raw_fd()) })
    }

    /// Lets only events pass for which this holds, in the words of Documentation/trace/events.rst: `pid == 1 || pid == 2`.
    /// Once only: the kernel replaces no filter.
    pub(crate) fn filter(&self, filter: &str) -> io::Result<()> {
        let text =
            CString::new(filter).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: a text that ends with NUL and lives through the call; the kernel copies and does not write it.
        done(unsafe { sys::ioctls::SET_FILTER(self.0.as_raw_fd(), text.as_ptr().cast_mut()) })
    }

    /// Counts from now on.
    pub(crate) fn enable(&self) -> io::Result<()> {
        // SAFETY: takes no pointer.
        done(unsafe { sys::ioctls::ENABLE(self.0.as_raw_fd(), 0) })
    }

    /// Counts and samples nothing more.
    pub(crate) fn disable(&self) -> io::Result<()> {
        // SAFETY: the descriptor is an event's; the request takes a number.
        done(unsafe { sys::ioctls::DISABLE(self.0.as_raw_fd(), 0) })
    }

    /// The numbers that reading it gives, as many as its `read_format` asks for.
    pub(crate) fn numbers<const N: usize>(&self) -> io::Result<[u64; N]> {
        let mut numbers = [[0; 8]; N];
        let wanted = numbers.as_flattened_mut();
        match rustix::io::read(&self.0, &mut *wanted)? == wanted.len() {
            true => Ok(numbers.map(u64::from_ne_bytes)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// How often it occurred while it was enabled and passed its filter, and for how many of those the ring had no room.
    pub(crate) fn count(&self) -> io::Result<Count> {
        let mut bytes = [0; 16];
        let read = rustix::io::read(&self.0, &mut bytes)?;
        counted(&bytes[..read]).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl AsFd for PerfEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An event that is not counting yet, of samples with thread, time and the event's own bytes.
fn attributes(kind: u32, config: u64) -> perf_event_attr {
    let mut attributes = perf_event_attr {
        type_: kind,
        size: size_of::<perf_event_attr>() as u32,
        config,
        sample_type: u64::from(PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_RAW),
        clockid: CLOCK as i32,
        ..Default::default()
    };
    // No watermark: then the kernel wakes a waiting reader each time half of the ring has been filled.
    attributes.set_use_clockid(1);
    attributes.set_disabled(1);
    attributes.set_sample_id_all(1);
    attributes
}

fn with_callers(attributes: &mut perf_event_attr, max: u16) {
    attributes.sample_type |= u64::from(PERF_SAMPLE_CALLCHAIN);
    attributes.set_exclude_callchain_user(1);
    attributes.sample_max_stack = max;
}

fn open_on(attributes: &mut perf_event_attr, cpu: CpuId) -> io::Result<OwnedFd> {
    opened(attributes, -1, cpu.0.cast_signed())
}

/// An event of one process on all CPUs, or on one CPU of all processes; -1 is all.
fn opened(attributes: &mut perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are a whole, initialised `perf_event_attr` with its size, and live through the call, which keeps
    // no pointer to them.
    let fd = unsafe {
        sys::perf_event_open(
            &raw mut *attributes,
            pid,
            cpu,
            -1,
            PERF_FLAG_FD_CLOEXEC.into(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given out this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What reading an event gives (perf_event_open(2), "Reading results"): its count and, if asked for, how many were lost.
fn counted(read: &[u8]) -> Option<Count> {
    let (numbers, []) = read.as_chunks() else {
        return None;
    };
    let mut numbers = numbers.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    Some(Count {
        occurred: numbers.next()?,
        no_room: numbers.next(),
    })
}

/// `Ok(None)`: the CPU is offline.
fn event_of(
    opened: io::Result<OwnedFd>,
    event: &str,
    cpu: CpuId,
) -> Result<Option<PerfEvent>, TraceError> {
    let event = event.to_owned();
    match opened {
        Ok(fd) => Ok(Some(PerfEvent(fd))),
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            Err(TraceError::NotPermitted {
                event,
                paranoid: paranoid(),
                source,
            })
        }
        // ENODEV, for which std has no kind: the CPU is not online.
        Err(source) if source.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
            Ok(None)
        }
        Err(source) => Err(TraceError::Open { event, cpu, source }),
    }
}

fn paranoid() -> Known<i32> {
    const FILE: &str = "/proc/sys/kernel/perf_event_paranoid";
    match std::fs::read_to_string(FILE) {
        Ok(text) => text
            .trim()
            .parse()
            .map_or_else(|_| Known::no(format!("{FILE}: no number")), Known::Yes),
        Err(error) => Known::no(format!("{FILE}: {error}")),
    }
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The clock of the events (CLOCK_MONOTONIC), now.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(CLOCK);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_with_and_without_what_was_lost() {
        let bytes = [5u64.to_ne_bytes(), 2u64.to_ne_bytes()].concat();
        assert_eq!(
            counted(&bytes),
            Some(Count {
                occurred: 5,
                no_room: Some(2)
            })
        );
        assert_eq!(
            counted(&bytes[..8]),
            Some(Count {
                occurred: 5,
                no_room: None
            })
        );
        assert_eq!([&bytes[..0], &bytes[..12]].map(counted), [None, None]);
    }
}
