//! `nearfar lab run` and `nearfar lab shell`: a guest for one command, or to look around in; and the options that say which guest, which `ab`
//! and `bench` take, too.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _};
use nearfar_experiment::TargetOutput;
use nearfar_lab::cache::Cache;
use nearfar_lab::delay::{DelayRegion, DelaySpec, TimeSpec};
use nearfar_lab::guest::{Exec, Guest, Input, PreparedGuest, Root, Signals, Streams, command_line};
use nearfar_lab::kernels::build::{GitSource, PREFIX};
use nearfar_lab::request::GuestRequest;
use nearfar_lab::{Arch, LabError, Start, advice, kernels};
use nearfar_machine::{Acceleration, Emulation, NodeLimits};
use nearfar_sources::{Request, Want};
use serde::Serialize;

use crate::args::{one_of, seconds};
use crate::failure::{Failure, Outcome, input, refused};
use crate::{output, shell, signals};

/// The guest to boot.
#[derive(Args, Clone, Debug)]
pub struct GuestArgs {
    /// The machine: a name from `nearfar lab machines` or anything --source takes (a snapshot, hwloc XML, `numactl -H`
    /// text, a description file, a synthetic string; several describe one machine together)
    #[arg(long, value_name = "MACHINE", default_value = "two-node")]
    machine: Vec<String>,
    /// Cut each node down, such as cpus=2,memory=512M; nodes without CPUs or memory stay so
    #[arg(long, value_name = "SCALE")]
    scale: Option<NodeLimits>,
    /// x86_64, arm64 or powerpc64le [default: the machine's own, or this host's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// A series from `nearfar lab kernels list` (6.12), an image, a build tree, "host", or git:REVISION of the
    /// repository of this folder, which is built [default: of the series that the machine names, or else the newest
    /// cached one]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Parameters for the guest kernel's command line (may be repeated)
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    append: Vec<String>,
    /// Make far memory slow: auto, off, or delays such as near=400,far=800 (docs/delays.md)
    #[arg(long, value_name = "DELAYS")]
    delay: Option<DelaySpec>,
    /// The time that the guest's clocks follow while a command runs: host, simulated, simulated with
    /// instruction=NS,window=NS,seed=NUMBER,idle=jump,disk=NS, or auto: simulated in software emulation of this
    /// host's architecture (docs/time.md) [default: auto in ab, bisect, case, and for guests of bench tags and bench scale, host elsewhere]
    #[arg(long, value_name = "TIME")]
    time: Option<TimeSpec>,
    /// How the guest's CPUs run; delays and simulated time need software emulation
    #[arg(long, value_parser = one_of(ACCELERATIONS), default_value = "auto", value_name = "HOW")]
    accel: Accel,
    /// The host's files are read-only in the guest, instead of below an overlay that is thrown away
    #[arg(long)]
    read_only: bool,
    /// A folder of the host that the guest may write to, as /results
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Show the guest kernel's console on standard error; the guest boots
    #[arg(long)]
    console: bool,
    /// Boot, instead of starting from a guest of the same design that was saved after its boot
    #[arg(long)]
    cold: bool,
    /// Fail when the guest is not up after this long
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    boot_timeout: f64,
    /// End the guest when the command runs longer than this [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    command_timeout: Option<f64>,
}

/// None where the lab chooses. A name of its own: clap takes the value of an `Option` for its content.
type Accel = Option<Acceleration>;

/// How the guest's CPUs can run.
const ACCELERATIONS: &[(&str, &str, Accel)] = &[
    (
        "auto",
        "KVM where a guest was seen to live under it, software emulation otherwise",
        None,
    ),
    ("kvm", "On this host's CPUs", Some(Acceleration::Kvm)),
    ("tcg", "In software", Some(Acceleration::Tcg)),
];

/// What [`GuestArgs::with`] changes.
const KEYS: [&str; 8] = [
    "machine", "scale", "kernel", "append", "arch", "accel", "delay", "time",
];

