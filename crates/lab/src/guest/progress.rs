//! Whether a guest that is not up yet is getting anywhere.
//!
//! Once in some hundred boots under emulation with more vCPUs than host CPUs, a timer of a vCPU is lost early in the boot and every
//! vCPU then sleeps for ever (seen with QEMU 10.0.2 and Linux 6.12: "timer wakeup didn't happen" from the kernel's own watchdog, minutes
//! later). A guest that boots keeps at least one vCPU busy, so a QEMU that uses no time for long is one that hangs. Other boots keep
//! their CPUs busy for ever: some complain of it, and the last sign, the time it takes, is for those that do not.

use std::time::{Duration, Instant};

use super::console::Console;

/// A boot that has not done [`MAX_IDLE_CPU_SECONDS`] for so long gets no further.
const LONG: Duration = Duration::from_secs(12);

/// CPU seconds: what timer ticks of idle vCPUs take in that time is less.
pub(super) const MAX_IDLE_CPU_SECONDS: f64 = 0.8;

/// How the kernel complains of a CPU that does not get on (kernel/rcu/tree_stall.h).
pub(super) const STALLS: [&str; 3] = [
    "detected stalls",
    "detected expedited stalls",
    "self-detected stall",
];

/// A complaint is looked for in so many of the console's last lines.
const COMPLAINT_LINES: usize = 40;

/// How long a guest may go on after a complaint: about 1 in 20 emulated x86 boots never came up again, on a busy host.
const PATIENCE_WITH_STALLS: Duration = Duration::from_secs(40);

/// How long a boot may take at all before it counts as stuck, while 64 vCPUs on a busy host took 130 s: a guest was seen to
/// hang without a word.
const PATIENCE: Duration = Duration::from_secs(240);

/// Watches one boot: QEMU's CPU time, and what the guest's kernel says.
#[derive(Debug)]
pub struct Progress {
    process: u32,
    started: Instant,
    idle: Idle,
    complained: Option<Instant>,
}

impl Progress {
    /// Of the guest that this QEMU process has run since `started`.
    pub fn of(process: u32, started: Instant) -> Self {
        Self {
            process,
            started,
            idle: Idle::new(Instant::now(), cpu_seconds(process).unwrap_or(0.0)),
            complained: None,
        }
    }

    /// Whether there is a sign that it never comes up. To be asked often.
    pub fn stuck(&mut self, console: &Console) -> bool {
        self.sleeps() || self.stalls(console) || self.started.elapsed() > PATIENCE
    }

    /// Whether its CPUs have done nothing for long.
    fn sleeps(&mut self) -> bool {
        let seconds = cpu_seconds(self.process);
        seconds.is_some_and(|seconds| self.idle.lasts(Instant::now(), seconds) >= LONG)
    }

    /// Whether its kernel said some time ago that a CPU does not get on: slow guests say so, too, and recover.
    fn stalls(&mut self, console: &Console) -> bool {
        if self.complained.is_none() {
            let said = console.last_lines(COMPLAINT_LINES);
            self.complained = STALLS
                .iter()
                .any(|words| said.contains(words))
                .then(Instant::now);
        }
        self.complained
            .is_some_and(|since| since.elapsed() > PATIENCE_WITH_STALLS)
    }
}

/// A stretch of time in which a process does less than [`MAX_IDLE_CPU_SECONDS`].
#[derive(Debug)]
pub(super) struct Idle {
    since: Instant,
    cpu_seconds: f64,
}

impl Idle {
    pub(super) fn new(since: Instant, cpu_seconds: f64) -> Self {
        Self { since, cpu_seconds }
    }

    /// How long it has lasted, by the process's CPU time at this moment; it begins again where that is too much.
    pub(super) fn lasts(&mut self, now: Instant, cpu_seconds: f64) -> Duration {
        if cpu_seconds - self.cpu_seconds >= MAX_IDLE_CPU_SECONDS {
            *self = Self::new(now, cpu_seconds);
        }
        now.duration_since(self.since)
    }
}

/// User and system time of a process.
pub(super) fn cpu_seconds(process: u32) -> Option<f64> {
    let process = i32::try_from(process).ok()?;
    Some(nearfar_proc::tasks::stat(process).ok()?.cpu_seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_alone_is_no_sign_until_the_patience_with_it_is_over() {
        let mut progress = Progress::of(std::process::id(), Instant::now());
        let console = Console::default();
        assert!(!progress.stuck(&console));
        console.hear(b"rcu: INFO: rcu_sched self-detected stall on CPU\n");
        assert!(!progress.stuck(&console));
        let Some(long_ago) = Instant::now().checked_sub(PATIENCE_WITH_STALLS * 2) else {
            return;
        };
        assert!(
            progress.complained.replace(long_ago).is_some(),
            "the complaint was heard"
        );
        assert!(progress.stuck(&console));
    }

    #[test]
    fn a_process_that_works_uses_time_and_one_that_is_gone_has_none() {
        let before = cpu_seconds(std::process::id()).expect("this process");
        let started = Instant::now();
        while cpu_seconds(std::process::id()).expect("this process") <= before {
            assert!(started.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(cpu_seconds(u32::MAX), None);
    }
}
