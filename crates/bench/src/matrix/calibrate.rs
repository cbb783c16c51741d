//! How many accesses a round takes so that a run takes about as long as wished, and how long a sample takes then.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nearfar_experiment::sampler::{self, Attempt, End, Monotonic, Plan, Source, Turn};
use nearfar_machine::Machine;
use nearfar_statistics::Summary;

use super::answer::Parameters;
use super::loading::Loading;
use super::take::{load_cpus, plainest, spec};
use crate::probe::{ChildError, Probe, ProbeSpec};
use crate::sampling::SEED;

/// Accesses of the first try: milliseconds on hardware, some hundred under emulation.
const FIRST_STEPS: u64 = 1 << 16;
/// A try that took this long says how long others will, whatever the load's phase.
const LONG_ENOUGH_S: f64 = 0.3;
/// Tries of which the one in the middle counts: something else may have run during one of them.
const TRIES: u32 = 3;

/// What calibration found out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Calibrated {
    /// Accesses in each round.
    pub steps: u64,
    /// What starting and preparing a probe takes.
    pub preparing: Duration,
}

/// Finds the steps with which a run of the plainest cell takes about `seconds` under the load. All cells then do the same
/// number: it is their time that differs.
///
/// # Errors
/// When the probe cannot be run at all.
pub fn calibrate(
    machine: &Machine,
    program: &Path,
    parameters: &Parameters,
    seconds: f64,
    cancel: &AtomicBool,
) -> Result<Calibrated, ChildError> {
    let mut loading = Loading::new(
        program.to_owned(),
        load_cpus(machine),
        parameters.load_percent,
    );
    loading.keep_up()?;
    let cell = plainest(&parameters.cells).ok_or_else(|| ChildError::BadSpec {
        reason: "no cells".to_owned(),
    })?;
    let mut tries = Tries {
        program,
        spec: spec(parameters, &cell),
        // Not beyond what was wished for: for a run of 0.1 s no longer try is worth while.
        enough_s: LONG_ENOUGH_S.min(seconds / 2.0),
        preparing: Duration::ZERO,
        cancel,
    };
    (tries.spec.counts, tries.spec.steps) = (1, FIRST_STEPS);
    let (plan, clock) = (Plan::rounds(1, TRIES, SEED), Monotonic::start());
    let outcome = sampler::sample(&plan, &clock, cancel, &mut tries)?;
    let per_step: Vec<f64> = outcome.samples.iter().map(|taken| taken.value).collect();
    let (End::Complete, Some(summary)) = (outcome.end, Summary::of(&per_step)) else {
        return Err(ChildError::Cancelled { what: "probe" });
    };
    let wished = seconds / summary.median / f64::from(parameters.counts);
    Ok(Calibrated {
        steps: (wished.round() as u64).max(1),
        preparing: tries.preparing,
    })
}

/// Runs of one round, longer ones until they are long enough.
struct Tries<'a> {
    program: &'a Path,
    spec: ProbeSpec,
    enough_s: f64,
    /// What starting and preparing the last one took.
    preparing: Duration,
    cancel: &'a AtomicBool,
}

impl Source for Tries<'_> {
    /// Seconds a step.
    type Value = f64;
    type Error = ChildError;

    fn take(&mut self, _: Turn) -> Result<Attempt<f64>, ChildError> {
        let started = Instant::now();
        let mut probe = Probe::prepare(self.program, &self.spec)?;
        self.preparing = started.elapsed();
        let seconds = probe.run(self.cancel)?.seconds;
        let steps = self.spec.steps as f64;
        if seconds >= self.enough_s {
            return Ok(Attempt::Value(seconds / steps));
        }
        // At most a hundredfold at once: the shortest tries say little.
        let factor = (1.5 * self.enough_s / seconds.max(1e-9)).clamp(2.0, 100.0);
        self.spec.steps = (steps * factor) as u64;
        Ok(Attempt::Retry)
    }
}