/// The keys as help lists them.
pub fn keys() -> String {
    let [others @ .., last] = KEYS.map(|key| format!("{key}="));
    format!("{} or {last}", others.join(", "))
}

impl Default for GuestArgs {
    fn default() -> Self {
        let command = Self::augment_args(Command::new("guest").no_binary_name(true));
        let matches = command.try_get_matches_from([""; 0]);
        let defaults = matches.and_then(|matches| Self::from_arg_matches(&matches));
        defaults.expect("every option of a guest has a default")
    }
}

impl GuestArgs {
    /// The same guest with one thing changed, as `ab` writes it: `kernel=6.1`.
    pub fn with(mut self, key: &str, value: &str) -> Result<Self, String> {
        fn text(error: impl std::fmt::Display) -> String {
            error.to_string()
        }
        match key {
            "machine" => self.machine = vec![value.to_owned()],
            "kernel" => self.kernel = Some(value.to_owned()),
            // A guest without kernel parameters, next to one that has some.
            "append" if value == "none" => {}
            "append" => self.append.push(value.to_owned()),
            "accel" => {
                let mut known = ACCELERATIONS.iter();
                let found = known.find(|(name, ..)| name.eq_ignore_ascii_case(value));
                let unknown = || format!("invalid variant: {value}");
                (.., self.accel) = *found.ok_or_else(unknown)?;
            }
            "arch" => self.arch = Some(value.parse()?),
            "scale" => self.scale = Some(value.parse().map_err(text)?),
            "delay" => self.delay = Some(value.parse().map_err(text)?),
            "time" => self.time = Some(value.parse().map_err(text)?),
            _ => return Err(format!("{key}: not one of {}", KEYS.join(", "))),
        }
        Ok(self)
    }

    /// Whether a kernel is asked for.
    pub fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// The request for the lab; `time` is that of a guest for which none is asked.
    pub fn request(&self, time: TimeSpec) -> Result<GuestRequest, Failure> {
        let mut request = self.unbuilt(time)?;
        if let Some(spec) = &request.kernel
            && spec.starts_with(PREFIX)
        {
            let arch = request.architecture().map_err(failure)?;
            let cache = Cache::of_user().map_err(failure)?;
            let built = super::build_kernel(&cache, spec, Path::new("."), None, arch)?;
            request.kernel = Some(built.release);
        }
        Ok(request)
    }

    /// With its kernel as it was asked for.
    fn unbuilt(&self, time: TimeSpec) -> Result<GuestRequest, Failure> {
        let sources = Request {
            sources: self.machine.clone(),
            ..Request::live(Want::all())
        };
        let machine = nearfar_sources::read(&sources).map_err(Failure::input)?;
        let name = self.machine.first().and_then(|it| it.rsplit('/').next());
        Ok(GuestRequest {
            limits: self.scale.unwrap_or_default(),
            arch: self.arch,
            kernel: self.kernel.clone(),
            append: self.append.clone(),
            delay: self.delay.clone().unwrap_or(DelaySpec::Off),
            time: self.time.unwrap_or(time),
            acceleration: self.accel,
            root: if self.read_only {
                Root::ReadOnly
            } else {
                Root::Overlay
            },
            results: self.results.clone(),
            console: self.console,
            cold: self.cold,
            boot_timeout: Duration::from_secs_f64(self.boot_timeout),
            command_timeout: self.command_timeout.map(Duration::from_secs_f64),
            ..GuestRequest::new(machine, name.unwrap_or_default())
        })
    }

    /// Whether guests find a command's program; before a kernel is built for them.
    ///
    /// # Errors
    /// That they do not.
    pub fn check_command(command: &[String]) -> Outcome {
        let checked = advice::check_command(&command[0]);
        checked.map_err(|problem| Failure::NotStarted(anyhow::anyhow!(problem), 127))
    }

