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
//! Nothing of this has a name in any folder, but for the files of a saved guest in the cache (`saved`), and QEMU is killed by the
//! kernel when this process ends: a crash leaves nothing behind because there is nothing to leave.
//!
//! One command in a running guest, from its line to its exit code:
//!
//! ```text
//!   thread in     standard input ──► port in   (or the terminal's keys ──► terminal)
//!   thread out    port out ──► standard output
//!   thread err    port err ──► standard error
//!   this thread   link: started, exit, ask ◄──► kill, size, answer     signals of this process
//! ```

mod arguments;
mod boot;
mod health;
mod initramfs;
mod launch;
mod link;
mod modules;
mod plug;
mod qmp;
mod saved;
mod streams;
mod tsc;

pub use crate::shell::Exec;
pub use boot::BootFailure;
pub use health::{Crash, HangSign, StuckVcpu};
pub use initramfs::CpioArchive;
pub use plug::{HotPlug, PlugDevice};
pub use saved::SavedRecord;
pub use streams::{Input, SAME_REQUEST, Signals, Streams};

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nearfar_machine::{Acceleration, EmulatedGuest, Emulation, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::arch::Arch;
use crate::delay::{Counts, DelayRegion, DelaySetup, TransferTable};
use crate::design::{Design, SparePort};
use crate::error::LabError;
use crate::foreign::Foreign;
use crate::guest::health::{Console, Watch};
use crate::guest::launch::Running;
use crate::guest::link::{BeforePong, Link, Message};
use crate::guest::qmp::Monitor;
use crate::guest::streams::Cut;
use crate::kernels::Kernel;
use crate::qemu::Qemu;
use crate::request::GuestRequest;

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
    /// The folder of [`crate::foreign::cached_drmgr`], for a guest of Power.
    pub drmgr: Option<PathBuf>,
}

impl PreparedGuest {
    /// The description that every figure made in this guest carries.
    pub fn emulation(&self) -> Emulation {
        Emulation::from(self.emulated_guest())
    }

