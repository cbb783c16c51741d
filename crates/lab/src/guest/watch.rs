//! Notices that a guest hangs while a command runs in it.
//!
//! ```text
//!  every 2 s    stuck vCPUs, by QEMU's monitor      the same three looks in a row: the guest hangs
//!               ping ──► agent ──► pong             no pong for 10 s in which QEMU's monitor answered each time and QEMU
//!                                                   used hardly any CPU time: the guest hangs
//! ```
//!
//! An emulated vCPU sometimes loses its timer. Where the kernel has complained of a CPU since the last ping, or the guest was idle for 10 s
//! (perhaps all that it does waits for that timer), the pong waits until a process has slept on each CPU. This needs the timer of each, and
//! sets it again on a CPU that lost it: the guest goes on or counts as hanging.
//!
//! A guest that is busy may take long to answer, and a QEMU that gets no CPU time (stopped, frozen, swapped out) cannot. A guest that is
//! idle in a QEMU that answers does so at once.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::console::Console;
use super::health::{self, HangSign, StuckVcpu};
use super::link::{BeforePong, Link};
use super::progress::{Idle, MAX_IDLE_CPU_SECONDS, cpu_seconds};
use super::qmp::Monitor;
use crate::arch::Arch;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long the monitor may take for an answer: the command's caller waits with it.
const MONITOR_PATIENCE: Duration = Duration::from_millis(500);
/// A look at many vCPUs takes long; it takes at most one part in so many of the time.
const LOOK_SHARE: u32 = 50;
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
    /// For each vCPU that the last look showed stuck: in which interrupt, and how many looks in a row.
    stuck: BTreeMap<usize, (String, u32)>,
    ping: u64,
    pong: u64,
    silent_since: Instant,
    cpu_seconds_then: f64,
    /// The kernel's last complaint before the last ping.
    complaint: Option<String>,
    /// By QEMU's CPU time, since the last look at all timers at most.
    idle: Idle,
}

impl Watch {
    /// Of the guest in this QEMU process, from now on.
    pub fn new(process: u32, arch: Arch, vcpus: usize, console: &Console) -> Self {
        let now = Instant::now();
        Self {
            arch,
            vcpus,
            process,
            next_look: now + INTERVAL,
            stuck: BTreeMap::new(),
            ping: 0,
            pong: 0,
            silent_since: now,
            cpu_seconds_then: 0.0,
            complaint: health::complaint(console),
            idle: Idle::new(now, 0.0),
        }
    }

    /// Time until [`Self::look`] wants to be called.
    pub fn until_next_look(&self) -> Duration {
        self.next_look.saturating_duration_since(Instant::now())
    }

    /// Takes note of an answer, unless it is a late one to a ping of the command before.
    pub fn pong(&mut self, number: u64) {
        if number == self.ping {
            self.pong = number;
        }
    }

    /// Looks, if it is time. What the guest has said must have been read before. Some: why the guest counts as hanging.
    ///
    /// # Errors
    /// When the link to the guest fails.
    pub fn look(
        &mut self,
        monitor: &mut Monitor,
        link: &mut Link,
        console: &Console,
    ) -> io::Result<Option<HangSign>> {
        if !self.until_next_look().is_zero() {
            return Ok(None);
        }
        let began = Instant::now();
        monitor.set_patience(MONITOR_PATIENCE);
        // A monitor that is gone is a QEMU that has ended, which the link reports.
        let is_running = monitor
            .execute("query-status", json!({}))
            .is_ok_and(|status| status["running"] == json!(true));
        let stuck = if is_running {
            health::stuck_vcpus(monitor, self.arch, self.vcpus)
        } else {
            Ok(Vec::new())
        };
        monitor.reset_patience();
        self.next_look = Instant::now() + INTERVAL.max(began.elapsed() * LOOK_SHARE);
        if let Some(problem) = self.note_stuck(stuck.unwrap_or_default()) {
            return Ok(Some(problem));
        }
        let cpu_seconds = cpu_seconds(self.process).unwrap_or(0.0);
        if self.ping == self.pong {
            self.ping += 1;
            (self.silent_since, self.cpu_seconds_then) = (Instant::now(), cpu_seconds);
            let complaint = health::complaint(console);
            let is_idle = self.is_idle(self.silent_since, cpu_seconds);
            let before = match is_idle || complaint != self.complaint {
                true => BeforePong::Timers,
                false => BeforePong::Nothing,
            };
            link.ping(self.ping, before)?;
            self.complaint = complaint;
            return Ok(None);
        }
        if !is_running {
            // It cannot answer. The silence is judged from its next look on.
            (self.silent_since, self.cpu_seconds_then) = (Instant::now(), cpu_seconds);
        }
        Ok(self.silence(
            self.silent_since.elapsed(),
            cpu_seconds - self.cpu_seconds_then,
        ))
    }

