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

mod dialogue;
mod failure;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::console::Console;
use super::launch::{Launched, launch};
use super::link::Message;
use super::modules::Modules;
use super::progress::Progress;
use super::saved::{Key, Place, SavedGuest};
use super::state::{self, UnsavedReason};
use super::{Guest, PreparedGuest, initramfs, unpack};
use crate::arch::Arch;
use crate::cache::Cache;
use crate::design::late::LateDevice;
use crate::error::LabError;
use crate::start::Start;
use dialogue::Dialogue;
pub use failure::BootFailure;
use failure::{Ending, Failure};

/// Lines of the console in an error message.
const LAST_LINES: usize = 40;

/// How often a boot is tried that failed by chance. Up to 1 in 20 boots did on a busy host: of some hundred guests, one has two in a row.
/// A stored guest that does not load is no boot: what is wrong is its file.
const MAX_ATTEMPTS: usize = 3;

impl Guest {
    /// Starts a guest; returns when its agent answers. It starts from a saved guest of the same design where there is one. A
    /// guest that boots is saved on the way, unless the request says otherwise or QEMU cannot save it ([`Self::unsaved_reason`]).
    /// An attempt that fails by chance is repeated, `MAX_ATTEMPTS` boots in all: QEMU ends before the kernel has printed
    /// anything, the kernel crashes ([`BootFailure::Crashed`]) or is stuck, a vCPU has lost an interrupt's end, or a
    /// saved guest does not start. [`Self::failed_boots`] has the reasons.
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
                Err(failure) => match failure.by_chance() {
                    Some(by_chance) if !plan.is_last => {
                        let by_chance = by_chance.clone();
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

/// Where a guest is saved, and what it gets after its state is loaded.
struct Saving {
    place: Box<Place>,
    late: Vec<LateDevice>,
}

/// What all attempts share.
struct Plan<'a> {
    prepared: &'a PreparedGuest,
    cancel: &'a AtomicBool,
    kernel: PathBuf,
    archive: Vec<u8>,
    /// `Err`: the guest boots and is used as it is; the reason, where it was not asked for.
    saving: Result<Saving, Option<UnsavedReason>>,
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
        let saving = match state::saveable(prepared) {
            Ok(late) => Ok(Saving {
                place: Box::new(Place::new(
                    &cache,
                    prepared,
                    Key::of(prepared, &kernel, &archive)?,
                )),
                late,
            }),
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
                return self.boot(Some(UnsavedReason::Failed(failure.clone())));
            }
            (Ok(Saving { place, late }), _) => (place.clone(), late.clone()),
        };
        // What did not load is not tried again, also where it cannot be removed.
        let found = if self.saving_failure.is_some() {
            Ok(None)
        } else {
            place.find()
        };
        self.is_stored = matches!(found, Ok(Some(_)));
        match found {
            Ok(Some(saved)) => self
                .load(&saved, &late, Start::Load)
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

    fn launch(&self, start: Start, files: Option<&SavedGuest>) -> Result<Dialogue<'_>, Failure> {
        let Launched {
            guest,
            started,
            state,
        } = launch(self.prepared, start, &self.kernel, &self.archive, files)?;
        Ok(Dialogue {
            progress: Progress::of(guest.child.id(), started),
            guest,
            started,
            state,
            plan: self,
        })
    }

    /// A guest that boots and is used as it is.
    fn boot(&self, reason: Option<UnsavedReason>) -> Result<Guest, Failure> {
        let mut dialogue = self.launch(Start::Boot, None)?;
        dialogue.expect(|message| matches!(message, Message::Booted))?;
        dialogue.settle(&[])?;
        let mut guest = dialogue.finish(Start::Boot);
        guest.unsaved_reason = reason;
        Ok(guest)
    }

    /// A guest that boots, is saved, and starts from what was saved; one that QEMU refuses to save boots once more.
    fn save(&mut self, place: &Place, late: &[LateDevice]) -> Result<Guest, Failure> {
        let files = SavedGuest::anonymous(self.prepared)?;
        let mut dialogue = self.launch(Start::Save, Some(&files))?;
        dialogue.expect(|message| matches!(message, Message::Booted))?;
        dialogue.check_health()?;
        let uri = dialogue.state.clone();
        let saved = state::save(&mut dialogue.guest.monitor, &uri);
        drop(dialogue);
        if let Err(problem) = saved {
            let reason = Some(UnsavedReason::Refused(problem.to_string()));
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
        let loaded = dialogue
            .monitor(|guest| state::load(&mut guest.monitor, &uri, &self.prepared.design, late));
        let ready = loaded.and_then(|()| dialogue.settle(late));
        ready.map_err(Failure::while_loading)?;
        Ok(dialogue.finish(start))
    }
}
