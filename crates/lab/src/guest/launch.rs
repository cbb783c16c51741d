//! From a request to a QEMU process that cannot outlive this one, and our ends of the channels that it inherits.
//!
//! ```text
//!  nearfar ──┬── thread "spawner" ──fork──► QEMU     PR_SET_PDEATHSIG = SIGKILL: however nearfar ends, QEMU ends
//!            └── memfds, socketpairs ───────► /dev/fd/N of QEMU: no file and no socket in any folder
//! ```
//!
//! The signal of prctl(2) is sent when the *thread* that forked ends, so one thread that never ends forks for all.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use rustix::fs::MemfdFlags;
use rustix::process::Signal;

use crate::delay::DelayRegion;
use crate::error::LabError;
use crate::guest::arguments::{self, PORTS, Part};
use crate::guest::health::Console;
use crate::guest::link::Link;
use crate::guest::qmp::Monitor;
use crate::guest::saved::SavedGuest;
use crate::guest::{Guest, Ports, PreparedGuest, Start};

/// A guest whose QEMU runs and whose agent has not answered yet.
#[derive(Debug)]
pub struct Launched {
    pub guest: Guest,
    /// When QEMU was started.
    pub started: Instant,
    /// What QEMU's monitor calls the file of the state; empty for a guest without one.
    pub state: String,
}

/// What QEMU inherits, while our ends are made.
#[derive(Default)]
struct Channels(HashMap<Part, OwnedFd>);

impl Channels {
    fn open(&mut self, part: Part) -> Result<UnixStream, LabError> {
        let pair = UnixStream::pair();
        let (ours, theirs) =
            pair.map_err(|error| LabError::system("making a channel to the guest", error))?;
        self.0.insert(part, theirs.into());
        Ok(ours)
    }

    fn number(&self, part: &Part) -> String {
        let descriptor = self.0.get(part);
        descriptor.map_or_else(|| shown(part), |it| it.as_raw_fd().to_string())
    }
}

/// Starts QEMU. `files` holds memory and state of a guest that is to be saved, or starts from a saved one.
///
/// # Errors
/// When the system refuses a channel, memory or the process.
pub fn launch(
    prepared: &PreparedGuest,
    start: Start,
    kernel: &Path,
    archive: &[u8],
    files: Option<&SavedGuest>,
) -> Result<Launched, LabError> {
    let mut channels = Channels::default();
    let monitor = channels.open(Part::Monitor)?;
    let heard = channels.open(Part::Console)?;
    let terminal = channels.open(Part::Terminal)?;
    let mut port = |place| channels.open(Part::Port(place));
    let [run, link, input] = [port(0)?, port(1)?, port(2)?];
    let [output, errors] = [port(3)?, port(4)?];
    let inherited = &mut channels.0;
    inherited.insert(Part::Initramfs, memory_file("first root", archive)?);
    for (name, bytes) in arguments::disks(&prepared.design) {
        let disk = memory_disk(&name, bytes)?;
        inherited.insert(Part::Disk(name), disk);
    }
    let mut state = String::new();
    if let Some(files) = files {
        for (node, file) in &files.memory {
            inherited.insert(Part::Memory(*node), duplicate(file)?);
        }
        let file = duplicate(&files.state)?;
        state = format!("file:/dev/fd/{}", file.as_raw_fd());
        inherited.insert(Part::State, file);
    }
    let delays = delays(prepared, inherited)?;
    let words = arguments::arguments(prepared, start, kernel, &|part| channels.number(part));
    let is_preloaded = channels.0.contains_key(&Part::Plugin);
    let preloaded = is_preloaded.then(|| channels.number(&Part::Plugin));
    let started = Instant::now();
    let mut child = start_qemu(QemuCommand {
        program: prepared.qemu.program.clone(),
        arguments: words.into_iter().map(OsString::from).collect(),
        preloaded: preloaded.map(|number| PathBuf::from(format!("/proc/self/fd/{number}"))),
        inherited: channels.0.into_values().collect(),
    })?;
    let (console, qemu_said) = (Console::default(), Console::default());
    console.listen(heard, prepared.request.console);
    if let Some(source) = child.stderr.take() {
        qemu_said.listen(source, prepared.request.console);
    }
    let guest = Guest {
        arch: prepared.design.arch,
        vcpus: prepared.design.cpu_nodes.len(),
        child: Running::new(child),
        monitor: Monitor::new(monitor)
            .map_err(|error| LabError::system("talking to QEMU", error))?,
        ports: Arc::new(Ports {
            run,
            input,
            output,
            errors,
            terminal,
        }),
        link: Link::new(link),
        console,
        qemu_said,
        spare_ports: prepared.design.spare_ports.clone(),
        spare_host_bridges: prepared.design.spare_host_bridges(),
        controller_nodes: prepared.design.controller_nodes(),
        delays,
        marks: BTreeMap::new(),
        results: arguments::results_folder(prepared),
        token: String::new(),
        commands: 0,
        command_timeout: prepared.request.command_timeout,
        boot_seconds: 0.0,
        failed_boots: Vec::new(),
        start,
        unsaved_reason: None,
        keeping: None,
    };
    Ok(Launched {
        guest,
        started,
        state,
    })
}

/// What stands for something inherited on a command line that is only shown.
pub fn shown(part: &Part) -> String {
    let name = match part {
        Part::Initramfs => "initramfs",
        Part::Monitor => "monitor",
        Part::Console => "console",
        Part::Terminal => "terminal",
        Part::Port(place) => PORTS.get(*place).copied().unwrap_or("port"),
        Part::Disk(name) => name,
        Part::Delays => "delays",
        Part::Plugin => "plugin",
        Part::Memory(node) => return format!("{{memory-{node}}}"),
        Part::State => "state",
    };
    format!("{{{name}}}")
}

