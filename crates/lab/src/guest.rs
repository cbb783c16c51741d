//! A running guest: QEMU as a child process, and the channels to the agent within.
//!
//! ```text
//!  this process                               QEMU                      guest
//!  Guest ── socket pair "monitor" ──────────► QMP
//!        ── socket pairs "run","link" ──────► virtio-serial ports ───── agent.sh (process 1)
//!        ── socket pairs "in","out","err" ──► virtio-serial ports ───── the command's streams
//!        ── socket pair "terminal" ─────────► virtconsole ───────────── /dev/hvc0
//!        ◄─ socket pair "console" ─────────── serial port ───────────── kernel messages
//!        ── anonymous files ────────────────► first root, disks, the delay plugin's configuration and counts
//! ```
//!
//! Nothing of this has a name in any folder, but for the files of a saved guest in the cache (`saved`), and QEMU is killed by the kernel when this process ends: a crash leaves
//! nothing behind because there is nothing to leave.

mod archive;
mod arguments;
mod boot;
mod console;
mod crash;
mod health;
mod initramfs;
mod launch;
mod link;
mod marks;
mod modules;
mod plug;
mod process;
mod progress;
mod pump;
mod qmp;
mod questions;
mod renew;
mod run;
mod saved;
mod script;
mod signals;
mod state;
mod terminal;
mod unpack;
mod watch;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use archive::Archive;
pub use boot::BootFailure;
pub use crash::Crash;
pub use health::{HangSign, StuckVcpu, Unhealthy};
pub use plug::{HotPlug, PlugDevice, PlugError};
pub use pump::{Input, Streams};
pub use qmp::MonitorError;
pub use script::{Exec, quoted};
pub use signals::{SAME_REQUEST, Signals};
pub use state::UnsavedReason;

use nearfar_machine::{Acceleration, EmulatedGuest, Emulation, NodeId};

use crate::arch::Arch;
use crate::delay::{Counts, DelayRegion, DelaySetup};
use crate::design::{Design, SparePort};
use crate::error::LabError;
use crate::foreign::Foreign;
use crate::kernels::Kernel;
use crate::qemu::Qemu;
use crate::request::GuestRequest;
use crate::start::Start;
use console::Console;
use link::Link;
use process::Running;
use qmp::Monitor;

/// How the guest sees the host's files.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Root {
    /// Below an overlay in the guest's memory: it can write anywhere, and all of it is thrown away.
    #[default]
    Overlay,
    /// Read-only.
    ReadOnly,
}

/// Everything a guest is made of.
#[derive(Clone, Debug)]
pub struct PreparedGuest {
    /// What was asked for.
    pub request: GuestRequest,
    /// Its hardware.
    pub design: Design,
    /// Its kernel.
    pub kernel: Kernel,
    /// The QEMU that runs it.
    pub qemu: Qemu,
    /// How its CPUs run.
    pub acceleration: Acceleration,
    /// The delay plugin, configured for it.
    pub delay: Option<DelaySetup>,
    /// The programs that run the host's programs on another architecture.
    pub foreign: Option<Foreign>,
    /// A static busybox of the guest's architecture.
    pub busybox: PathBuf,
    /// The folder of [`crate::foreign::drmgr`], for a guest of Power.
    pub drmgr: Option<PathBuf>,
}

impl PreparedGuest {
    /// The description that every figure made in this guest carries.
    pub fn emulation(&self) -> Emulation {
        Emulation::from(self.emulated_guest())
    }

    /// Whether its clocks follow the instructions that it executes.
    pub fn is_simulated(&self) -> bool {
        self.delay
            .as_ref()
            .is_some_and(|delay| delay.time.is_some())
    }

    fn emulated_guest(&self) -> EmulatedGuest {
        let request = &self.request;
        EmulatedGuest {
            machine: request.name.clone(),
            node_limits: request.limits,
            kernel: self.kernel.release.clone(),
            kernel_arguments: request.append.clone(),
            architecture: self.design.arch.uname().to_owned(),
            acceleration: self.acceleration,
            qemu: Some(self.qemu.version_text()),
            delays: self.delay.as_ref().and_then(|setup| setup.delays.clone()),
            simulated_time: self.delay.as_ref().and_then(|setup| setup.time),
        }
    }

    /// Whether it boots, and is not saved, where it could start from a saved guest.
    fn is_cold(&self) -> bool {
        self.request.cold || self.request.console
    }
}

/// QEMU's command line for a guest that boots, program first. What it would inherit is named in braces.
pub fn command_line(prepared: &PreparedGuest) -> Vec<String> {
    let kernel = boot::loaded_image(prepared).unwrap_or_else(|_| prepared.kernel.image.clone());
    let mut line = vec![prepared.qemu.program.display().to_string()];
    line.extend(arguments::arguments(
        prepared,
        Start::Boot,
        &kernel,
        &launch::shown,
    ));
    line
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// Its code; 128 and the signal's number if a signal ended it, 126 and 127 if it could not be started.
    pub code: i32,
}

/// What a command printed, and how it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// As in [`Exit`].
    pub code: i32,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// Our ends of the ports.
