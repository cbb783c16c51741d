//! Notices that a guest hangs while a command runs in it.
//!
//! ```text
//!  every 2 s    stuck vCPUs, by QEMU's monitor      three looks in a row: the guest hangs
//!               ping ──► agent ──► pong             no pong for 10 s, and QEMU used hardly any CPU time meanwhile: it hangs
//! ```
//!
//! A guest that is busy may take long to answer, so silence alone proves nothing; a guest that is idle answers at once.

use std::io;
use std::time::{Duration, Instant};

use super::health::{self, StuckVcpu};
use super::link::Link;
use super::progress::{MAX_IDLE_CPU_SECONDS, cpu_seconds};
use super::qmp::Monitor;
use crate::arch::Arch;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// Looks in a row that show the same vCPU stuck.
const MIN_STUCK_LOOKS: u32 = 3;
/// How long an idle guest may leave a ping unanswered.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// What was seen of a guest since its command began.
#[derive(Debug)]
pub struct Watch {
    arch: Arch,
    vcpus: usize,
    process: u32,
    next_look: Instant,
    stuck: Vec<usize>,
    stuck_looks: u32,
    ping: u64,
    pong: u64,
    asked: Instant,
    cpu_seconds_then: f64,
}

impl Watch {
    /// Of the guest in this QEMU process, from now on.
    pub fn new(process: u32, arch: Arch, vcpus: usize) -> Self {
        let now = Instant::now();
        Self {
            arch,
            vcpus,
            process,
            next_look: now + INTERVAL,
            stuck: Vec::new(),
            stuck_looks: 0,
            ping: 0,
            pong: 0,
            asked: now,
            cpu_seconds_then: 0.0,
        }
    }

    /// Time until [`Self::look`] wants to be called.
    pub fn until_next_look(&self) -> Duration {
        self.next_look.saturating_duration_since(Instant::now())
    }

    /// Takes note of an answer.
    pub fn pong(&mut self, number: u64) {
        self.pong = self.pong.max(number);
    }

    /// Looks, if it is time. Some: why the guest counts as hanging.
    ///
    /// # Errors
    /// When the link to the guest fails.
    pub fn look(&mut self, monitor: &mut Monitor, link: &mut Link) -> io::Result<Option<String>> {
        if !self.until_next_look().is_zero() {
            return Ok(None);
        }
        self.next_look = Instant::now() + INTERVAL;
        // A monitor that is gone is a QEMU that has ended, which the link reports.
        let stuck = health::stuck_vcpus(monitor, self.arch, self.vcpus).unwrap_or_default();
        if let Some(problem) = self.note_stuck(stuck) {
            return Ok(Some(problem));
        }
        let cpu_seconds = cpu_seconds(self.process).unwrap_or(0.0);
        if self.ping == self.pong {
            self.ping += 1;
            (self.asked, self.cpu_seconds_then) = (Instant::now(), cpu_seconds);
            link.ping(self.ping)?;
            return Ok(None);
        }
        Ok(self.silence(self.asked.elapsed(), cpu_seconds - self.cpu_seconds_then))
    }

    fn note_stuck(&mut self, seen: Vec<StuckVcpu>) -> Option<String> {
        let numbers: Vec<_> = seen.iter().map(|vcpu| vcpu.number).collect();
        let again = !numbers.is_empty() && numbers.iter().any(|number| self.stuck.contains(number));
        self.stuck_looks = if again { self.stuck_looks + 1 } else { u32::from(!numbers.is_empty()) };
        self.stuck = numbers;
        (self.stuck_looks >= MIN_STUCK_LOOKS).then(|| seen.first().map(ToString::to_string)).flatten()
    }

    fn silence(&mut self, silent: Duration, used: f64) -> Option<String> {
        if silent < MAX_SILENCE {
            return None;
        }
        if used > MAX_IDLE_CPU_SECONDS {
            // It is at work. The next stretch of silence is judged by itself.
            (self.asked, self.cpu_seconds_then) = (Instant::now(), self.cpu_seconds_then + used);
            return None;
        }
        Some(format!("it does not answer for {} s while all its vCPUs sleep", silent.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(number: usize) -> Vec<StuckVcpu> {
        vec![StuckVcpu { number, in_service: "236".to_owned(), requested: "none".to_owned() }]
    }

    #[test]
    fn a_vcpu_counts_as_stuck_when_three_looks_in_a_row_show_it() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4);
        for seen in [stuck(1), stuck(1), Vec::new(), stuck(1), stuck(2), stuck(2)] {
            assert_eq!(watch.note_stuck(seen), None);
        }
        assert!(watch.note_stuck(stuck(2)).is_some_and(|problem| problem.contains("vCPU 2")));
    }

    #[test]
    fn silence_counts_only_while_the_vcpus_sleep() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4);
        assert_eq!(watch.silence(Duration::from_secs(9), 0.0), None);
        assert_eq!(watch.silence(Duration::from_secs(11), 5.0), None);
        assert!(watch.silence(Duration::from_secs(11), 0.1).is_some());
    }
}
