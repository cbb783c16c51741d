//! From a prepared guest to one whose agent answers.
//!
//! ```text
//!  saved guest fits?  yes ──────────────────────────────► load its state ─┐
//!        no                                                               ├─► late devices, settings ─► "ready"
//!   boot ──► "booted" ──► healthy? ──► save ──► end QEMU ─► load its state┘
//!        └─────────────── --cold, or cannot be saved ─────────────────────► settings ─────────────────► "ready"
//! ```
//!
//! Whatever fails by chance is tried again, and each such attempt is reported ([`Guest::failed_boots`]).

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use thiserror::Error;

use crate::arch::Arch;
use crate::cache::Cache;
use crate::design::LateDevice;
use crate::error::{BootProblem, LabError};
use crate::guest::health::{self, BootProgress, Console, Crash};
use crate::guest::launch::{Launched, launch};
use crate::guest::link::Message;
use crate::guest::modules::{self, Modules};
use crate::guest::saved::{Key, SavedGuest, SavedPlace};
use crate::guest::{Guest, PreparedGuest, Start, arguments, initramfs, random};

/// Lines of the console in an error message.
const LAST_LINES: usize = 40;

/// How often a boot is tried that failed by chance. Up to 1 in 20 boots did on a busy host: of some hundred guests, one has two in a row.
/// A stored guest that does not load is no boot: what is wrong is its file.
const MAX_ATTEMPTS: usize = 3;

impl Guest {
    /// Starts a guest; returns when its agent answers. It starts from a saved guest of the same design where there is one. A
    /// guest that boots is saved on the way, unless the request says otherwise or QEMU cannot save it ([`Self::unsaved_reason`]).
    /// An attempt that fails by chance is repeated, `MAX_ATTEMPTS` boots in all: QEMU ends before the kernel has printed
    /// anything or aborts, the kernel crashes ([`BootFailure::Crashed`]) or is stuck, a vCPU has lost an interrupt's end, or
    /// a saved guest does not start. [`Self::failed_boots`] has the reasons.
    ///
    /// # Errors
    /// [`LabError::Boot`] with the last that the console said when the guest dies or is not up in time; what is missing
    /// or cannot be read; [`LabError::Interrupted`] when `cancel` is set.
    pub fn boot(prepared: &PreparedGuest, cancel: &AtomicBool) -> Result<Self, LabError> {
        let mut plan = Plan::new(prepared, cancel)?;
        let mut failed = Vec::new();
        let mut max_attempts = MAX_ATTEMPTS;
        loop {
            plan.is_last = failed.len() + 1 == max_attempts;
            match plan.attempt() {
                Ok(mut guest) => {
                    tracing::info!(seconds = guest.boot_seconds(), start = ?guest.start(), "guest is up");
                    guest.failed_boots = failed;
                    return Ok(guest);
                }
                Err(failure) => match failure.by_chance().cloned() {
                    Some(by_chance) if !plan.is_last => {
                        if failure.is_of_saving() {
                            plan.saving_failure = Some(by_chance.clone());
                        }
                        max_attempts += usize::from(plan.is_stored);
                        tracing::warn!(
                            attempt = failed.len() + 1,
                            reason = by_chance.to_string(),
                            "guest failed to start, tried again"
                        );
                        failed.push(by_chance);
                    }
                    _ => return Err(failure.error(failed.len() + 1, prepared.request.boot_timeout)),
                },
            }
        }
    }
}

/// The kernel's file that QEMU loads.
pub fn loaded_image(prepared: &PreparedGuest) -> Result<PathBuf, LabError> {
    let image = &prepared.kernel.image;
    match prepared.design.arch {
        Arch::X86_64 => {
            let direct = modules::direct_kernel(image, Cache::of_user()?.root())?;
            Ok(direct.unwrap_or_else(|| image.clone()))
        }
        Arch::Aarch64 | Arch::Powerpc64le => Ok(image.clone()),
    }
}

/// The last that QEMU and the guest's console said.
pub fn last_words(console: &Console, qemu_said: &Console) -> String {
    let quoted = |who: &str, said: String| match said.is_empty() {
        true => format!("{who} said nothing"),
        false => format!("{who} said last:\n{said}"),
    };
    let qemu = quoted("QEMU", qemu_said.last_lines(LAST_LINES));
    let kernel = quoted("the guest's console", console.last_lines(LAST_LINES));
    format!("{qemu}\n{kernel}")
}

/// Where a guest is saved, and what it gets after its state is loaded.
struct Saving {
    place: Box<SavedPlace>,
    late: Vec<LateDevice>,
}

