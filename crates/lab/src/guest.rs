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
//! Nothing of this has a name in any folder, and QEMU is killed by the kernel when this process ends: a crash leaves
//! nothing behind because there is nothing to leave.

mod archive;
mod arguments;
mod boot;
mod console;
mod crash;
mod initramfs;
mod link;
mod marks;
mod modules;
mod plug;
mod process;
mod progress;
mod pump;
mod qmp;
mod run;
mod script;
mod signals;
mod terminal;
mod unpack;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

pub use archive::Archive;
pub use plug::{HotPlug, PlugDevice};
pub use pump::{Input, Streams};
pub use script::Exec;
pub use signals::Signals;

use crate::arch::Arch;
use crate::delay::{Counts, DelayRegion, DelaySetup};
use crate::design::{Design, SparePort};
use crate::error::LabError;
use crate::foreign::Foreign;
use crate::kernels::Kernel;
use crate::qemu::{Acceleration, Qemu};
use console::Console;
use link::Link;
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
pub struct GuestRequest {
    /// Its hardware.
    pub design: Design,
    /// Its kernel.
    pub kernel: Kernel,
    /// The QEMU that runs it.
    pub qemu: Qemu,
    /// How its CPUs run.
    pub acceleration: Acceleration,
    /// Words for the kernel's command line, after all others.
    pub append: Vec<String>,
    /// What figures made in it are labelled with; without double quotes.
    pub label: String,
    /// Delays of far memory.
    pub delay: Option<DelaySetup>,
    /// How it sees the host's files.
    pub root: Root,
    /// A folder of the host that it may write to.
    pub results: Option<PathBuf>,
    /// What running the host's programs on another architecture takes.
    pub foreign: Option<Foreign>,
    /// A static busybox of the guest's architecture.
    pub busybox: PathBuf,
    /// How long it may take to come up.
    pub boot_timeout: Duration,
    /// How long each command in it may take. A guest that hangs never says that its command has ended.
    pub command_timeout: Option<Duration>,
    /// Whether the kernel's console is shown on standard error.
    pub console: bool,
    /// What the user should know about this guest, in sentences.
    pub notes: Vec<String>,
}

/// QEMU's command line for a guest, program first. What it would inherit is named in braces.
pub fn command_line(request: &GuestRequest) -> Vec<String> {
    let kernel = boot::loaded_image(request).unwrap_or_else(|_| request.kernel.image.clone());
    let mut line = vec![request.qemu.program.display().to_string()];
    line.extend(arguments::arguments(request, &kernel, &boot::shown));
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
    child: Child,
    monitor: Monitor,
    ports: Ports,
    link: Link,
    console: Console,
    qemu_said: Console,
    spare_ports: Vec<SparePort>,
    delays: Option<Arc<DelayRegion>>,
    token: String,
    commands: u64,
    command_timeout: Option<Duration>,
    boot_seconds: f64,
    failed_boots: Vec<&'static str>,
}

/// How long QEMU may take to end by itself.
const QUIT_PATIENCE: Duration = Duration::from_secs(5);

impl Guest {
    /// Runs a command without input and keeps what it prints.
    ///
    /// # Errors
    /// As [`Self::exec`].
    pub fn output(&mut self, command: &[&str]) -> Result<Output, LabError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let streams = Streams { input: Input::Nothing, output: Box::new(&mut stdout), errors: Box::new(&mut stderr) };
        let Exit { code } = self.exec(&Exec::new(command), streams, &Signals::none())?;
        Ok(Output { code, stdout, stderr })
    }

    /// Seconds from starting QEMU to the agent's first word.
    pub fn boot_seconds(&self) -> f64 {
        self.boot_seconds
    }

    /// Boots that failed by chance before this one, each with what was seen.
    pub fn failed_boots(&self) -> &[&'static str] {
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

    /// The memory shared with the delay plugin, for a thread that looks at the counts while a command runs.
    pub fn delay_region(&self) -> Option<Arc<DelayRegion>> {
        self.delays.clone()
    }

    /// Ends the guest; gives what the delay plugin counted to the end.
    ///
    /// # Errors
    /// When waiting for QEMU fails.
    pub fn power_off(mut self) -> Result<Option<Counts>, LabError> {
        let started = Instant::now();
        if self.monitor.execute("quit", json!({})).is_ok() {
            while started.elapsed() < QUIT_PATIENCE {
                let ended = self.child.try_wait().map_err(|error| LabError::system("waiting for QEMU", error))?;
                if ended.is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(self.delay_counts())
    }

    /// Ends QEMU at once. Its channels then report an end, which lets every thread go on that waits for one.
    fn kill(&mut self) {
        // It may have ended by itself, and been waited for.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// The error of a guest that is gone, with what it said last.
    fn died(&self, problem: &str) -> LabError {
        let problem = match crash::Crash::shown(&self.console) {
            Some(crash) => format!("{problem}: {}", crash.words()),
            None => problem.to_owned(),
        };
        LabError::Died { problem, console: boot::last_words(&self.console, &self.qemu_said) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads a file whose absence the user can mend.
fn read_needed(path: &Path, hint: &str) -> Result<Vec<u8>, LabError> {
    std::fs::read(path)
        .map_err(|error| LabError::Missing { what: format!("{} ({error})", path.display()), hint: hint.to_owned() })
}
