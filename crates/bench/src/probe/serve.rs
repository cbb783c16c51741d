//! The child: prepares, waits for its caller, runs, answers.

use std::fs;
use std::time::Instant;

use nearfar_machine::{CpuSet, Known, NodeId};
use nearfar_proc::{affinity, system, tasks};
use rustix::time::{ClockId, clock_gettime};

use super::counters::Counters;
use super::memory::{self, Buffer};
use super::result::{PagesByNode, ProbeResult, Ready};
use super::spec::{ProbeSpec, Where};
use super::timed::Timed;
use super::warning::SampleWarning;
use crate::child::{Conversation, DoneLine, ReadyLine, ServeError};
use nearfar_loops::access::Loop;

/// Accesses before anybody times: the loop's instructions and the stack are there then.
const WARM_UP_STEPS: u64 = 4096;

/// Does what `nearfar bench child probe` is for: one run of the probe, described and started over standard input.
///
/// # Errors
/// When what standard input describes cannot be run here, or the system refuses what it needs.
pub fn serve() -> Result<(), ServeError> {
    let mut caller = Conversation::open("probe");
    let spec: ProbeSpec = caller.spec()?;
    spec.check()
        .map_err(|error| ServeError::BadSpec(error.to_string()))?;
    let bound_cpus = cpus_to_bind(&spec)?;
    let buffer = memory::prepare(&spec)?;
    // Only now: floating memory is where the process happened to be.
    if let Some(cpus) = &bound_cpus {
        bind(cpus)?;
    }
    let mut prepared = Prepared {
        spec,
        bound_cpus,
        buffer,
    };
    let ready = prepared.ready()?;
    caller.answer(&ReadyLine { ready: &ready })?;
    caller.wait_for("go")?;
    let done = prepared.run(ready)?;
    caller.answer(&DoneLine { done })?;
    // What the kernel counted for this process goes with it: the caller may still want to ask.
    caller.wait_for_end()
}

/// The CPUs to bind to; none when they are unbound.
fn cpus_to_bind(spec: &ProbeSpec) -> Result<Option<CpuSet>, ServeError> {
    let Where::Node(node) = spec.cpus else {
        return Ok(None);
    };
    memory::check_node(node, "has_cpu", "CPUs")?;
    match &spec.cpu_set {
        Some(cpus) => Ok(Some(cpus.clone())),
        None => cpus_of(node).map(Some),
    }
}

fn cpus_of(node: NodeId) -> Result<CpuSet, ServeError> {
    let file = format!("/sys/devices/system/node/node{node}/cpulist");
    match fs::read_to_string(&file) {
        Ok(list) => list
            .trim()
            .parse()
            .map_err(|error| ServeError::BadSpec(format!("{file}: {error}"))),
        // A kernel without NUMA has no such file: its only node is the whole machine.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => allowed(),
        Err(error) => Err(ServeError::refused(file, error)),
    }
}

fn allowed() -> Result<CpuSet, ServeError> {
    affinity::get(0)
        .map_err(|error| ServeError::refused("asking where this process may run", error))
}

/// Confines this process to these CPUs, which is verified.
fn bind(cpus: &CpuSet) -> Result<(), ServeError> {
    affinity::run_on(cpus).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => ServeError::BadSpec(format!(
            "none of the CPUs {cpus} can be used: they are not there, not online, or not in this process's cpuset"
        )),
        _ => ServeError::refused(format!("binding the probe to CPUs {cpus}"), error),
    })?;
    match allowed()? {
        got if got.is_subset(cpus) => Ok(()),
        got => Err(ServeError::BadSpec(format!(
            "bound to CPUs {cpus}, the process may nevertheless run on {got}"
        ))),
    }
}

/// A probe that can start at once.
struct Prepared {
    spec: ProbeSpec,
    bound_cpus: Option<CpuSet>,
    buffer: Buffer,
}