/// What all attempts share.
struct Plan<'a> {
    prepared: &'a PreparedGuest,
    cancel: &'a AtomicBool,
    kernel: PathBuf,
    archive: Vec<u8>,
    /// `Err`: the guest boots and is used as it is; the reason, where it was not asked for.
    saving: Result<Saving, Option<String>>,
    deadline: Instant,
    is_last: bool,
    /// The attempt starts from a guest that an earlier one saved.
    is_stored: bool,
    /// An earlier attempt that failed when it saved the guest or started it from a saved one. The last attempt does neither.
    saving_failure: Option<BootFailure>,
}

impl<'a> Plan<'a> {
    fn new(prepared: &'a PreparedGuest, cancel: &'a AtomicBool) -> Result<Self, LabError> {
        let cache = Cache::of_user()?;
        let kernel = loaded_image(prepared)?;
        let (design, acceleration) = (&prepared.design, prepared.acceleration);
        let hardware = design.arguments(&prepared.qemu, acceleration);
        let is_foreign = prepared.foreign.is_some();
        let modules = Modules::collect(&prepared.kernel, &hardware, is_foreign, cache.root())?;
        let archive = initramfs::build(prepared, &modules)?;
        let saving = match saveable(prepared) {
            Ok(late) => {
                let key = Key::of(prepared, &kernel, &archive)?;
                let place = Box::new(SavedPlace::new(&cache, prepared, key));
                Ok(Saving { place, late })
            }
            Err(reason) => Err(reason),
        };
        let deadline = Instant::now() + prepared.request.boot_timeout;
        Ok(Self {
            prepared,
            cancel,
            kernel,
            archive,
            saving,
            deadline,
            is_last: false,
            is_stored: false,
            saving_failure: None,
        })
    }

    fn attempt(&mut self) -> Result<Guest, Failure> {
        self.is_stored = false;
        let (place, late) = match (&self.saving, &self.saving_failure) {
            (Err(reason), _) => return self.boot(reason.clone()),
            (Ok(_), Some(failure)) if self.is_last => {
                return self.boot(Some(failure.to_string()));
            }
            (Ok(Saving { place, late }), _) => (place.clone(), late.clone()),
        };
        // What did not load is not tried again, also where it cannot be removed.
        let found = match self.saving_failure {
            Some(_) => Ok(None),
            None => place.find(),
        };
        self.is_stored = matches!(found, Ok(Some(_)));
        match found {
            Ok(Some(saved)) => {
                let loaded = self.load(&saved, &late, Start::Load);
                loaded.inspect_err(|failure| match failure.ending {
                    Ending::Late | Ending::Cancelled | Ending::Refused(_) => {}
                    Ending::ByChance(_) | Ending::Ended => place.discard(Some(saved.folder)),
                })
            }
            Ok(None) => self.save(&place, &late),
            Err(_) => {
                place.discard(None);
                self.save(&place, &late)
            }
        }
    }

    fn launch(&self, start: Start, files: Option<&SavedGuest>) -> Result<Dialogue<'_>, Failure> {
        let Launched {
            guest,
            started,
            state,
        } = launch(self.prepared, start, &self.kernel, &self.archive, files)?;
        Ok(Dialogue {
            progress: BootProgress::of(guest.child.id(), started),
            guest,
            started,
            state,
            plan: self,
        })
    }

    /// A guest that boots and is used as it is.
    fn boot(&self, reason: Option<String>) -> Result<Guest, Failure> {
        let mut dialogue = self.launch(Start::Boot, None)?;
        dialogue.expect(|message| matches!(message, Message::Booted))?;
        dialogue.settle(&[])?;
        let mut guest = dialogue.finish(Start::Boot);
        guest.unsaved_reason = reason;
        Ok(guest)
    }

    /// A guest that boots, is saved, and starts from what was saved; one that QEMU refuses to save boots once more.
    fn save(&mut self, place: &SavedPlace, late: &[LateDevice]) -> Result<Guest, Failure> {
        let files = SavedGuest::anonymous(self.prepared)?;
        let mut dialogue = self.launch(Start::Save, Some(&files))?;
        dialogue.expect(|message| matches!(message, Message::Booted))?;
        dialogue.check_health()?;
        let uri = dialogue.state.clone();
        let saved = dialogue.guest.monitor.save(&uri);
        drop(dialogue);
        if let Err(problem) = saved {
            let reason = Some(format!("QEMU does not save it: {problem}"));
            // The same would be refused again.
            self.saving = Err(reason.clone());
            return self.boot(reason);
        }
        let mut guest = self.load(&files, late, Start::Save)?;
        guest.keeping = Some(place.keep(&files)?);
        Ok(guest)
    }

    /// A guest that starts from a saved one.
    fn load(
        &self,
        saved: &SavedGuest,
        late: &[LateDevice],
        start: Start,
    ) -> Result<Guest, Failure> {
        let mut dialogue = self.launch(Start::Load, Some(saved))?;
        let uri = dialogue.state.clone();
        let loaded =
            dialogue.monitor(|guest| guest.monitor.load(&uri, &self.prepared.design, late));
        let ready = loaded.and_then(|()| dialogue.settle(late));
        ready.map_err(Failure::while_loading)?;
        Ok(dialogue.finish(start))
    }
}