    fn note_stuck(&mut self, seen: Vec<StuckVcpu>) -> Option<HangSign> {
        let before = std::mem::take(&mut self.stuck);
        let mut problem = None;
        for vcpu in seen {
            let looks = match before.get(&vcpu.number) {
                Some((in_service, looks)) if *in_service == vcpu.in_service => looks + 1,
                _ => 1,
            };
            if looks >= MIN_STUCK_LOOKS {
                problem = Some(HangSign::Stuck(vcpu.clone()));
            }
            self.stuck.insert(vcpu.number, (vcpu.in_service, looks));
        }
        problem
    }

    /// Whether QEMU has used hardly any CPU time for [`MAX_SILENCE`]; true once for each such stretch.
    fn is_idle(&mut self, now: Instant, cpu_seconds: f64) -> bool {
        let is_idle = self.idle.lasts(now, cpu_seconds) >= MAX_SILENCE;
        if is_idle {
            self.idle = Idle::new(now, cpu_seconds);
        }
        is_idle
    }

    fn silence(&mut self, silent: Duration, used: f64) -> Option<HangSign> {
        if silent < MAX_SILENCE {
            return None;
        }
        if used > MAX_IDLE_CPU_SECONDS {
            // It is at work. The next stretch of silence is judged by itself.
            (self.silent_since, self.cpu_seconds_then) =
                (Instant::now(), self.cpu_seconds_then + used);
            return None;
        }
        Some(HangSign::Silent {
            silent_s: silent.as_secs(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(numbers: &[usize]) -> Vec<StuckVcpu> {
        let vcpu = |&number| StuckVcpu {
            number,
            in_service: "236".to_owned(),
            requested: "none".to_owned(),
        };
        numbers.iter().map(vcpu).collect()
    }

    #[test]
    fn a_vcpu_counts_as_stuck_when_three_looks_in_a_row_show_it() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        let looks: [&[usize]; 7] = [&[1], &[1], &[], &[1], &[1, 2], &[2], &[3]];
        for seen in looks {
            assert_eq!(watch.note_stuck(stuck(seen)), None, "{seen:?}");
        }
        assert_eq!(watch.note_stuck(stuck(&[3])), None);
        assert!(
            watch
                .note_stuck(stuck(&[2, 3]))
                .is_some_and(|sign| matches!(sign, HangSign::Stuck(vcpu) if vcpu.number == 3))
        );
    }

    #[test]
    fn another_interrupt_in_service_is_another_matter() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        for vector in ["236", "236", "35", "236"] {
            let seen = vec![StuckVcpu {
                in_service: vector.to_owned(),
                ..stuck(&[1]).remove(0)
            }];
            assert_eq!(watch.note_stuck(seen), None);
        }
    }

    #[test]
    fn silence_counts_only_while_the_vcpus_sleep() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        assert_eq!(watch.silence(Duration::from_secs(9), 0.0), None);
        assert_eq!(watch.silence(Duration::from_secs(11), 5.0), None);
        assert!(watch.silence(Duration::from_secs(11), 0.1).is_some());
    }

    #[test]
    fn a_guest_is_idle_once_for_each_ten_seconds_without_work() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        let begun = watch.silent_since;
        let mut is_idle = |s, used| watch.is_idle(begun + Duration::from_secs(s), used);
        // Work until 4 s, then none.
        let looks = [
            (2, 2.0),
            (4, 4.0),
            (6, 4.1),
            (12, 4.4),
            (14, 4.5),
            (16, 4.6),
            (24, 4.9),
        ];
        assert_eq!(
            looks.map(|(s, used)| is_idle(s, used)),
            [false, false, false, false, true, false, true]
        );
    }

    #[test]
    fn a_late_answer_to_an_earlier_watch_counts_for_nothing() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        watch.ping = 1;
        watch.pong(6);
        assert_eq!(watch.pong, 0);
        watch.pong(1);
        assert_eq!(watch.pong, 1);
    }
}