#[derive(Debug)]
struct Ports {
    run: UnixStream,
    input: UnixStream,
    output: UnixStream,
    errors: UnixStream,
    terminal: UnixStream,
}

impl Ports {
    /// The same ports for other threads.
    fn share(&self) -> io::Result<Self> {
        Ok(Self {
            run: self.run.try_clone()?,
            input: self.input.try_clone()?,
            output: self.output.try_clone()?,
            errors: self.errors.try_clone()?,
            terminal: self.terminal.try_clone()?,
        })
    }
}

/// A guest that is up. Dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    arch: Arch,
    vcpus: usize,
    child: Running,
    monitor: Monitor,
    ports: Ports,
    link: Link,
    console: Console,
    qemu_said: Console,
    spare_ports: Vec<SparePort>,
    /// Numbers of host bridges that can be plugged in.
    spare_host_bridges: Vec<u32>,
    /// NVMe controllers that are on a node, by QEMU's id.
    controller_nodes: BTreeMap<String, NodeId>,
    delays: Option<Arc<DelayRegion>>,
    results: Option<&'static str>,
    token: String,
    commands: u64,
    command_timeout: Option<Duration>,
    boot_seconds: f64,
    failed_boots: Vec<BootFailure>,
    start: Start,
    unsaved_reason: Option<UnsavedReason>,
    /// The thread that copies what this guest started from into the cache.
    keeping: Option<JoinHandle<()>>,
}

impl Guest {
    /// Runs a command without input and keeps what it prints.
    ///
    /// # Errors
    /// As [`Self::exec`].
    pub fn output(&mut self, command: &[&str]) -> Result<Output, LabError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let streams = Streams {
            input: Input::Nothing,
            output: Box::new(&mut stdout),
            errors: Box::new(&mut stderr),
        };
        let Exit { code } = self.exec(&Exec::new(command), streams, &Signals::none())?;
        Ok(Output {
            code,
            stdout,
            stderr,
        })
    }

    /// Seconds from starting QEMU until the agent was ready.
    pub fn boot_seconds(&self) -> f64 {
        self.boot_seconds
    }

    /// How it came up.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Why it booted and was not saved, where the request did not ask for that.
    pub fn unsaved_reason(&self) -> Option<&UnsavedReason> {
        self.unsaved_reason.as_ref()
    }

    /// The starts that failed by chance before this one.
    pub fn failed_boots(&self) -> &[BootFailure] {
        &self.failed_boots
    }

    /// The end of what the kernel's console said.
    pub fn console(&self) -> String {
        self.console.last_lines(100)
    }

    /// What the delay plugin counted so far; `None` without delays.
    pub fn delay_counts(&self) -> Option<Counts> {
        self.delays.as_ref().map(|delays| delays.counts())
    }

    /// How much simulated time has passed in it so far; `None` for a guest of the host's time.
    pub fn simulated_time(&self) -> Option<Duration> {
        self.delays.as_ref().and_then(|delays| delays.simulated())
    }

    /// The memory shared with the delay plugin, for a thread that looks at the counts while a command runs.
    pub fn delay_region(&self) -> Option<Arc<DelayRegion>> {
        self.delays.clone()
    }

    /// Ends the guest at once; gives what the delay plugin counted to the end. Nothing of the guest is waited for: all that
    /// its commands wrote to the host's folders is there when they have ended.
    pub fn power_off(mut self) -> Option<Counts> {
        self.kill();
        self.delay_counts()
    }

    /// Ends QEMU at once. Its channels then report an end, which lets every thread go on that waits for one.
    fn kill(&mut self) {
        self.child.kill();
    }

    /// Hears the last words of a QEMU that has ended, and of its guest's console: they come after its end.
    fn drain(&self) {
        self.console.drain();
        self.qemu_said.drain();
    }

    /// The error of a guest that is gone, with what it said last.
    fn died(&self, problem: &str) -> LabError {
        self.drain();
        let crash = Crash::shown(&self.console);
        LabError::Died {
            problem: crash
                .map_or_else(|| problem.to_owned(), |crash| format!("{problem}: {crash}")),
            crash,
            console: boot::last_words(&self.console, &self.qemu_said),
        }
    }

    /// Ends a guest that does not get on. What it shows: its vCPUs, and what it said last.
    fn last_state(&mut self) -> String {
        self.monitor.set_patience(Duration::from_millis(500));
        let vcpus = health::described(&mut self.monitor, self.arch, self.vcpus);
        self.kill();
        self.drain();
        vcpus + &boot::last_words(&self.console, &self.qemu_said)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
        if let Some(thread) = self.keeping.take() {
            drop(thread.join());
        }
    }
}

/// Fills a buffer with random numbers of the host's kernel.
fn random(buffer: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(buffer)
}

/// Reads a file whose absence the user can fix.
fn read_needed(path: &Path, hint: &str) -> Result<Vec<u8>, LabError> {
    std::fs::read(path).map_err(|error| LabError::Missing {
        what: format!("{} ({error})", path.display()),
        hint: hint.to_owned(),
    })
}