/// A failure by chance: the same start may succeed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BootFailure {
    /// QEMU ended, and the guest's console was empty.
    #[error("QEMU ended before its kernel printed anything")]
    Silent,
    /// An assertion of QEMU itself failed: its software emulation has races (`iotlb_to_section` while the firmware or the kernel
    /// places devices in memory).
    #[error("QEMU aborted")]
    Aborted,
    /// It gets no further.
    #[error("it got no further: its CPUs slept or stalled, or it took too long")]
    Stuck,
    /// The guest's kernel crashed, and QEMU ended.
    #[error("{0}")]
    Crashed(Crash),
    /// It is up, and a part of it does not work.
    #[error("{0}")]
    Unhealthy(String),
    /// A saved state cannot be loaded, or the guest does not get ready from there. Has the detail.
    #[error("the saved guest did not start: {0}")]
    NotLoaded(String),
}

impl BootFailure {
    /// A word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Aborted => "aborted",
            Self::Stuck => "stuck",
            Self::Crashed(_) => "crashed",
            Self::Unhealthy(_) => "unhealthy",
            Self::NotLoaded(_) => "not-loaded",
        }
    }
}

/// Why an attempt gave no guest.
#[derive(Debug)]
enum Ending {
    ByChance(BootFailure),
    /// QEMU ended.
    Ended,
    /// The boot timeout is over.
    Late,
    Cancelled,
    /// The system refused.
    Refused(LabError),
}

/// An attempt that did not give a guest.
struct Failure {
    ending: Ending,
    /// The last words of QEMU and the console, and the bytes of the console.
    said: (String, u64),
}

impl Failure {
    fn of(ending: Ending, guest: &Guest) -> Self {
        let words = last_words(&guest.console, &guest.qemu_said);
        Self {
            ending,
            said: (words, guest.console.bytes()),
        }
    }