    /// Whether its clocks follow the instructions that it executes.
    pub fn is_simulated(&self) -> bool {
        let delay = self.delay.as_ref();
        delay.is_some_and(|delay| delay.time.is_some())
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
    let arguments = arguments::arguments(prepared, Start::Boot, &kernel, &launch::shown);
    line.extend(arguments);
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

/// A guest that is up. Dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    arch: Arch,
    vcpus: usize,
    child: Running,
    monitor: Monitor,
    ports: Arc<Ports>,
    link: Link,
    console: Console,
    qemu_said: Console,
    spare_ports: Vec<SparePort>,
    /// Numbers of host bridges that can be plugged in.
    spare_host_bridges: Vec<u32>,
    /// NVMe controllers that are on a node, by QEMU's id.
    controller_nodes: BTreeMap<String, NodeId>,
    delays: Option<Arc<DelayRegion>>,
    /// The transfers at the moments that programs in it marked and have not asked about yet, by number.
    marks: BTreeMap<u64, TransferTable>,
    results: Option<&'static str>,
    token: String,
    commands: u64,
    command_timeout: Option<Duration>,
    boot_seconds: f64,
    failed_boots: Vec<BootFailure>,
    start: Start,
    unsaved_reason: Option<String>,
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
    pub fn unsaved_reason(&self) -> Option<&str> {
        self.unsaved_reason.as_deref()
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
        let of_crash = crash.map(|crash| format!("{problem}: {crash}"));
        LabError::Died {
            problem: of_crash.unwrap_or_else(|| problem.to_owned()),
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

/// Notes between the threads: what woke the waiting one.
const SINK_REFUSED: u8 = b'p';
const WAY_OUT: u8 = b'w';

/// How far a command is, seen from here.
#[derive(Debug, Default)]
struct CommandProgress {
    group: Option<u32>,
    /// Signals that came before the command ran.
    early: Vec<&'static str>,
    /// When the first Ctrl-C or the like came.
    interrupted: Option<Instant>,
    code: Option<i32>,
}

impl Guest {
    /// Runs a command with these streams; passes signals on to its process group. The second SIGINT, SIGTERM or SIGQUIT,
    /// [`SAME_REQUEST`] after the first or later, powers the guest off at once, that of a sample ([`Exec::is_sample`]) the first.
    ///
    /// # Errors
    /// [`LabError::Died`] when the guest goes away, [`LabError::Interrupted`] when it was powered off on request,
    /// [`LabError::OutOfTime`] when the command took longer than it may, and [`LabError::System`] when a stream fails (a closed
    /// pipe ends the command in the guest, too, by SIGPIPE, and is no error).
    pub fn exec(
        &mut self,
        run: &Exec,
        streams: Streams<'_>,
        signals: &Signals,
    ) -> Result<Exit, LabError> {
        // A plug that was killed in the guest left them ended.
        self.resume_delays(run.is_sample)
            .map_err(|error| self.died(&format!("its devices are unknown ({error})")))?;
        self.commands += 1;
        let id = self.commands;
        let terminal = run.terminal.then(streams::RawTerminal::standard_input);
        let size = run.terminal.then(streams::terminal_size).flatten();
        let yes = |set: bool| if set { "yes" } else { "no" };
        let has_input = !matches!(streams.input, Input::Nothing) && !run.terminal;
        let (has_input, on_terminal) = (yes(has_input), yes(run.terminal));
        let line = run.line(id, size, self.results);
        let line = format!("run {id} {has_input} {on_terminal} {line}\n");
        let sent = (&self.ports.run).write_all(line.as_bytes());
        sent.map_err(|error| self.died(&format!("it takes no commands ({error})")))?;
        let outcome = self.carry(run, id, streams, signals);
        drop(terminal);
        outcome
    }

    /// The threads, and waiting for the end.
    fn carry(
        &mut self,
        run: &Exec,
        id: u64,
        streams: Streams<'_>,
        signals: &Signals,
    ) -> Result<Exit, LabError> {
        let fail = |error| LabError::system("talking to the guest", error);
        let on_terminal = run.terminal;
        let Streams {
            input,
            mut output,
            mut errors,
        } = streams;
        let (woken, wake) = UnixStream::pair().map_err(fail)?;
        let (stopped, stop) = UnixStream::pair().map_err(fail)?;
        let ports = self.ports.clone();
        let cut = Cut::new(&self.token, id, on_terminal);
        let cut_errors = Cut::new(&self.token, id, false);
        let refused = || _ = (&wake).write_all(&[SINK_REFUSED]);
        let closed = AtomicBool::new(false);
        thread::scope(|threads| {
            let written = threads.spawn(|| match on_terminal {
                true => streams::copy_out(&ports.terminal, cut, &mut output, &refused),
                false => streams::copy_out(&ports.output, cut, &mut output, &refused),
            });
            let complained = threads.spawn(|| match on_terminal {
                true => Ok(()),
                false => streams::copy_out(&ports.errors, cut_errors, &mut errors, &refused),
            });
            threads.spawn(|| {
                let outcome = match (on_terminal, input) {
                    (true, Input::Descriptor(source)) => {
                        streams::send_keys(&ports.terminal, &source, stopped.as_fd())
                    }
                    (true, _) | (false, Input::Nothing) => Ok(false),
                    (false, input) => {
                        streams::send_framed(&ports.input, input, stopped.as_fd()).map(|()| false)
                    }
                };
                if matches!(outcome, Ok(true)) {
                    _ = (&wake).write_all(&[WAY_OUT]);
                }
            });
            let ended = self.wait_for_exit(run, id, signals, &woken, &closed);
            if ended.is_err() {
                self.kill();
            }
            drop(stop);
            let written = written.join().unwrap_or(Ok(()));
            let written = written.and(complained.join().unwrap_or(Ok(())));
            let exit = ended?;
            match written {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    Err(LabError::system("writing the command's output", error))
                }
                _ => Ok(exit),
            }
        })
    }

    /// Waits, passing signals and answering questions, until the agent reports the command's exit.
    fn wait_for_exit(
        &mut self,
        run: &Exec,
        id: u64,
        signals: &Signals,
        woken: &UnixStream,
        closed: &AtomicBool,
    ) -> Result<Exit, LabError> {
        let begun = Instant::now();
        let mut progress = CommandProgress::default();
        let mut watch = Watch::new(self.child.id(), self.arch, self.vcpus, &self.console);
        loop {
            while let Some(said) = self.link.next() {
                self.handle(said, id, &mut progress, &mut watch)?;
            }
            if let Some(code) = progress.code {
                return Ok(Exit { code });
            }
            let limit = self.command_timeout;
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            if let Some(limit) = limit.filter(|_| left == Some(Duration::ZERO)) {
                self.ask_for_tasks(signals, woken)?;
                let console = self.last_state();
                return Err(LabError::OutOfTime { limit, console });
            }
            let next_look = watch.until_next_look();
            let patience = left.map_or(next_look, |left| left.min(next_look));
            let (link, woke, signalled) = self.wait(signals, woken, patience)?;
            if link && !self.link.read() {
                return Err(self.died("it ended while a command ran in it"));
            }
            if !link {
                let watched = watch.look(&mut self.monitor, &mut self.link, &self.console);
                let watched =
                    watched.map_err(|error| self.died(&format!("it takes no messages ({error})")));
                if let Some(sign) = watched? {
                    let console = self.last_state();
                    return Err(LabError::Hung { sign, console });
                }
            }
            if woke {
                let mut note = [0];
                let read = (&*woken).read_exact(&mut note);
                read.map_err(|error| LabError::system("waiting for the guest", error))?;
                if note[0] == WAY_OUT {
                    return Err(LabError::Interrupted);
                }
                if !closed.swap(true, Ordering::Relaxed) {
                    self.pass("PIPE", &mut progress)?;
                }
            }
            if signalled {
                self.pass_all(run, signals, &mut progress)?;
            }
        }
    }

    /// Has the agent print on the console what each process waits for, if it answers before anything else comes.
    fn ask_for_tasks(&mut self, signals: &Signals, woken: &UnixStream) -> Result<(), LabError> {
        /// That of no other ping.
        const ANSWER: Message = Message::Pong(u64::MAX);
        const PATIENCE: Duration = Duration::from_secs(10);
        let until = Instant::now() + PATIENCE;
        let mut is_waiting = self.link.ping(u64::MAX, BeforePong::Tasks).is_ok();
        while is_waiting {
            let left = until.saturating_duration_since(Instant::now());
            let (has_link, ..) = self.wait(signals, woken, left)?;
            is_waiting = has_link
                && self.link.read()
                && !std::iter::from_fn(|| self.link.next()).any(|it| it == ANSWER);
        }
        Ok(())
    }

    /// Which of link, wake-up and signals has something.
    fn wait(
        &self,
        signals: &Signals,
        woken: &UnixStream,
        patience: Duration,
    ) -> Result<(bool, bool, bool), LabError> {
        let mut waiting = vec![
            PollFd::from_borrowed_fd(self.link.descriptor(), PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        let signals = signals.descriptor();
        waiting.extend(signals.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
        match poll(&mut waiting, Timespec::try_from(patience).ok().as_ref()) {
            // A signal: its handler wrote a byte, which the next poll reports.
            Err(rustix::io::Errno::INTR) | Ok(_) => {}
            Err(error) => return Err(LabError::system("waiting for the guest", error)),
        }
        let is_ready = |it: &PollFd<'_>| !it.revents().is_empty();
        let has = |place: usize| waiting.get(place).is_some_and(is_ready);
        Ok((has(0), has(1), has(2)))
    }

    fn handle(
        &mut self,
        message: Message,
        id: u64,
        progress: &mut CommandProgress,
        watch: &mut Watch,
    ) -> Result<(), LabError> {
        match message {
            Message::Started { id: started, group } if started == id => {
                progress.group = Some(group);
                for name in std::mem::take(&mut progress.early) {
                    self.pass(name, progress)?;
                }
            }
            Message::Exit { id: ended, code } if ended == id => progress.code = Some(code),
            Message::Ask { id, words } => {
                let answer = self.answer(&words).unwrap_or_else(|problem| problem);
                let sent = self.link.answer(id, &answer);
                sent.map_err(|error| self.died(&format!("no answer reaches it ({error})")))?;
            }
            Message::Pong(number) => watch.pong(number),
            Message::Booted
            | Message::Ticks(_)
            | Message::Clock
            | Message::Ready
            | Message::Started { .. }
            | Message::Exit { .. } => {}
        }
        Ok(())
    }

    fn pass_all(
        &mut self,
        run: &Exec,
        signals: &Signals,
        progress: &mut CommandProgress,
    ) -> Result<(), LabError> {
        for signal in signals.take() {
            match streams::signal_name(signal) {
                Some(name) => match progress.interrupted {
                    None if !run.is_sample => {
                        progress.interrupted = Some(Instant::now());
                        self.pass(name, progress)?;
                    }
                    Some(first) if first.elapsed() < SAME_REQUEST => {}
                    _ => return Err(LabError::Interrupted),
                },
                None => {
                    let resized = streams::terminal_size().map(|size| self.link.resize(size));
                    let resized = resized.transpose();
                    resized.map_err(|error| LabError::system("talking to the guest", error))?;
                }
            }
        }
        Ok(())
    }

    fn pass(&mut self, name: &'static str, progress: &mut CommandProgress) -> Result<(), LabError> {
        match progress.group {
            Some(group) => {
                let sent = self.link.signal(name, group);
                sent.map_err(|error| self.died(&format!("no signal reaches it ({error})")))
            }
            None => {
                progress.early.push(name);
                Ok(())
            }
        }
    }
}

/// How a QEMU process is started for a guest.

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// It boots and is not saved.
    Boot,
    /// It boots, is saved and ends. A guest that is up after [`Start::Save`] was then started from what was saved.
    Save,
    /// It starts from a guest that was saved before: QEMU waits for the monitor's `migrate-incoming`.
    Load,
}
