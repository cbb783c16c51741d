//! The messages between this process and a guest that comes up, until its agent is ready.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Plan;
use super::failure::{BootFailure, Ending, Failure};
use crate::design::late::LateDevice;
use crate::error::LabError;
use crate::guest::crash::Crash;
use crate::guest::health::{self, Unhealthy};
use crate::guest::link::Message;
use crate::guest::progress::Progress;
use crate::guest::qmp::MonitorError;
use crate::guest::{Guest, arguments, random, renew, state};
use crate::start::Start;

/// Time between two checks of the flag that cancels the start.
const CANCEL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A guest that comes up, and the channels to it.
pub(super) struct Dialogue<'a> {
    pub plan: &'a Plan<'a>,
    pub guest: Guest,
    pub started: Instant,
    pub progress: Progress,
    /// QEMU's URI of the file with the state.
    pub state: String,
}

impl Dialogue<'_> {
    pub fn failure(&self, ending: Ending) -> Failure {
        Failure::of(ending, &self.guest)
    }

    /// Talks to QEMU's monitor.
    pub fn monitor(
        &mut self,
        talk: impl FnOnce(&mut Guest) -> Result<(), MonitorError>,
    ) -> Result<(), Failure> {
        talk(&mut self.guest).map_err(|problem| {
            self.guest.kill();
            self.guest.drain();
            self.failure(Ending::ByChance(BootFailure::NotLoaded(
                problem.to_string(),
            )))
        })
    }

    /// Waits until the guest says what is wanted; answers its question for the time.
    pub fn expect(&mut self, mut wanted: impl FnMut(&Message) -> bool) -> Result<(), Failure> {
        loop {
            while let Some(message) = self.guest.link.next() {
                if matches!(message, Message::Clock) {
                    let answer = renew::answer()
                        .map_err(|error| LabError::system("reading random numbers", error))?;
                    self.send(&answer)?;
                }
                if wanted(&message) {
                    return Ok(());
                }
            }
            self.wait().map_err(|ending| self.failure(ending))?;
        }
    }

    /// Waits for the guest's next words; for signs that they never come, too, unless this is the last attempt.
    fn wait(&mut self) -> Result<(), Ending> {
        loop {
            if self.plan.cancel.load(Ordering::Relaxed) {
                return Err(Ending::Cancelled);
            }
            if Instant::now() > self.plan.deadline {
                return Err(Ending::Late);
            }
            if !self.plan.is_last && self.progress.stuck(&self.guest.console) {
                return Err(Ending::ByChance(BootFailure::Stuck));
            }
            let mut link = [PollFd::from_borrowed_fd(
                self.guest.link.descriptor(),
                PollFlags::IN,
            )];
            match poll(&mut link, Some(&CANCEL_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => {
                    return Err(Ending::Refused(LabError::system(
                        "cannot wait for the guest",
                        error,
                    )));
                }
            }
            if self.guest.link.read() {
                return Ok(());
            }
            self.guest.child.wait();
            self.guest.drain();
            return Err(match Crash::shown(&self.guest.console) {
                Some(crash) => Ending::ByChance(BootFailure::Crashed(crash)),
                None if self.guest.console.bytes() == 0 => Ending::ByChance(BootFailure::Silent),
                None => Ending::Ended,
            });
        }
    }

    /// Sends bytes to the guest's first process.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let sent = self.guest.ports.run.write_all(bytes);
        sent.map_err(|error| {
            self.failure(Ending::Refused(LabError::system(
                "talking to the guest",
                error,
            )))
        })
    }

    /// Looks at a guest that is about to be saved: its timers, its kernel's messages, and, while its vCPUs are stopped, their
    /// interrupts. They stay stopped.
    pub fn check_health(&mut self) -> Result<(), Failure> {
        self.send(b"check\n")?;
        let mut missing = String::new();
        self.expect(|said| match said {
            Message::Ticks { missing: seen } => {
                missing.clone_from(seen);
                true
            }
            _ => false,
        })?;
        if !missing.is_empty() {
            let cpus = missing.trim_end_matches(',').to_owned();
            return Err(self.unhealthy(Unhealthy::NoTimer { cpus }));
        }
        if let Some(line) = health::complaint(&self.guest.console) {
            return Err(self.unhealthy(Unhealthy::Complaint(line)));
        }
        let (arch, vcpus) = (self.guest.arch, self.guest.vcpus);
        let mut stuck = Vec::new();
        self.monitor(|guest| {
            state::stop(&mut guest.monitor)?;
            stuck = health::stuck_vcpus(&mut guest.monitor, arch, vcpus)?;
            Ok(())
        })?;
        match stuck.into_iter().next() {
            Some(vcpu) => Err(self.unhealthy(Unhealthy::Stuck(vcpu))),
            None => Ok(()),
        }
    }

    fn unhealthy(&self, sign: Unhealthy) -> Failure {
        self.failure(Ending::ByChance(BootFailure::Unhealthy(sign)))
    }

    /// Gives the guest what is its own, and waits until its agent is ready.
    pub fn settle(&mut self, late: &[LateDevice]) -> Result<(), Failure> {
        let (token, machine_id) = (random_digits()?, random_digits()?);
        let settings = arguments::settings_of_guest(self.plan.prepared, &token, &machine_id, late);
        self.send(format!("settings\n{settings}.\n").as_bytes())?;
        self.expect(|message| matches!(message, Message::Ready))?;
        self.guest.token = token;
        Ok(())
    }

    /// The guest, up. Delays begin with its first command: they would only have made the boot longer.
    pub fn finish(self, start: Start) -> Guest {
        let mut guest = self.guest;
        guest.boot_seconds = self.started.elapsed().as_secs_f64();
        guest.start = start;
        guest
    }
}

/// 32 hexadecimal digits that no command prints by chance.
fn random_digits() -> Result<String, LabError> {
    let mut bytes = [0; 16];
    random(&mut bytes).map_err(|error| LabError::system("reading random numbers", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
