//! How many accesses a round takes so that a run takes about as long as wished, and how long a sample takes then.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nearfar_machine::Machine;

use super::answer::Parameters;
use super::loading::Loading;
use super::take::{load_cpus, plainest, spec};
use crate::probe::{ChildError, Probe};

/// Accesses of the first try: milliseconds on hardware, some hundred under emulation.
const FIRST_STEPS: u64 = 1 << 16;
/// A try that took this long says how long others will, whatever the load's phase.
const LONG_ENOUGH_S: f64 = 0.3;

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
    let mut loading = Loading::new(program.to_owned(), load_cpus(machine), parameters.load_percent);
    loading.keep_up()?;
    let cell = plainest(&parameters.cells).ok_or_else(|| ChildError::BadSpec { because: "no cells".to_owned() })?;
    let mut steps = FIRST_STEPS;
    loop {
        let mut spec = spec(parameters, &cell);
        (spec.counts, spec.steps) = (1, steps);
        let started = Instant::now();
        let probe = Probe::prepare(program, &spec)?;
        let preparing = started.elapsed();
        let result = probe.run(cancel)?;
        // Not beyond what was wished for: a run of 0.1 s is not worth a longer try.
        let enough = LONG_ENOUGH_S.min(seconds / 2.0);
        if result.seconds >= enough {
            let wished = seconds * steps as f64 / result.seconds / f64::from(parameters.counts);
            return Ok(Calibrated { steps: (wished.round() as u64).max(1), preparing });
        }
        // At most a hundredfold at once: the shortest tries say little.
        let factor = (1.5 * enough / result.seconds.max(1e-9)).clamp(2.0, 100.0);
        steps = (steps as f64 * factor) as u64;
    }
}