/// The memory shared with the delay plugin.
fn delays(
    prepared: &PreparedGuest,
    inherited: &mut HashMap<Part, OwnedFd>,
) -> Result<Option<Arc<DelayRegion>>, LabError> {
    let Some(delay) = &prepared.delay else {
        return Ok(None);
    };
    if delay.time.is_some() {
        let file = File::open(&delay.plugin);
        let file = file.map_err(|error| LabError::system("opening the delay plugin", error))?;
        inherited.insert(Part::Plugin, file.into());
    }
    let region = delay.start()?;
    inherited.insert(Part::Delays, duplicate(&region)?);
    Ok(Some(Arc::new(region)))
}

/// A program to start.
#[derive(Debug)]
struct QemuCommand {
    program: PathBuf,
    /// Its arguments.
    arguments: Vec<OsString>,
    /// A library that is loaded before all others (ld.so(8), `LD_PRELOAD`).
    preloaded: Option<PathBuf>,
    /// What it inherits, under the same numbers as here.
    inherited: Vec<OwnedFd>,
}

/// A child that is killed when this is dropped. Waiting for its end takes as long as the kernel takes to free its memory, so a
/// thread of its own does that.
#[derive(Debug)]
pub struct Running(Option<Child>);

impl Running {
    /// Owns a child.
    pub fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Its process number; 0 when it was waited for.
    pub fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Ends it at once. Its channels then report an end.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        drop(self.0.as_mut().map(Child::kill));
    }

    /// Waits for its end. Returns the signal that it ended by, if it did.
    pub fn wait(&mut self) -> Option<Signal> {
        let ended = self.0.as_mut()?.wait().ok()?;
        Signal::from_named_raw(ended.signal()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if let Some(mut child) = self.0.take() {
            thread::spawn(move || drop(child.wait()));
        }
    }
}

type Job = (QemuCommand, Sender<io::Result<Child>>);

/// Starts a program whose standard input is empty, whose standard error is a pipe, and which dies with this process.
///
/// # Errors
/// When the program cannot be started.
fn start_qemu(start: QemuCommand) -> Result<Child, LabError> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let program = start.program.clone();
    tracing::debug!(path = %program.display(), arguments = ?start.arguments, "start program");
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, received) = channel::<Job>();
        thread::spawn(move || {
            for (start, answer) in received {
                // A caller that did not wait would get a child that is never killed: so it is killed here.
                if let Err(unheard) = answer.send(spawn(start))
                    && let Ok(mut child) = unheard.0
                {
                    drop(child.kill().and_then(|()| child.wait()));
                }
            }
        });
        orders
    });
    let (answer, answered) = channel();
    let gone = || io::Error::other("the thread that starts programs is gone");
    let gone = || LabError::system("starting QEMU", gone());
    spawner.send((start, answer)).map_err(|_| gone())?;
    let started = answered.recv().map_err(|_| gone())?;
    started.map_err(LabError::at("starting", &program))
}

fn spawn(start: QemuCommand) -> io::Result<Child> {
    let inherited: Vec<RawFd> = start.inherited.iter().map(AsRawFd::as_raw_fd).collect();
    let mut command = Command::new(&start.program);
    command.args(&start.arguments).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some(library) = start.preloaded {
        let mut all = library.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD") {
            all.push(" ");
            all.push(others);
        }
        command.env("LD_PRELOAD", all);
    }
    nearfar_proc::child::end_with_parent(&mut command, Signal::KILL);
    let prepare = move || {
        // Ctrl-C at the terminal is for us to pass on, not for QEMU to die of. Many threads that share a CPU (simulated time) are one in the
        // scheduler's eyes where they have a session of their own (sched(7), "The autogroup feature").
        rustix::process::setsid()?;
        for number in &inherited {
            // SAFETY: the descriptors are open, since `start.inherited` lives until after the fork.
            let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(*number) };
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated or locked.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// An anonymous file with this content.
///
/// # Errors
/// When there is no memory for it.
pub fn memory_file(name: &str, content: &[u8]) -> Result<OwnedFd, LabError> {
    let make = || {
        let mut file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
        file.write_all(content)?;
        file.rewind()?;
        Ok(file.into())
    };
    make().map_err(|error: io::Error| {
        LabError::system(format!("making an anonymous file for {name}"), error)
    })
}

/// An anonymous file of so many zero bytes, which take no memory before something is written there.
///
/// # Errors
/// When the system refuses.
pub fn memory_disk(name: &str, bytes: u64) -> Result<OwnedFd, LabError> {
    let file = memory_file(name, &[])?;
    rustix::fs::ftruncate(&file, bytes).map_err(|error| {
        LabError::system(format!("making a disk of {bytes} bytes for {name}"), error)
    })?;
    Ok(file)
}

/// A second descriptor of the same file.
///
/// # Errors
/// When the system refuses.
pub fn duplicate(file: impl AsFd) -> Result<OwnedFd, LabError> {
    file.as_fd()
        .try_clone_to_owned()
        .map_err(|error| LabError::system("duplicating a descriptor", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_session_of_its_own() {
        let started = start_qemu(QemuCommand {
            program: "/bin/sh".into(),
            arguments: [
                "-c",
                "read -r pid rest < /proc/self/stat; set -- $rest; [ $5 = $pid ]",
            ]
            .map(OsString::from)
            .into(),
            preloaded: None,
            inherited: Vec::new(),
        });
        let mut child = started.expect("a shell");
        assert!(child.wait().expect("its end").success());
    }
}
