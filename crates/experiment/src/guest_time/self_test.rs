//! Whether simulated time is as it is described in this guest: a counted loop takes its time, on two CPUs, and sleeps end when they
//! are due.

use std::thread;
use std::time::{Duration, Instant};

use nearfar_loops::execute_additions;
use nearfar_machine::{CpuId, SimulatedTime};
use nearfar_proc::affinity;

use super::TimeError;

/// Short: the host executes it before each run.
const INSTRUCTIONS: u64 = 400_000;
/// The kernel's ticks take longer than one of these, and come every few milliseconds.
const TRIES: usize = 5;
/// The share that a loop may be off: the guest's kernel measured its counter at boot, in the host's time.
const MOST_OFF: f64 = 0.02;
const SLEEP: Duration = Duration::from_millis(2);
/// A timer's slack (timer_slack_ns in proc(5)) and the way back to the program.
const MOST_LATE: Duration = Duration::from_micros(500);

/// Runs it on the first and the last CPU that this thread may run on. Where the guest's programs are not executed by its CPUs
/// themselves (`is_native`), only sleeps say something.
///
/// # Errors
/// What is not as described.
pub(super) fn run(time: &SimulatedTime, is_native: bool) -> Result<(), TimeError> {
    let cpus = affinity::get(0).map_err(TimeError::System)?;
    let mut ends: Vec<CpuId> = [cpus.iter().next(), cpus.iter().last()]
        .into_iter()
        .flatten()
        .collect();
    ends.dedup();
    for cpu in ends {
        thread::scope(|threads| {
            let test = || {
                affinity::pin(cpu).map_err(TimeError::System)?;
                sleeps()?;
                match is_native {
                    true => loops(cpu, time),
                    false => Ok(()),
                }
            };
            let ended = threads.spawn(test).join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
    }
    Ok(())
}

fn sleeps() -> Result<(), TimeError> {
    let took = least(|| thread::sleep(SLEEP));
    match (SLEEP..SLEEP + MOST_LATE).contains(&took) {
        true => Ok(()),
        false => Err(TimeError::Sleep { asked: SLEEP, took }),
    }
}

fn loops(cpu: CpuId, time: &SimulatedTime) -> Result<(), TimeError> {
    // A guest that runs knows it; some architectures have no loop that counts.
    let Some(instruction_ps) = time.instruction_ps.filter(|_| execute_additions(1)) else {
        return Ok(());
    };
    let due_ns = INSTRUCTIONS as f64 * f64::from(instruction_ps) / 1000.0;
    let took = least(|| _ = execute_additions(INSTRUCTIONS));
    let off = took.as_nanos() as f64 / due_ns - 1.0;
    match off.abs() <= MOST_OFF {
        true => Ok(()),
        false => Err(TimeError::Speed { cpu, off }),
    }
}

fn least(work: impl Fn()) -> Duration {
    let tries = (0..TRIES).map(|_| {
        let started = Instant::now();
        work();
        started.elapsed()
    });
    tries.min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_another_speed_is_refused_with_the_share() {
        // No program of this host takes a second for these.
        let slow = SimulatedTime {
            instruction_ps: Some(100_000_000),
            ..SimulatedTime::default()
        };
        let cpu = affinity::get(0).unwrap().iter().next().unwrap();
        let error = loops(cpu, &slow).unwrap_err();
        assert!(
            matches!(error, TimeError::Speed { off, .. } if off < -0.9),
            "{error}"
        );
    }
}
