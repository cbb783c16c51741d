//! The probe: a tight loop over a large buffer, in a process of its own, timed.
//!
//! ```text
//!  caller                                 child: the same program, `bench child probe`
//!  Probe::prepare ── spec, one line ────► maps, touches, binds, verifies, warms up
//!                 ◄─ {"ready": ..} ──────  waits                     (attach a tracer or a keeper to its pid now)
//!  Probe::run     ── go ────────────────► counters ─ clock ─ rounds of steps ─ clock ─ counters
//!                 ◄─ {"done": ..} ───────  sleeps, so that its tracer can ask the kernel about it; ends when dropped
//! ```
//!
//! The child has one thread, so that tracing its pid traces all of it. Between the two clocks it does nothing but its
//! loads and stores: no system call, no lock, no page fault, which its own counters of faults and context switches
//! verify ([`ProbeResult::warnings`]). Floating memory is touched before the CPUs are bound: it lies where the
//! scheduler happened to have the process, as that of any program that starts and only then is confined.

mod counters;
mod handle;
mod memory;
mod result;
mod serve;
mod spec;
mod timed;
mod warning;

use nearfar_machine::{Machine, NodeId};

use crate::buffer_size::{self, Use};
use crate::options::ProbeOptions;
use crate::warning::Warning;

pub use crate::child::{ChildError, ServeError};
pub use crate::mapping::PageKind;
pub use handle::Probe;
pub use warning::SampleWarning;

pub use nearfar_loops::access::Pattern;
pub use result::{Faults, NodePages, PagesByNode, ProbeResult, Ready, Switches};
pub use serve::serve;
pub use spec::{ProbeSpec, Where};

/// A size for the buffer, in bytes: four times the last-level cache, at least 64 MiB (32 MiB on an emulated machine),
/// unless one of `nodes`, which are to hold it in turn, has not twice as much memory free. What had to be given up is in
/// the warnings.
pub fn default_buffer_bytes(machine: &Machine, nodes: &[NodeId]) -> (u64, Vec<Warning>) {
    // A probe is filled once a run, which is outside the budget of seconds.
    let options = ProbeOptions {
        budget: std::time::Duration::from_secs(3600),
        ..ProbeOptions::default()
    };
    let size = buffer_size::size_of(
        machine,
        nodes,
        &options,
        &Use::default(),
        buffer_size::spare_memory(),
    );
    (size.one_cpu_bytes, size.warnings)
}
