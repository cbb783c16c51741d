//! How many accesses a round takes so that a run takes about as long as wished, and how long a sample takes then.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nearfar_machine::Machine;
use nearfar_statistics::Summary;

use super::answer::Parameters;
use super::loading::Loading;
use super::take::{load_cpus, plainest, spec};
use crate::probe::{ChildError, Probe};

/// Accesses of the first try: milliseconds on hardware, some hundred under emulation.
const FIRST_STEPS: u64 = 1 << 16;
/// A try that took this long says how long others will, whatever the load's phase.
const LONG_ENOUGH_S: f64 = 0.3;
/// Tries of which the one in the middle counts: something else may have run during one of them.
const TRIES: usize = 3;

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
        because: "no cells".to_owned(),
    })?;
    // Not beyond what was wished for: for a run of 0.1 s no longer try is worth while.
    let enough = LONG_ENOUGH_S.min(seconds / 2.0);
    let mut steps = FIRST_STEPS;
    let mut tries = Vec::new();
    loop {
        let mut spec = spec(parameters, &cell);
        (spec.counts, spec.steps) = (1, steps);
        let started = Instant::now();
        let mut probe = Probe::prepare(program, &spec)?;
        let preparing = started.elapsed();
        let result = probe.run(cancel)?;
        if result.seconds >= enough {
            tries.push(result.seconds / steps as f64);
        } else {
            // At most a hundredfold at once: the shortest tries say little.
            let factor = (1.5 * enough / result.seconds.max(1e-9)).clamp(2.0, 100.0);
            steps = (steps as f64 * factor) as u64;
        }
        if let (TRIES.., Some(Summary { median, .. })) = (tries.len(), Summary::of(&tries)) {
            let wished = seconds / median / f64::from(parameters.counts);
            return Ok(Calibrated {
                steps: (wished.round() as u64).max(1),
                preparing,
            });
        }
    }
}