impl Prepared {
    fn ready(&self) -> Result<Ready, ServeError> {
        Ok(Ready {
            pid: i32::try_from(std::process::id()).unwrap_or(i32::MAX),
            cpus: allowed()?,
            buffer_bytes: self.buffer.memory.bytes() as u64,
            page_kind: self.buffer.memory.page_kind(),
            pages: self.buffer.pages(),
        })
    }

    fn run(&mut self, ready: Ready) -> Result<ProbeResult, ServeError> {
        // A keeper may have narrowed the affinity since: what counts is where a floating probe could be.
        let counted = ready.cpus.union(&allowed()?);
        let numa_balancing = numa_balancing();
        let pages_before = self.buffer.pages();
        let (mut way, steps) = (Loop::new(self.spec.pattern), self.spec.steps);
        let mut timed = Timed::prepare(self.spec.counts);
        let words = self.buffer.memory.words_mut();
        way.round(words, WARM_UP_STEPS);
        let before = Counters::before(&counted);
        timed.run(&mut way, words, steps);
        let after = Counters::after(&counted);
        let elapsed_life_s = life_until(timed.end());
        let difference = after.since(&before, &counted);
        let seconds = timed.seconds();
        let (pages_after, cpus) = (self.buffer.pages(), allowed()?);
        let mut warnings = std::mem::take(&mut self.buffer.warnings);
        warnings.extend(difference.warnings(seconds, numa_balancing.get() == Some(&true)));
        warnings.extend(self.moved(&pages_before, &pages_after));
        warnings.extend(self.rebound(&ready.cpus, &cpus));
        Ok(ProbeResult {
            seconds,
            on_cpu_s: difference.on_cpu_s,
            // The kernel's count is read a moment before and after: a wait there is none of the timed part.
            waited_s: difference
                .waited_s
                .map(|waited| waited.min((seconds - difference.on_cpu_s).max(0.0))),
            elapsed_life_s,
            counts: self.spec.counts,
            steps,
            round_s: timed.round_s(),
            rounds_a_figure: timed.rounds_a_figure(),
            faults: difference.faults,
            switches: difference.switches,
            stolen_s: difference.stolen_s,
            throttled: difference.throttled,
            numa_balancing,
            cpus,
            buffer_bytes: ready.buffer_bytes,
            page_kind: ready.page_kind,
            pages_before,
            pages_after,
            warnings,
        })
    }

    /// Whether bound pages left their node.
    fn moved(
        &self,
        before: &Known<PagesByNode>,
        after: &Known<PagesByNode>,
    ) -> Option<SampleWarning> {
        let node = self.spec.memory.node()?;
        let lost = before.get()?.share_on(node) - after.get()?.share_on(node);
        (lost > 0.0).then_some(SampleWarning::Moved {
            node,
            percent: 100.0 * lost,
        })
    }

    /// Whether bound CPUs are others now.
    fn rebound(&self, before: &CpuSet, after: &CpuSet) -> Option<SampleWarning> {
        (self.bound_cpus.is_some() && before != after).then(|| SampleWarning::Rebound {
            cpus: after.clone(),
        })
    }
}

/// Whether automatic NUMA balancing brings pages near.
fn numa_balancing() -> Known<bool> {
    match system::numa_balancing() {
        Ok(mode) => Known::Yes(mode.is_normal()),
        Err(error) => Known::no(format!("{}: {error}", system::NUMA_BALANCING_FILE)),
    }
}

/// Seconds from the fork of this process to `end`. The kernel remembers the fork in clock ticks since boot.
fn life_until(end: Instant) -> f64 {
    let since_end = end.elapsed().as_secs_f64();
    let now = clock_gettime(ClockId::Boottime);
    let now = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    let me = std::process::id().cast_signed();
    let forked = tasks::stat(me).map_or(now, |stat| stat.started_seconds());
    (now - forked - since_end).max(0.0)
}
