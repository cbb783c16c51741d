//! From a request to a guest whose agent answers.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::arguments::{self, PORTS, Part};
use super::console::Console;
use super::crash::Crash;
use super::link::{Link, Said};
use super::modules::Modules;
use super::process::{self, Start};
use super::progress::Progress;
use super::qmp::Monitor;
use super::{Guest, GuestRequest, Ports, initramfs, unpack};
use std::sync::Arc;

use crate::arch::Arch;
use crate::cache::Cache;
use crate::delay::DelayRegion;
use crate::error::LabError;

/// Lines of the console in an error message.
const LAST_LINES: usize = 40;

/// How often a boot is tried that failed by chance. Up to 1 in 20 boots did on a busy host: of some hundred guests, one has two in a row.
const ATTEMPTS: usize = 3;

/// How often the request to cancel is looked at.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

impl Guest {
    /// Boots a guest; returns when its agent answers. A boot in which QEMU ends before the guest's kernel has printed anything,
    /// whose kernel crashes (`Crash`), or that is stuck (its vCPUs sleep, its kernel complains of stalls and goes on no
    /// further, or it takes longer than any should: `Progress`), is tried again, `ATTEMPTS` times in all: each of that
    /// happens, seldom, with machines that boot well otherwise. [`Self::failed_boots`] tells of it.
    ///
    /// # Errors
    /// [`LabError::Boot`] with the last that the console said when the guest dies or is not up in time; what is missing
    /// or cannot be read; [`LabError::Interrupted`] when `cancel` is set.
    pub fn boot(request: &GuestRequest, cancel: &AtomicBool) -> Result<Self, LabError> {
        let (token, cache) = (token()?, Cache::of_user()?);
        let kernel = loaded_image(request)?;
        let hardware = request.design.arguments(&request.qemu, request.acceleration);
        let modules = Modules::collect(&request.kernel, &hardware, request.foreign.is_some(), cache.root())?;
        let archive = initramfs::build(request, &modules, &token)?;
        let deadline = Instant::now() + request.boot_timeout;
        let mut failed = Vec::new();
        loop {
            let mut booting = Booting::start(request, &kernel, &archive)?;
            let last = failed.len() + 1 == ATTEMPTS;
            match booting.wait(cancel, deadline, !last) {
                Ok(()) => return Ok(booting.finish(token, failed)),
                Err(ending) => match ending.by_chance() {
                    Some(words) if !last => failed.push(words),
                    _ => return Err(booting.error(ending, failed.len() + 1, request.boot_timeout)),
                },
            }
        }
    }
}

/// Why there is no guest.
enum Ending {
    /// QEMU ended, and the guest had not said a word.
    Silent,
    /// The guest's kernel crashed, and QEMU ended.
    Crashed(Crash),
    /// QEMU ended.
    Ended,
    /// It gets no further.
    Stuck,
    /// It takes too long.
    Late,
    /// The user does not want it any more.
    Cancelled,
    /// The system refused.
    Refused(LabError),
}

impl Ending {
    /// What happened, where it may go well the next time.
    fn by_chance(&self) -> Option<&'static str> {
        match self {
            Self::Silent => Some("QEMU ended before its kernel said anything"),
            Self::Stuck => Some("it got no further: its CPUs slept or stalled, or it took too long"),
            Self::Crashed(crash) => Some(crash.words()),
            Self::Ended | Self::Late | Self::Cancelled | Self::Refused(_) => None,
        }
    }
}

/// A guest on its way up.
struct Booting {
    guest: Guest,
    started: Instant,
}

/// Our ends and QEMU's, while they are made.
#[derive(Default)]
struct Channels {
    theirs: HashMap<Part, OwnedFd>,
}

impl Channels {
    fn open(&mut self, part: Part) -> Result<UnixStream, LabError> {
        let (ours, theirs) = process::channel_to_guest()?;
        self.theirs.insert(part, theirs);
        Ok(ours)
    }

    fn number(&self, part: &Part) -> String {
        self.theirs.get(part).map_or_else(|| shown(part), |descriptor| descriptor.as_raw_fd().to_string())
    }
}

impl Booting {
    fn start(request: &GuestRequest, kernel: &std::path::Path, archive: &[u8]) -> Result<Self, LabError> {
        let mut channels = Channels::default();
        let monitor = channels.open(Part::Monitor)?;
        let heard = channels.open(Part::Console)?;
        let terminal = channels.open(Part::Terminal)?;
        let ports = (0..PORTS.len()).map(|place| channels.open(Part::Port(place))).collect::<Result<Vec<_>, _>>()?;
        channels.theirs.insert(Part::Initramfs, process::memory_file("first root", archive)?);
        for (name, bytes) in arguments::disks(&request.design) {
            let disk = process::memory_disk(&name, bytes)?;
            channels.theirs.insert(Part::Disk(name), disk);
        }
        let delays = delays(request, &mut channels)?;
        let words = arguments::arguments(request, kernel, &|part| channels.number(part));
        let started = Instant::now();
        let mut child = process::start(Start {
            program: request.qemu.program.clone(),
            arguments: words.into_iter().map(OsString::from).collect(),
            inherited: channels.theirs.into_values().collect(),
        })?;
        let (console, qemu_said) = (Console::default(), Console::default());
        console.listen(heard, request.console);
        listen_to_qemu(&mut child, &qemu_said, request.console);
        let [run, link, input, output, errors] = <[UnixStream; 5]>::try_from(ports).unwrap_or_else(|_| unreachable!());
        let guest = Guest {
            arch: request.design.arch,
            child,
            monitor: Monitor::new(monitor).map_err(|error| LabError::system("talking to QEMU", error))?,
            ports: Ports { run, input, output, errors, terminal },
            link: Link::new(link),
            console,
            qemu_said,
            spare_ports: request.design.spare_ports.clone(),
            delays,
            token: String::new(),
            commands: 0,
            command_timeout: request.command_timeout,
            boot_seconds: 0.0,
            failed_boots: Vec::new(),
        };
        Ok(Self { guest, started })
    }

