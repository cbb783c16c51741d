//! From a request to a guest whose agent answers.
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

use super::arguments::{self, Purpose};
use super::console::Console;
use super::crash::Crash;
use super::launch::{Launched, launch};
use super::link::Said;
use super::modules::Modules;
use super::progress::Progress;
use super::saved::{Key, Place, SavedGuest};
use super::{Guest, PreparedGuest, StartKind, health, initramfs, random, renew, state, unpack};
use crate::arch::Arch;
use crate::cache::Cache;
use crate::design::late::LateDevice;
use crate::error::LabError;

/// Lines of the console in an error message.
const LAST_LINES: usize = 40;

/// How often a boot is tried that failed by chance. Up to 1 in 20 boots did on a busy host: of some hundred guests, one has two in a row.
const MAX_ATTEMPTS: usize = 3;

/// How often the request to cancel is looked at.
const GLANCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

impl Guest {
    /// Starts a guest; returns when its agent answers. It starts from a saved guest of the same design where there is one. A
    /// guest that boots is saved on the way, unless the request says otherwise or QEMU cannot save it ([`Self::start_kind`]).
    /// An attempt that fails by chance is repeated, `MAX_ATTEMPTS` times in all: QEMU ends before the kernel has printed
    /// anything, the kernel crashes (`Crash`) or is stuck (`Progress`), a vCPU has lost an interrupt's end (`health`), or a
    /// saved guest does not start. [`Self::failed_boots`] has the reasons.
    ///
    /// # Errors
    /// [`LabError::Boot`] with the last that the console said when the guest dies or is not up in time; what is missing
    /// or cannot be read; [`LabError::Interrupted`] when `cancel` is set.
    pub fn boot(prepared: &PreparedGuest, cancel: &AtomicBool) -> Result<Self, LabError> {
        let mut plan = Plan::new(prepared, cancel)?;
        let mut failed = Vec::new();
        loop {
            plan.is_last = failed.len() + 1 == MAX_ATTEMPTS;
            match plan.attempt() {
                Ok(mut guest) => {
                    tracing::info!(seconds = guest.boot_seconds(), start = ?guest.start_kind(), "guest is up");
                    guest.failed_boots = failed;
                    return Ok(guest);
                }
                Err(failure) => match failure.by_chance() {
                    Some(words) if !plan.is_last => {
                        if failure.is_of_saving() {
                            plan.fallback_reason = Some(words.clone());
                        }
                        tracing::warn!(
                            attempt = failed.len() + 1,
                            reason = words,
                            "guest failed to start, tried again"
                        );
                        failed.push(words);
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
        Arch::X86_64 => Ok(unpack::direct_kernel(image, Cache::of_user()?.root())?
            .unwrap_or_else(|| image.clone())),
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

/// Why there is no guest.
#[derive(Debug)]
enum Ending {
    /// QEMU ended, and the guest had not said a word.
    Silent,
    /// The guest's kernel crashed, and QEMU ended.
    Crashed(Crash),
    /// QEMU ended.
    Ended,
    /// It gets no further.
    Stuck,
    /// It is up, and something of it does not work.
    Unhealthy(String),
    /// Its saved state cannot be loaded, or it does not get ready from there.
    NotLoaded(String),
    /// It takes too long.
    Late,
    /// The user does not want it any more.
    Cancelled,
    /// The system refused.
    Refused(LabError),
}

/// An attempt that did not give a guest.
struct Failure {
    ending: Ending,
    /// What QEMU and the console said last, and the bytes of the console.
    said: (String, u64),
}

impl Failure {
    fn of(ending: Ending, guest: &Guest) -> Self {
        Self {
            ending,
            said: (
                last_words(&guest.console, &guest.qemu_said),
                guest.console.bytes(),
            ),
        }
    }

    /// What happened, where it may go well the next time.
    fn by_chance(&self) -> Option<String> {
        match &self.ending {
            Ending::Silent => Some("QEMU ended before its kernel said anything".to_owned()),
            Ending::Stuck => {
                Some("it got no further: its CPUs slept or stalled, or it took too long".to_owned())
            }
            Ending::Crashed(crash) => Some(crash.words().to_owned()),
            Ending::Unhealthy(problem) => Some(problem.clone()),
            Ending::NotLoaded(problem) => Some(format!("the saved guest did not start: {problem}")),
            Ending::Ended | Ending::Late | Ending::Cancelled | Ending::Refused(_) => None,
        }
    }

    /// Whether the same guest may do well where it is not saved and does not start from a saved one.
    fn is_of_saving(&self) -> bool {
        matches!(self.ending, Ending::Unhealthy(_) | Ending::NotLoaded(_))
    }

    fn error(self, attempts: usize, allowed: Duration) -> LabError {
        let by_chance = self.by_chance();
        let (console, bytes) = self.said;
        let problem = match (self.ending, by_chance) {
            (Ending::Refused(error), _) => return error,
            (Ending::Cancelled, _) => return LabError::Interrupted,
            (Ending::Late, _) => format!(
                "it was not up after {} s (--boot-timeout changes that); its console had said {bytes} bytes by then",
                allowed.as_secs(),
            ),
            (_, Some(words)) => format!("{words}, the last of {attempts} times"),
            (_, None) => "it ended while it booted".to_owned(),
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

/// How the next guest comes up.
enum Way {
    Boot(Option<String>),
    Save(Box<Place>, Vec<LateDevice>),
}

/// What all attempts share.
struct Plan<'a> {
    prepared: &'a PreparedGuest,
    cancel: &'a AtomicBool,
    kernel: PathBuf,
    archive: Vec<u8>,
    way: Way,
    deadline: Instant,
    is_last: bool,
    /// Why the last attempt is not to save the guest or start it from a saved one: an earlier one failed of that.
    fallback_reason: Option<String>,
}

impl<'a> Plan<'a> {
    fn new(prepared: &'a PreparedGuest, cancel: &'a AtomicBool) -> Result<Self, LabError> {
        let cache = Cache::of_user()?;
        let kernel = loaded_image(prepared)?;
        let hardware = prepared
            .design
            .arguments(&prepared.qemu, prepared.acceleration);
        let modules = Modules::collect(
            &prepared.kernel,
            &hardware,
            prepared.foreign.is_some(),
            cache.root(),
        )?;
        let archive = initramfs::build(prepared, &modules)?;
        let way = match state::saveable(prepared) {
            Ok(late) => Way::Save(
                Box::new(Place::new(
                    &cache,
                    prepared,
                    Key::of(prepared, &kernel, &archive)?,
                )),
                late,
            ),
            Err(reason) => Way::Boot(reason),
        };
        let deadline = Instant::now() + prepared.request.boot_timeout;
        Ok(Self {
            prepared,
            cancel,
            kernel,
            archive,
            way,
            deadline,
            is_last: false,
            fallback_reason: None,
        })
    }

    fn attempt(&mut self) -> Result<Guest, Failure> {
        let (place, late) = match (&self.way, &self.fallback_reason) {
            (Way::Boot(reason), _) => return self.boot(reason.clone()),
            (Way::Save(..), Some(reason)) if self.is_last => {
                return self.boot(Some(reason.clone()));
            }
            (Way::Save(place, late), _) => (place.clone(), late.clone()),
        };
        // What did not load is not tried again, also where it cannot be removed.
        let found = if self.fallback_reason.is_some() {
            Ok(None)
        } else {
            place.find()
        };
        match found {
            Ok(Some(saved)) => self
                .load(&saved, &late, StartKind::Warm)
                .inspect_err(|failure| {
                    if !matches!(
                        failure.ending,
                        Ending::Late | Ending::Cancelled | Ending::Refused(_)
                    ) {
                        place.discard(Some(saved.folder));
                    }
                }),
            Ok(None) => self.save(&place, &late),
            Err(_) => {
                place.discard(None);
                self.save(&place, &late)
            }
        }
    }

    fn launch(
        &self,
        purpose: Purpose,
        files: Option<&SavedGuest>,
    ) -> Result<Dialogue<'_>, Failure> {
        let Launched {
            guest,
            started,
            state,
        } = launch(self.prepared, purpose, &self.kernel, &self.archive, files)?;
        Ok(Dialogue {
            progress: Progress::of(guest.child.id(), started),
            guest,
            started,
            state,
            plan: self,
        })
    }

    /// A guest that boots and is used as it is.
    fn boot(&self, reason: Option<String>) -> Result<Guest, Failure> {
        let mut dialogue = self.launch(Purpose::Boot, None)?;
        dialogue.expect(|said| matches!(said, Said::Booted))?;
        dialogue.settle(&[])?;
        Ok(dialogue.finish(StartKind::Booted(reason)))
    }

    /// A guest that boots, is saved, and starts from what was saved; one that QEMU refuses to save boots once more.
    fn save(&mut self, place: &Place, late: &[LateDevice]) -> Result<Guest, Failure> {
        let files = SavedGuest::anonymous(self.prepared)?;
        let mut dialogue = self.launch(Purpose::Save, Some(&files))?;
        dialogue.expect(|said| matches!(said, Said::Booted))?;
        dialogue.check_health()?;
        let uri = dialogue.state.clone();
        let saved = state::save(&mut dialogue.guest.monitor, &uri);
        drop(dialogue);
        if let Err(problem) = saved {
            let reason = format!("QEMU does not save it: {problem}");
            // The same would be refused again.
            self.way = Way::Boot(Some(reason.clone()));
            return self.boot(Some(reason));
        }
        let mut guest = self.load(&files, late, StartKind::Saved)?;
        guest.keeping = Some(place.keep(&files)?);
        Ok(guest)
    }

    /// A guest that starts from a saved one.
    fn load(
        &self,
        saved: &SavedGuest,
        late: &[LateDevice],
        kind: StartKind,
    ) -> Result<Guest, Failure> {
        let mut dialogue = self.launch(Purpose::Load, Some(saved))?;
        let uri = dialogue.state.clone();
        let loaded = dialogue
            .monitor(|guest| state::load(&mut guest.monitor, &uri, &self.prepared.design, late));
        let ready = loaded.and_then(|()| dialogue.settle(late));
        ready.map_err(|failure| match failure.ending {
            Ending::Late | Ending::Cancelled | Ending::Refused(_) | Ending::NotLoaded(_) => failure,
            _ => Failure {
                ending: Ending::NotLoaded(
                    failure.by_chance().unwrap_or_else(|| "it ended".to_owned()),
                ),
                ..failure
            },
        })?;
        Ok(dialogue.finish(kind))
    }
}

/// What is said between this process and a guest that comes up.
struct Dialogue<'a> {
    plan: &'a Plan<'a>,
    guest: Guest,
    started: Instant,
    progress: Progress,
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
            // Its own words about why it ended come after the end of the monitor.
            self.guest.kill();
            self.guest.qemu_said.hear_out();
            self.failure(Ending::NotLoaded(problem))
        })
    }

    /// Waits until the guest says what is wanted; answers its question for the time.
    fn expect(&mut self, mut wanted: impl FnMut(&Said) -> bool) -> Result<(), Failure> {
        loop {
            while let Some(said) = self.guest.link.next() {
                if matches!(said, Said::Clock) {
                    let answer = renew::answer()
                        .map_err(|error| LabError::system("reading random numbers", error))?;
                    self.send(&answer)?;
                }
                if wanted(&said) {
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
                return Err(Ending::Stuck);
            }
            let mut link = [PollFd::from_borrowed_fd(
                self.guest.link.descriptor(),
                PollFlags::IN,
            )];
            match poll(&mut link, Some(&GLANCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => {
                    return Err(Ending::Refused(LabError::system(
                        "waiting for the guest",
                        error,
                    )));
                }
            }
            if self.guest.link.read() {
                return Ok(());
            }
            self.guest.child.wait();
            return Err(match Crash::shown(&self.guest.console) {
                Some(crash) => Ending::Crashed(crash),
                None if self.guest.console.bytes() == 0 => Ending::Silent,
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
    fn check_health(&mut self) -> Result<(), Failure> {
        self.send(b"check\n")?;
        let mut missing = String::new();
        self.expect(|said| match said {
            Said::Ticks { missing: seen } => {
                missing.clone_from(seen);
                true
            }
            _ => false,
        })?;
        if !missing.is_empty() {
            let cpus = missing.trim_end_matches(',');
            return Err(self.failure(Ending::Unhealthy(format!(
                "CPU {cpus} had no timer interrupt"
            ))));
        }
        if let Some(line) = health::complaint(&self.guest.console) {
            return Err(self.failure(Ending::Unhealthy(format!("its kernel complained: {line}"))));
        }
        let (arch, vcpus) = (self.guest.arch, self.guest.vcpus);
        let mut stuck = Vec::new();
        self.monitor(|guest| {
            state::stop(&mut guest.monitor)?;
            stuck = health::stuck_vcpus(&mut guest.monitor, arch, vcpus)?;
            Ok(())
        })?;
        match stuck.first() {
            Some(vcpu) => Err(self.failure(Ending::Unhealthy(vcpu.to_string()))),
            None => Ok(()),
        }
    }

    /// Gives the guest what is its own, and waits until its agent is ready.
    fn settle(&mut self, late: &[LateDevice]) -> Result<(), Failure> {
        let (token, machine_id) = (random_digits()?, random_digits()?);
        let settings = arguments::settings_of_guest(self.plan.prepared, &token, &machine_id, late);
        self.send(format!("settings\n{settings}.\n").as_bytes())?;
        self.expect(|said| matches!(said, Said::Ready))?;
        self.guest.token = token;
        Ok(())
    }

    /// The guest, up. Delays begin now: they would only have made the boot longer.
    fn finish(self, start: StartKind) -> Guest {
        let mut guest = self.guest;
        guest.boot_seconds = self.started.elapsed().as_secs_f64();
        guest.start = start;
        if let Some(delays) = &guest.delays {
            delays.open();
        }
        guest
    }
}

/// 32 hexadecimal digits that no command prints by chance.
fn random_digits() -> Result<String, LabError> {
    let mut bytes = [0; 16];
    random(&mut bytes).map_err(|error| LabError::system("reading random numbers", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
