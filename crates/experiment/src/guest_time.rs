//! Simulated time of a guest, which passes while samples are taken: to start a command, to read the machine and to print cost nothing
//! of it, and would take the host long.
//!
//! A test shows first whether it is as described in this guest: a counted loop takes its time, on two CPUs, and sleeps end when they are
//! due.

use std::time::{Duration, Instant};
use std::{io, thread};

use nearfar_loops::execute_additions;
use nearfar_machine::{CpuId, EmulatedGuest, Machine, SimulatedTime};
use nearfar_proc::affinity::{self, RealTime};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::lab::{AskError, LabHost};
use crate::traced::Phase;

/// What the kernel reads the time from. It chooses another one when it no longer trusts one (kernel/time/clocksource.c).
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Samples begin at multiples of this and a phase, by the guest's clock: its kernel's ticks, at most 10 ms apart, then fall on the same
/// moments of each sample that has the same phase. In nanoseconds.
const PERIOD_NS: i64 = 20_000_000;
const NS_PER_S: i64 = 1_000_000_000;

/// Simulated time that cannot be measured by.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TimeError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("simulated time cannot be tested: {0}")]
    System(io::Error),
    #[error(
        "simulated time is not as described: instructions of CPU {cpu} take {:+.1} % of their time; the guest's kernel may have \
         measured its clock wrongly at boot: start it with --cold",
        .off * 100.0
    )]
    Speed {
        cpu: CpuId,
        /// As a share of the time that they should take.
        off: f64,
    },
    #[error("simulated time is not as described: a sleep of {asked:?} took {took:?}")]
    Sleep { asked: Duration, took: Duration },
    #[error(
        "the guest's kernel no longer trusts its clock {before}, and uses {after}: the sample is not comparable"
    )]
    ClockSource { before: String, after: String },
}

/// The time of the guest that this runs in; of no effect elsewhere, and in a guest of the host's time.
#[derive(Debug)]
pub(crate) struct GuestTime(Option<Simulated>);

#[derive(Debug)]
struct Simulated {
    host: LabHost,
    /// Chooses the phase of each sample, so that a seed repeats a run.
    phases: fastrand::Rng,
    /// What the kernel read the time from at first.
    clock_source: String,
}

impl GuestTime {
    /// Tests that it is as described, and stops it, until this is dropped.
    ///
    /// # Errors
    /// When it is not, or the host does not stop it.
    pub(crate) fn stopped(machine: &Machine) -> Result<Self, TimeError> {
        let mut time = Self(simulated(machine).map(|(_, time)| Simulated {
            host: LabHost::default(),
            phases: fastrand::Rng::with_seed(time.seed),
            clock_source: clock_source(),
        }));
        if let Some((guest, described)) = simulated(machine) {
            let is_native = guest.architecture == std::env::consts::ARCH;
            time.during(|| run(&described, is_native))??;
        }
        Ok(time)
    }

    /// Whether it is simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.0.is_some()
    }

    /// Lets it pass while this is done.
    ///
    /// # Errors
    /// When the host does not begin or end it, or the kernel does not trust its clock afterwards.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce() -> T) -> Result<T, TimeError> {
        self.set("simulated")?;
        let done = match &mut self.0 {
            Some(time) => {
                wait_for(time.phases.i64(0..PERIOD_NS));
                // On CPUs that are all busy, the thread that measures would wait for its turn, milliseconds of each window.
                let _measures = RealTime::new();
                work()
            }
            None => work(),
        };
        self.set("host")?;
        match &self.0 {
            Some(time) if clock_source() != time.clock_source => Err(TimeError::ClockSource {
                before: time.clock_source.clone(),
                after: clock_source(),
            }),
            _ => Ok(done),
        }
    }

    fn set(&self, time: &str) -> Result<(), AskError> {
        let ask = |it: &Simulated| it.host.ask(&format!("time {time}")).map(drop);
        self.0.as_ref().map_or(Ok(()), ask)
    }
}

impl Drop for GuestTime {
    fn drop(&mut self) {
        // What runs after this asks for it itself.
        drop(self.set("simulated"));
    }
}

/// Does in a sample what is not measured, such as starting programs: no simulated time passes meanwhile.
///
/// # Errors
/// When the host does not end it or begin it again.
pub fn unmeasured<T>(machine: &Machine, work: impl FnOnce() -> T) -> Result<T, AskError> {
    let host = simulated(machine).map(|_| LabHost::default());
    let set = |time: &str| match &host {
        Some(host) => host.ask(time).map(drop),
        None => Ok(()),
    };
    Phase::Pause.during(|| {
        set("time host")?;
        let done = work();
        set("time simulated")?;
        Ok(done)
    })
}

/// The guest that this runs in, where it is one of simulated time.
fn simulated(machine: &Machine) -> Option<(&EmulatedGuest, SimulatedTime)> {
    let guest = machine.origin.emulation.as_ref()?.guest()?;
    Some((guest, guest.simulated_time?))
}

/// Empty where the kernel does not say it.
fn clock_source() -> String {
    let name = std::fs::read_to_string(CLOCK_SOURCE).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Sleeps until the next period has this phase.
fn wait_for(phase_ns: i64) {
    let now = clock_gettime(ClockId::Monotonic);
    let due_ns = due(now.tv_sec * NS_PER_S + now.tv_nsec, phase_ns);
    let due = Timespec {
        tv_sec: due_ns / NS_PER_S,
        tv_nsec: due_ns % NS_PER_S,
    };
    // A signal ends the wait early: the sample then looks at the cancel flag.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &due);
}

fn due(now_ns: i64, phase_ns: i64) -> i64 {
    (now_ns / PERIOD_NS + 1) * PERIOD_NS + phase_ns
}

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
fn run(time: &SimulatedTime, is_native: bool) -> Result<(), TimeError> {
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
    fn samples_of_a_phase_begin_at_the_same_part_of_a_period() {
        for now_ns in [0, 1, PERIOD_NS - 1, PERIOD_NS, 7 * PERIOD_NS + 3] {
            let due_ns = due(now_ns, 5);
            assert_eq!(due_ns % PERIOD_NS, 5);
            assert!(due_ns > now_ns && due_ns <= now_ns + PERIOD_NS + 5);
        }
    }

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