    /// Whether guests' machines and kernels are there; before one of these is built, which takes minutes.
    ///
    /// # Errors
    /// As [`Self::request`], but for a build that fails.
    pub fn check(guests: &[&Self]) -> Outcome {
        let cache = Cache::of_user().map_err(failure)?;
        let unbuilt = guests.iter().map(|guest| guest.unbuilt(TimeSpec::Host));
        let requests: Vec<GuestRequest> = unbuilt.collect::<Result<_, _>>()?;
        let specs = |request: &GuestRequest| request.kernel.clone();
        // A revision that is not there is said before a kernel that is only not cached.
        for spec in requests
            .iter()
            .filter_map(specs)
            .filter(|it| it.starts_with(PREFIX))
        {
            GitSource::of(&spec, Path::new(".")).map_err(|problem| input!("{spec}: {problem}"))?;
        }
        for request in &requests {
            let arch = request.architecture().map_err(failure)?;
            if let Some(spec) = specs(request).filter(|it| !it.starts_with(PREFIX)) {
                kernels::find_in(&cache, Some(&spec), arch).map_err(failure)?;
            }
        }
        Ok(())
    }
}

/// Starts a guest; says on standard error which boots failed by chance before, and why it is one that cannot be saved.
pub fn booted(prepared: &PreparedGuest, cancel: &AtomicBool) -> Result<Guest, LabError> {
    let guest = Guest::boot(prepared, cancel)?;
    for why in guest.failed_boots() {
        output::say!("note: the guest was booted again: {why}");
    }
    if let Some(why) = guest.unsaved_reason() {
        output::say!("note: this guest cannot be saved, so each start boots it: {why}");
    }
    Ok(guest)
}

/// Runs a command in a guest, without input, and keeps what it prints.
pub fn captured(
    guest: &mut Guest,
    exec: &Exec,
    signals: &Signals,
) -> Result<TargetOutput, LabError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let streams = Streams {
        input: Input::Nothing,
        output: Box::new(&mut stdout),
        errors: Box::new(&mut stderr),
    };
    let exit_code = guest.exec(exec, streams, signals)?.code;
    Ok(TargetOutput {
        exit_code,
        stdout,
        stderr,
    })
}

/// What the caller has to fix is wrong input; the rest the system refused.
pub fn failure(error: LabError) -> Failure {
    match error {
        LabError::Design(_)
        | LabError::Delay(_)
        | LabError::PluginUnderKvm
        | LabError::Kernel { .. }
        | LabError::Content { .. } => Failure::input(error),
        _ => Failure::refused(error),
    }
}

/// Boot a machine as a guest, run a command in it, and power it off
///
/// The command's output, input, exit code and Ctrl-C are passed through. It sees this host's files; what it writes to them is
/// thrown away with the guest, except in the folder of --results.
#[derive(Args)]
#[command(
    after_long_help = "The exit code is the command's. With a message that begins with \"nearfar:\" it is 2 for wrong usage or \
                             unreadable input, and 3 when the guest did not start or failed while the command ran.\n\nExamples:\n  \
                             nearfar lab run --machine eight-node-ring --scale cpus=1,memory=256M -- numactl -H\n  \
                             nearfar lab run --machine x86-case1 -- nearfar audit\n  \
                             nearfar lab run --delay near=400,far=800 --counts counts.json -- ./job"
)]
pub struct Run {
    #[command(flatten)]
    guest: GuestArgs,
    /// Write what the delay plugin counted to this file, each second and at the end
    #[arg(long, value_name = "FILE", value_parser = output::named_file(), requires = "delay")]
    counts: Option<PathBuf>,
    /// Write how the guest started and ended to this file, as JSON for programs
    #[arg(long, value_name = "FILE", value_parser = output::named_file())]
    status: Option<PathBuf>,
    /// Print QEMU's command line for a guest that boots (as with --cold) instead of running it
    #[arg(long)]
    show_command: bool,
    /// The command and its arguments
    #[arg(
        last = true,
        required_unless_present = "show_command",
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// Boot a machine as a guest and open a shell in it
///
/// When standard input is not a terminal, the shell reads its commands from there and ends with it.
#[derive(Args)]
#[command(
    after_long_help = "Leave it with `exit` or Ctrl-D; Ctrl-] three times ends a guest that hangs.\n\nExamples:\n  nearfar lab shell\n  nearfar lab shell --machine kunpeng --scale cpus=2,memory=512M"
)]
pub struct Shell {
    #[command(flatten)]
    guest: GuestArgs,
}

