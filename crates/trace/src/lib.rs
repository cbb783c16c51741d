//! Kernel tracepoints through perf events: who did what, on which CPU. Counts and records; prints nothing.
//!
//! ```text
//! tracefs ──► Format ─────────────────┐  what an event's bytes mean
//!                                     ▼
//! Session: CPU 0  event ─┐ ring ──► samples ──► nvme::Commands ─────────────┐
//!          CPU 1  event ─┘ ring ──►         └─► order ──► migrations::Moves ─┼──► answers, with a Machine
//!          ...                     └─► locks::Waits                         ┘
//! Sampler: CPU 0  clock ─► ring ──► profile::Profile    where CPU time is spent
//! host of a guest ──► transfers by address ──► lines::HotLines       with Symbols, and what a Session saw mapped
//! Session, files of /proc, transfers ──► kernel::KernelActivity   all of it in one list, to be compared
//! NodeMigrations: CPU 0  event, counted by the kernel        moves between nodes
//! ```
//!
//! [`watch`] keeps one session open for a whole experiment, and answers for one process after the other.
//!
//! One ring buffer a CPU, as `perf record -a` has it: the kernel writes, this process reads, nothing is written twice.
//! What the kernel counted and did not write, because a ring was full or otherwise, is counted ([`Losses`]) and travels
//! with every answer.
//! Topology comes from a [`Machine`](nearfar_machine::Machine) that the caller has read.

pub mod counters;
pub mod format;
pub mod kernel;
pub mod lines;
pub mod locks;
pub mod migrations;
pub mod numa_balancing;
pub mod nvme;
mod open;
pub mod profile;
pub mod records;
mod session;
pub mod symbols;
pub mod tasks;
pub mod watch;

use std::io;

use nearfar_machine::{CpuId, Known};

use format::FormatError;

pub use format::Tracefs;
pub use migrations::NodeMigrations;
pub use open::now_ns;
pub use session::{Ended, Finished, Losses, Mapping, Ordered, Plan, Session, Traced};

/// Why there is no trace, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("no tracefs: {looked}; mounting one unseen failed ({source}); {}", advice(*.forbidden))]
    NoTracefs {
        /// Whether there is one that this user may not read.
        forbidden: bool,
        /// What was found at the places where it usually is.
        looked: String,
        source: io::Error,
    },
    #[error("this kernel has no tracepoint {system}:{name} now{}", hint(.system))]
    NoTracepoint {
        /// The part of the kernel it belongs to.
        system: String,
        name: String,
    },
    #[error("{file}: {source}{}", if .source.kind() == io::ErrorKind::PermissionDenied { "; only root may read it" } else { "" })]
    Unreadable { file: String, source: io::Error },
    #[error("{file}: {problem}")]
    Format { file: String, problem: FormatError },
    #[error(
        "the kernel does not let you trace {event} on every CPU ({source}): that takes root or CAP_PERFMON \
         (CAP_SYS_ADMIN before Linux 5.8), or kernel.perf_event_paranoid at -1, which is {}",
        match .paranoid { Known::Yes(level) => format!("{level} now"), Known::No { unknown_reason } => format!("unknown: {unknown_reason}") }
    )]
    NotPermitted {
        event: String,
        /// `/proc/sys/kernel/perf_event_paranoid`.
        paranoid: Known<i32>,
        source: io::Error,
    },
    #[error("perf_event_open for {event} on CPU {cpu}: {source}{}", files(.source))]
    Open {
        event: String,
        cpu: CpuId,
        source: io::Error,
    },
    #[error("{event} is not counted here: {source}{}", counting(.source))]
    NotCounted { event: String, source: io::Error },
    #[error("the nodes have too many ranges of CPUs for a filter of {event}")]
    LongFilter { event: String },
    #[error("no CPU to trace on is online")]
    NoCpu,
    #[error(
        "no memory for the ring buffer of CPU {cpu} ({bytes} bytes): {source}; without root the limit is \
         kernel.perf_event_mlock_kb plus `ulimit -l`"
    )]
    Map {
        cpu: CpuId,
        /// The least that was tried.
        bytes: usize,
        source: io::Error,
    },
    #[error("{step} on CPU {cpu}: {source}")]
    Step {
        step: &'static str,
        cpu: CpuId,
        source: io::Error,
    },
    #[error(
        "the kernel's events number tasks otherwise than this container does: trace migrations from outside of it"
    )]
    Container,
    #[error("{}", no_process(*pid, error))]
    NoProcess { pid: i32, error: io::Error },
    #[error(
        "no control group {group}: give its directory, or its name below /sys/fs/cgroup as systemd-cgls shows it"
    )]
    NoCgroup { group: String },
    #[error("process {pid} is not followed, or its trace was collected already")]
    NotFollowed { pid: i32 },
    #[error("the trace has ended after an error")]
    Ended,
    #[error("starting the thread that reads events: {0}")]
    Thread(io::Error),
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
    match (forbidden, rustix::process::geteuid().is_root()) {
        (true, _) => "there is one that you may not read: trace as root",
        (false, false) => "trace as root",
        (false, true) => "mount -t tracefs tracefs /sys/kernel/tracing",
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

fn counting(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS) => {
            "; that takes root, CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), or kernel.perf_event_paranoid at 1 or below"
        }
        Some(Errno::PERM) => {
            "; a container's seccomp profile or a security module forbids it: measure outside of it, or allow perf_event_open"
        }
        Some(Errno::NOENT | Errno::INVAL | Errno::OPNOTSUPP) => {
            "; this CPU, or virtual machine, does not have it"
        }
        Some(Errno::NOSYS) => "; this kernel has no perf events",
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