    fn by_chance(&self) -> Option<&BootFailure> {
        match &self.ending {
            Ending::ByChance(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the same guest may come up where it is not saved and does not start from a saved one.
    fn is_of_saving(&self) -> bool {
        matches!(
            self.by_chance(),
            Some(BootFailure::Unhealthy(_) | BootFailure::NotLoaded(_))
        )
    }

    /// The same failure while a saved state was loaded.
    fn while_loading(mut self) -> Self {
        let detail = match &self.ending {
            Ending::ByChance(BootFailure::NotLoaded(_)) => return self,
            Ending::ByChance(failure) => failure.to_string(),
            Ending::Ended => "it ended".to_owned(),
            Ending::Late | Ending::Cancelled | Ending::Refused(_) => return self,
        };
        self.ending = Ending::ByChance(BootFailure::NotLoaded(detail));
        self
    }

    fn error(self, attempts: usize, limit: Duration) -> LabError {
        let (console, console_bytes) = self.said;
        let problem = match self.ending {
            Ending::Refused(error) => return error,
            Ending::Cancelled => return LabError::Interrupted,
            Ending::Late => BootProblem::TimedOut {
                limit,
                console_bytes,
            },
            Ending::ByChance(failure) => BootProblem::Repeated { failure, attempts },
            Ending::Ended => BootProblem::Ended,
        };
        LabError::Boot { problem, console }
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Self {
            ending: Ending::Refused(error),
            said: (String::new(), 0),
        }
    }
}

/// Time between two checks of the flag that cancels the start.
const CANCEL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A guest that comes up, and the channels to it.
struct Dialogue<'a> {
    plan: &'a Plan<'a>,
    guest: Guest,
    started: Instant,
    progress: BootProgress,
    /// QEMU's URI of the file with the state.
    state: String,
}

impl Dialogue<'_> {
    fn failure(&self, ending: Ending) -> Failure {
        Failure::of(ending, &self.guest)
    }

    /// Talks to QEMU's monitor.
    fn monitor(
        &mut self,
        talk: impl FnOnce(&mut Guest) -> Result<(), String>,
    ) -> Result<(), Failure> {
        talk(&mut self.guest).map_err(|problem| {
            self.guest.kill();
            self.guest.drain();
            self.failure(Ending::ByChance(BootFailure::NotLoaded(problem)))
        })
    }

    /// Waits until the guest says what is wanted; answers its question for the time.
    fn expect(&mut self, mut wanted: impl FnMut(&Message) -> bool) -> Result<(), Failure> {
        loop {
            while let Some(message) = self.guest.link.next() {
                if matches!(message, Message::Clock) {
                    let answer = initramfs::renew_answer()
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
            let link = self.guest.link.descriptor();
            let mut link = [PollFd::from_borrowed_fd(link, PollFlags::IN)];
            match poll(&mut link, Some(&CANCEL_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => {
                    let error = LabError::system("cannot wait for the guest", error);
                    return Err(Ending::Refused(error));
                }
            }
            if self.guest.link.read() {
                return Ok(());
            }
            let signal = self.guest.child.wait();
            self.guest.drain();
            return Err(match Crash::shown(&self.guest.console) {
                Some(crash) => Ending::ByChance(BootFailure::Crashed(crash)),
                None if signal == Some(Signal::ABORT) => Ending::ByChance(BootFailure::Aborted),
                None if self.guest.console.bytes() == 0 => Ending::ByChance(BootFailure::Silent),
                None => Ending::Ended,
            });
        }
    }

    /// Sends bytes to the guest's first process.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let sent = (&self.guest.ports.run).write_all(bytes);
        let refused = |error| Ending::Refused(LabError::system("talking to the guest", error));
        sent.map_err(|error| self.failure(refused(error)))
    }

    /// Looks at a guest that is about to be saved: its timers, its kernel's messages, and, while its vCPUs are stopped, their
    /// interrupts. They stay stopped.
    fn check_health(&mut self) -> Result<(), Failure> {
        self.send(b"check\n")?;
        let mut missing = String::new();
        self.expect(|said| match said {
            Message::Ticks(seen) => {
                missing.clone_from(seen);
                true
            }
            _ => false,
        })?;
        if !missing.is_empty() {
            let cpus = missing.trim_end_matches(',');
            return Err(self.unhealthy(format!("CPU {cpus} had no timer interrupt")));
        }
        if let Some(line) = health::complaint(&self.guest.console) {
            return Err(self.unhealthy(format!("its kernel complained: {line}")));
        }
        let (arch, vcpus) = (self.guest.arch, self.guest.vcpus);
        let mut stuck = Vec::new();
        self.monitor(|guest| {
            guest.monitor.stop()?;
            stuck = health::stuck_vcpus(&mut guest.monitor, arch, vcpus)?;
            Ok(())
        })?;
        match stuck.into_iter().next() {
            Some(vcpu) => Err(self.unhealthy(vcpu.to_string())),
            None => Ok(()),
        }
    }

    fn unhealthy(&self, sign: String) -> Failure {
        self.failure(Ending::ByChance(BootFailure::Unhealthy(sign)))
    }

    /// Gives the guest what is its own, and waits until its agent is ready.
    fn settle(&mut self, late: &[LateDevice]) -> Result<(), Failure> {
        let (token, machine_id) = (random_digits()?, random_digits()?);
        let settings = arguments::settings_of_guest(self.plan.prepared, &token, &machine_id, late);
        self.send(format!("settings\n{settings}.\n").as_bytes())?;
        self.expect(|message| matches!(message, Message::Ready))?;
        self.guest.token = token;
        Ok(())
    }

    /// The guest, up. Delays begin with its first command: they would only have made the boot longer.
    fn finish(self, start: Start) -> Guest {
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

/// The first QEMU with `file:` as a place for a state and with memory of read-only files that a guest may write to.
const SAVES_SINCE: (u32, u32, u32) = (8, 2, 0);
/// The devices to be plugged in late, for a guest that can be saved.
///
/// # Errors
/// Why it boots instead; `None` where the user asked for that.
fn saveable(prepared: &PreparedGuest) -> Result<Vec<LateDevice>, Option<String>> {
    if prepared.is_cold() {
        return Err(None);
    }
    if prepared.qemu.version < SAVES_SINCE {
        let version = prepared.qemu.version_text();
        return Err(Some(format!(
            "QEMU {version} does not save guests to files, 8.2 does"
        )));
    }
    let reason = "QEMU cannot save its NVMe disks and test devices, and Linux on Power takes PCI devices at run time only with \
                  the tools of its firmware";
    let late = prepared.design.late_devices();
    late.ok_or_else(|| Some(reason.to_owned()))
}
