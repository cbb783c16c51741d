//! Simulated time of a guest, which passes while samples are taken: to start a command, to read the machine and to print cost nothing
//! of it, and would take the host long.

use nearfar_machine::Machine;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::lab::{AskError, LabHost};

/// Samples begin at multiples of this and a phase, by the guest's clock: its kernel's ticks, at most 10 ms apart, then fall on the same
/// moments of each sample that has the same phase. In nanoseconds.
const PERIOD_NS: i64 = 20_000_000;
const NS_PER_S: i64 = 1_000_000_000;

/// The time of the guest that this runs in; of no effect elsewhere, and in a guest of the host's time.
#[derive(Debug)]
pub(crate) struct GuestTime(Option<Simulated>);

#[derive(Debug)]
struct Simulated {
    host: LabHost,
    /// Chooses the phase of each sample, so that a seed repeats a run.
    phases: fastrand::Rng,
}

impl GuestTime {
    /// Stops it, until this is dropped.
    ///
    /// # Errors
    /// When the host does not stop it.
    pub(crate) fn stopped(machine: &Machine) -> Result<Self, AskError> {
        let emulation = machine.origin.emulation.as_ref();
        let guest = emulation.and_then(|emulation| emulation.guest());
        let time = Self(
            guest
                .and_then(|guest| guest.simulated_time)
                .map(|time| Simulated {
                    host: LabHost::default(),
                    phases: fastrand::Rng::with_seed(time.seed),
                }),
        );
        time.set("host")?;
        Ok(time)
    }

    /// Lets it pass while this is done.
    ///
    /// # Errors
    /// When the host does not begin or end it.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce() -> T) -> Result<T, AskError> {
        self.set("simulated")?;
        if let Some(time) = &mut self.0 {
            wait_for(time.phases.i64(0..PERIOD_NS));
        }
        let done = work();
        self.set("host")?;
        Ok(done)
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
}