impl Run {
    /// Boots, runs, powers off.
    pub fn run(self) -> Outcome {
        for file in self.counts.iter().chain(&self.status) {
            output::can_write(file)?;
        }
        let request = prepare(&self.guest)?;
        if self.show_command {
            return output::print(&shell::lines(
                command_line(&request).into_iter().map(Into::into),
            ));
        }
        let exec = Exec {
            command: self.command,
            ..Exec::default()
        };
        let files = Files {
            counts: self.counts,
            status: self.status,
        };
        inside(&request, &exec, files)
    }
}

impl Shell {
    /// Boots, hands the terminal over, powers off.
    pub fn run(self) -> Outcome {
        let request = prepare(&self.guest)?;
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        // Without a terminal the shell reads commands from its input and ends with it, as `sh` does.
        let exec = Exec {
            command: vec![shell],
            terminal: std::io::stdin().is_terminal(),
            ..Exec::default()
        };
        inside(&request, &exec, Files::default())
    }
}

/// The files that are written besides the command's output.
#[derive(Default)]
struct Files {
    counts: Option<PathBuf>,
    status: Option<PathBuf>,
}

/// What the guest is made of; says on standard error what it could not reproduce.
fn prepare(guest: &GuestArgs) -> Result<PreparedGuest, Failure> {
    let request = guest.request(TimeSpec::Host)?;
    let prepared = Cache::of_user()
        .and_then(|cache| request.prepare(&cache))
        .map_err(failure)?;
    for note in &prepared.design.notes {
        output::say!("note: {note}");
    }
    Ok(prepared)
}

/// Runs a command in a guest with this process's streams.
fn inside(prepared: &PreparedGuest, exec: &Exec, files: Files) -> Outcome {
    let mut status = files.status.map(|file| Status::new(file, prepared));
    let ended = carry_out(prepared, exec, files.counts, &mut status);
    if let Some(status) = status {
        let code = ended.as_ref().map(|ended| ended.code);
        status.finish(code)?;
    }
    let Ended { code, watch, guest } = ended.map_err(failure)?;
    if let Some(watch) = watch {
        watch.finish()?;
    }
    guest.power_off();
    match u8::try_from(code) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::CommandEnded(code)),
        Err(_) => Err(Failure::CommandEnded(u8::MAX)),
    }
}

/// A command that has ended, in a guest that is still up.
struct Ended {
    code: i32,
    /// The thread that writes the counts.
    watch: Option<Watch>,
    guest: Guest,
}

/// Starts the guest and runs the command.
fn carry_out(
    prepared: &PreparedGuest,
    exec: &Exec,
    counts: Option<PathBuf>,
    status: &mut Option<Status>,
) -> Result<Ended, LabError> {
    let cancel = signals::cancel_flag();
    let mut guest = booted(prepared, &cancel)?;
    if let Some(status) = status {
        status.up(&guest);
    }
    let streams = Streams::inherited()
        .map_err(|error| LabError::system("cannot share the standard streams", error))?;
    let signals = Signals::of_process()?;
    let watch = counts
        .zip(guest.delay_region())
        .map(|(file, region)| Watch::start(region, file, prepared.emulation()));
    let exit = guest.exec(exec, streams, &signals)?;
    Ok(Ended {
        code: exit.code,
        watch,
        guest,
    })
}

/// How often the file is written while the guest runs.
const PERIOD: Duration = Duration::from_secs(1);