    /// Waits for the agent's first word; with `impatient` also for signs that it never comes.
    fn wait(&mut self, cancel: &AtomicBool, deadline: Instant, impatient: bool) -> Result<(), Ending> {
        let mut progress = Progress::of(self.guest.child.id(), self.started);
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(Ending::Cancelled);
            }
            if Instant::now() > deadline {
                return Err(Ending::Late);
            }
            if impatient && progress.stuck(&self.guest.console) {
                return Err(Ending::Stuck);
            }
            let mut link = [PollFd::from_borrowed_fd(self.guest.link.descriptor(), PollFlags::IN)];
            match poll(&mut link, Some(&GLANCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(Ending::Refused(LabError::system("waiting for the guest", error))),
            }
            if !self.guest.link.read() {
                drop(self.guest.child.wait());
                return Err(self.ended());
            }
            if self.guest.link.next() == Some(Said::Ready) {
                return Ok(());
            }
        }
    }

    /// Why QEMU is gone.
    fn ended(&self) -> Ending {
        match Crash::shown(&self.guest.console) {
            Some(crash) => Ending::Crashed(crash),
            None if self.guest.console.bytes() == 0 => Ending::Silent,
            None => Ending::Ended,
        }
    }

    /// The guest, up. Delays begin now: they would only have made the boot longer.
    fn finish(self, token: String, failed: Vec<&'static str>) -> Guest {
        let Self { mut guest, started } = self;
        guest.boot_seconds = started.elapsed().as_secs_f64();
        guest.token = token;
        guest.failed_boots = failed;
        if let Some(delays) = &guest.delays {
            delays.open();
        }
        guest
    }

    fn error(&self, ending: Ending, attempts: usize, allowed: Duration) -> LabError {
        let problem = match ending {
            Ending::Refused(error) => return error,
            Ending::Cancelled => return LabError::Interrupted,
            Ending::Late => format!(
                "it was not up after {} s (--boot-timeout changes that); its console had said {} bytes by then",
                allowed.as_secs(),
                self.guest.console.bytes()
            ),
            Ending::Ended => "it ended while it booted".to_owned(),
            Ending::Silent | Ending::Stuck | Ending::Crashed(_) => {
                format!("{}, the last of {attempts} times", ending.by_chance().unwrap_or_default())
            }
        };
        LabError::Boot { problem, console: last_words(&self.guest.console, &self.guest.qemu_said) }
    }
}

/// The last that QEMU and the guest's console said.
pub(super) fn last_words(console: &Console, qemu_said: &Console) -> String {
    let quoted = |who: &str, said: String| match said.is_empty() {
        true => format!("{who} said nothing"),
        false => format!("{who} said last:\n{said}"),
    };
    let qemu = quoted("QEMU", qemu_said.last_lines(LAST_LINES));
    let kernel = quoted("the guest's console", console.last_lines(LAST_LINES));
    format!("{qemu}\n{kernel}")
}

/// The kernel's file that QEMU loads.
pub(super) fn loaded_image(request: &GuestRequest) -> Result<PathBuf, LabError> {
    let image = &request.kernel.image;
    match request.design.arch {
        Arch::X86_64 => Ok(unpack::direct_kernel(image, Cache::of_user()?.root())?.unwrap_or_else(|| image.clone())),
        Arch::Aarch64 | Arch::Powerpc64le => Ok(image.clone()),
    }
}

/// What stands for something inherited on a command line that is only shown.
pub(super) fn shown(part: &Part) -> String {
    match part {
        Part::Initramfs => "{initramfs}".to_owned(),
        Part::Monitor => "{monitor}".to_owned(),
        Part::Console => "{console}".to_owned(),
        Part::Terminal => "{terminal}".to_owned(),
        Part::Port(place) => format!("{{{}}}", PORTS.get(*place).copied().unwrap_or("port")),
        Part::Disk(name) => format!("{{{name}}}"),
        Part::Delays => "{delays}".to_owned(),
    }
}

/// The memory shared with the delay plugin.
fn delays(request: &GuestRequest, channels: &mut Channels) -> Result<Option<Arc<DelayRegion>>, LabError> {
    let Some(delay) = &request.delay else { return Ok(None) };
    let region = delay.start()?;
    channels.theirs.insert(Part::Delays, process::duplicate(&region)?);
    Ok(Some(Arc::new(region)))
}

fn listen_to_qemu(child: &mut Child, said: &Console, show: bool) {
    if let Some(source) = child.stderr.take() {
        said.listen(source, show);
    }
}

/// A token that no command prints by chance.
fn token() -> Result<String, LabError> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| LabError::system("reading /dev/urandom", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
