//! Why there is no trace, and what to do about it.

use std::io;

use nearfar_machine::{CpuId, Known};

use crate::format::FormatError;

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Neither mounted nor to be mounted.
    #[error("no tracefs: {looked}; mounting one unseen failed ({source}); {}", advice(*.forbidden))]
    NoTracefs {
        /// Whether there is one that this user may not read.
        forbidden: bool,
        /// What was found at the places where it usually is.
        looked: String,
        /// Why no private one could be made.
        source: io::Error,
    },
    /// The kernel does not have this event now.
    #[error("this kernel has no tracepoint {system}:{name} now{}", hint(.system))]
    NoTracepoint {
        /// The part of the kernel it belongs to.
        system: String,
        /// Its name.
        name: String,
    },
    /// A file of tracefs could not be read.
    #[error("{file}: {source}{}", if .source.kind() == io::ErrorKind::PermissionDenied { "; only root may read it" } else { "" })]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The description of an event's bytes is not what it should be.
    #[error("{file}: {problem}")]
    Format {
        /// The file.
        file: String,
        /// What is wrong.
        problem: FormatError,
    },
    /// The kernel does not let this user trace.
    #[error(
        "the kernel does not let you trace {event} on every CPU ({source}): that takes root or CAP_PERFMON \
         (CAP_SYS_ADMIN before Linux 5.8), or kernel.perf_event_paranoid at -1, which is {}",
        match .paranoid { Known::Yes(level) => format!("{level} now"), Known::No { unknown_reason } => format!("not known: {unknown_reason}") }
    )]
    NotPermitted {
        /// The event.
        event: String,
        /// `/proc/sys/kernel/perf_event_paranoid`.
        paranoid: Known<i32>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An event could not be opened for another reason.
    #[error("perf_event_open for {event} on CPU {cpu}: {source}{}", files(.source))]
    Open {
        /// The event.
        event: String,
        /// The CPU.
        cpu: CpuId,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No CPU of those asked for is online.
    #[error("no CPU to trace on is online")]
    NoCpu,
    /// A ring buffer could not be mapped.
    #[error(
        "no memory for the ring buffer of CPU {cpu} ({bytes} bytes): {source}; without root the limit is \
         kernel.perf_event_mlock_kb plus `ulimit -l`"
    )]
    Map {
        /// The CPU.
        cpu: CpuId,
        /// The least that was tried.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A step on an open event failed.
    #[error("{step} on CPU {cpu}: {source}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The CPU.
        cpu: CpuId,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Events number tasks otherwise than this process does.
    #[error(
        "the kernel's events number tasks otherwise than this container does: trace migrations from outside of it"
    )]
    Container,
    /// There is nothing to follow.
    #[error("{}", no_process(*pid, error))]
    NoProcess {
        /// The process.
        pid: i32,
        /// What the system said.
        error: io::Error,
    },
    /// No such control group.
    #[error(
        "no control group {group}: give its directory, or its name below /sys/fs/cgroup as systemd-cgls shows it"
    )]
    NoCgroup {
        /// As it was given.
        group: String,
    },
    /// Nobody follows that process.
    #[error("process {pid} is not followed, or its trace was collected already")]
    NotFollowed {
        /// The process.
        pid: i32,
    },
    /// The thread that reads events has ended; the error before said why.
    #[error("the trace has ended after an error")]
    Ended,
    /// A thread or what wakes it could not be made.
    #[error("starting the thread that reads events: {0}")]
    Thread(io::Error),
    /// Waiting for events failed.
    #[error("waiting for events: {0}")]
    Wait(io::Error),
}

impl TraceError {
    /// Whether the system does not let this process trace at all: for want of rights (EPERM, EACCES), in a kernel without perf
    /// events (ENOSYS), or in a container. Not where something is wrong with this trace.
    pub fn is_refusal(&self) -> bool {
        let is_denied = |source: &io::Error| {
            source.kind() == io::ErrorKind::PermissionDenied
                || source.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error())
        };
        match self {
            Self::NotPermitted { .. }
            | Self::Container
            | Self::NoTracefs {
                forbidden: true, ..
            } => true,
            Self::NoTracefs { source, .. }
            | Self::Unreadable { source, .. }
            | Self::Open { source, .. } => is_denied(source),
            _ => false,
        }
    }
}

fn advice(forbidden: bool) -> &'static str {
    match forbidden {
        true => "there is one that you may not read: trace as root",
        false => "as root: mount -t tracefs tracefs /sys/kernel/tracing",
    }
}

fn no_process(pid: i32, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no process {pid}"),
        _ => format!("process {pid}: {error}"),
    }
}

fn hint(system: &str) -> &'static str {
    match system {
        "nvme" => {
            ": it comes with the driver, which is not loaded (modprobe nvme), or built without tracing"
        }
        _ => "",
    }
}

fn files(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) {
        "; each CPU takes a few open files: raise the limit with ulimit -n"
    } else {
        ""
    }
}