/// A thread that writes the counts as long as this value lives.
struct Watch {
    stop: Sender<()>,
    writer: JoinHandle<Outcome>,
}

impl Watch {
    /// Begins to write. Each version of the file is whole: it is written under a temporary name and renamed.
    fn start(region: Arc<DelayRegion>, file: PathBuf, emulation: Emulation) -> Self {
        let (stop, stopped) = channel();
        let writer = std::thread::spawn(move || {
            loop {
                let last = stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                let answer = CountsAnswer {
                    emulation: &emulation,
                    counts: region.counts(),
                };
                output::write_file(
                    &file,
                    output::json("lab-counts/1", None, &answer)?.as_bytes(),
                )?;
                if last {
                    return Ok(());
                }
            }
        });
        Self { stop, writer }
    }

    /// Writes the last counts.
    fn finish(self) -> Outcome {
        drop(self.stop);
        self.writer
            .join()
            .unwrap_or_else(|_| Err(refused!("writing the counts ended early")))
    }
}

#[derive(serde::Serialize)]
struct CountsAnswer<'a> {
    emulation: &'a Emulation,
    #[serde(flatten)]
    counts: nearfar_lab::delay::Counts,
}

/// What is known so far.
#[derive(Serialize)]
struct Status {
    #[serde(skip)]
    file: PathBuf,
    emulation: Emulation,
    /// `None` while the guest is not up.
    start: Option<Start>,
    unsaved_reason: Option<String>,
    failed_boots: Vec<Problem>,
    exit_code: Option<i32>,
    error: Option<Problem>,
}

#[derive(Serialize)]
struct Problem {
    /// A word that does not change.
    code: &'static str,
    message: String,
}

impl Status {
    /// Of a guest that is about to start.
    fn new(file: PathBuf, prepared: &PreparedGuest) -> Self {
        Self {
            file,
            emulation: prepared.emulation(),
            start: None,
            unsaved_reason: None,
            failed_boots: Vec::new(),
            exit_code: None,
            error: None,
        }
    }

    /// The guest is up.
    fn up(&mut self, guest: &Guest) {
        self.start = Some(guest.start());
        self.unsaved_reason = guest.unsaved_reason().map(ToString::to_string);
        self.failed_boots = guest
            .failed_boots()
            .iter()
            .map(|failure| Problem {
                code: failure.code(),
                message: failure.to_string(),
            })
            .collect();
    }

    /// Writes the file: the command's exit code, or the error.
    fn finish(mut self, ended: Result<i32, &LabError>) -> Outcome {
        match ended {
            Ok(code) => self.exit_code = Some(code),
            Err(error) => {
                self.error = Some(Problem {
                    code: error.code(),
                    message: error.to_string(),
                });
            }
        }
        let text = output::json("lab-status/1", None, &self)?;
        output::write_file(&self.file, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMACTL: &str = "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 1024 MB\nnode 1 cpus: 2 3\n\
                           node 1 size: 1024 MB\nnode distances:\nnode   0   1\n  0:  10  21\n  1:  21  10\n";
    const MLC: &str = "Measuring idle latencies (in ns)...\n                Numa node\nNuma node            0       1\n\
                       \x20      0          81.5   139.6\n       1         139.4    81.9\n";

    #[test]
    fn several_machines_describe_one_together() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let files = [file("numactl.txt", NUMACTL), file("mlc.txt", MLC)];
        let guest = GuestArgs {
            machine: files.into(),
            ..GuestArgs::default()
        };
        let request = guest.request(TimeSpec::Host).unwrap();
        assert_eq!(request.name, "numactl.txt");
        assert_eq!(request.machine.cpus.len(), 4);
        let latencies = request.machine.timing.unwrap().latencies;
        assert!(latencies.iter().map(|it| it.ns).eq([82, 140, 139, 82]));

        let changed = guest.with("machine", "two-node").unwrap();
        let machine = changed.request(TimeSpec::Host).unwrap().machine;
        assert!(machine.timing.is_none());
    }
}
