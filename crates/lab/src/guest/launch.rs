//! From a request to a QEMU process and our ends of its channels.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Instant;

use super::arguments::{self, PORTS, Part};
use super::console::Console;
use super::link::Link;
use super::process::{self, QemuCommand, Running};
use super::qmp::Monitor;
use super::saved::SavedGuest;
use super::{Guest, Ports, PreparedGuest};
use crate::delay::DelayRegion;
use crate::error::LabError;
use crate::start::Start;

/// A guest whose QEMU runs and whose agent has not answered yet.
#[derive(Debug)]
pub struct Launched {
    pub guest: Guest,
    /// When QEMU was started.
    pub started: Instant,
    /// What QEMU's monitor calls the file of the state; empty for a guest without one.
    pub state: String,
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
        self.theirs.get(part).map_or_else(
            || shown(part),
            |descriptor| descriptor.as_raw_fd().to_string(),
        )
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
    let ports = (0..PORTS.len())
        .map(|place| channels.open(Part::Port(place)))
        .collect::<Result<Vec<_>, _>>()?;
    channels.theirs.insert(
        Part::Initramfs,
        process::memory_file("first root", archive)?,
    );
    for (name, bytes) in arguments::disks(&prepared.design) {
        let disk = process::memory_disk(&name, bytes)?;
        channels.theirs.insert(Part::Disk(name), disk);
    }
    let mut state = String::new();
    if let Some(files) = files {
        for (node, file) in &files.memory {
            channels
                .theirs
                .insert(Part::Memory(*node), process::duplicate(file)?);
        }
        let file = process::duplicate(&files.state)?;
        state = format!("file:/dev/fd/{}", file.as_raw_fd());
        channels.theirs.insert(Part::State, file);
    }
    let delays = delays(prepared, &mut channels)?;
    let words = arguments::arguments(prepared, start, kernel, &|part| channels.number(part));
    let is_preloaded = channels.theirs.contains_key(&Part::Plugin);
    let preloaded = is_preloaded.then(|| channels.number(&Part::Plugin));
    let started = Instant::now();
    let mut child = process::start(QemuCommand {
        program: prepared.qemu.program.clone(),
        arguments: words.into_iter().map(OsString::from).collect(),
        preloaded: preloaded.map(|number| PathBuf::from(format!("/proc/self/fd/{number}"))),
        inherited: channels.theirs.into_values().collect(),
    })?;
    let (console, qemu_said) = (Console::default(), Console::default());
    console.listen(heard, prepared.request.console);
    listen_to_qemu(&mut child, &qemu_said, prepared.request.console);
    let [run, link, input, output, errors] =
        <[UnixStream; 5]>::try_from(ports).unwrap_or_else(|_| unreachable!());
    let guest = Guest {
        arch: prepared.design.arch,
        vcpus: prepared.design.cpu_nodes.len(),
        child: Running::new(child),
        monitor: Monitor::new(monitor)
            .map_err(|error| LabError::system("talking to QEMU", error))?,
        ports: Ports {
            run,
            input,
            output,
            errors,
            terminal,
        },
        link: Link::new(link),
        console,
        qemu_said,
        spare_ports: prepared.design.spare_ports.clone(),
        spare_host_bridges: prepared.design.spare_host_bridges(),
        controller_nodes: prepared.design.controller_nodes(),
        delays,
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
    match part {
        Part::Initramfs => "{initramfs}".to_owned(),
        Part::Monitor => "{monitor}".to_owned(),
        Part::Console => "{console}".to_owned(),
        Part::Terminal => "{terminal}".to_owned(),
        Part::Port(place) => format!("{{{}}}", PORTS.get(*place).copied().unwrap_or("port")),
        Part::Disk(name) => format!("{{{name}}}"),
        Part::Delays => "{delays}".to_owned(),
        Part::Plugin => "{plugin}".to_owned(),
        Part::Memory(node) => format!("{{memory-{node}}}"),
        Part::State => "{state}".to_owned(),
    }
}

/// The memory shared with the delay plugin.
fn delays(
    prepared: &PreparedGuest,
    channels: &mut Channels,
) -> Result<Option<Arc<DelayRegion>>, LabError> {
    let Some(delay) = &prepared.delay else {
        return Ok(None);
    };
    if delay.time.is_some() {
        let file = File::open(&delay.plugin);
        let file = file.map_err(|error| LabError::system("opening the delay plugin", error))?;
        channels.theirs.insert(Part::Plugin, file.into());
    }
    let region = delay.start()?;
    channels
        .theirs
        .insert(Part::Delays, process::duplicate(&region)?);
    Ok(Some(Arc::new(region)))
}

fn listen_to_qemu(child: &mut Child, said: &Console, show: bool) {
    if let Some(source) = child.stderr.take() {
        said.listen(source, show);
    }
}
