//! Whether a guest that is not up yet is getting anywhere.
//!
//! Once in some hundred boots under emulation with more vCPUs than host CPUs, a timer of a vCPU is lost early in the boot and every
//! vCPU then sleeps for ever (seen with QEMU 10.0.2 and Linux 6.12: "timer wakeup didn't happen" from the kernel's own watchdog, minutes
//! later). A guest that boots keeps at least one vCPU busy, so a QEMU that uses no time for long is one that hangs.

use std::fs;
use std::time::{Duration, Instant};

/// A boot that has not done [`LITTLE`] for so long gets no further.
const LONG: Duration = Duration::from_secs(12);

/// CPU seconds: what timer ticks of idle vCPUs take in that time is less.
const LITTLE: f64 = 0.8;

/// Watches the CPU time of one process.
#[derive(Debug)]
pub struct Progress {
    process: u32,
    since: Instant,
    seconds: f64,
}

impl Progress {
    /// Of this process, from now on.
    pub fn of(process: u32) -> Self {
        Self { process, since: Instant::now(), seconds: cpu_seconds(process).unwrap_or(0.0) }
    }

    /// Whether it hangs. To be asked often.
    pub fn stalled(&mut self) -> bool {
        let Some(seconds) = cpu_seconds(self.process) else { return false };
        if seconds - self.seconds >= LITTLE {
            self.since = Instant::now();
            self.seconds = seconds;
        }
        self.since.elapsed() >= LONG
    }
}

/// User and system time of a process: fields 14 and 15 of `/proc/PID/stat` (proc(5)).
fn cpu_seconds(process: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses that may hold spaces and parentheses.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_uses_time_and_one_that_is_gone_has_none() {
        let before = cpu_seconds(std::process::id()).expect("this process");
        let started = Instant::now();
        while cpu_seconds(std::process::id()).expect("this process") <= before {
            assert!(started.elapsed() < Duration::from_secs(30));
        }
        assert_eq!(cpu_seconds(u32::MAX), None);
    }
}
