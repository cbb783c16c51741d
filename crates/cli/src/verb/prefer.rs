//! `nearfar prefer`: tasks with a preferred node: processes, a command, a control group as a whole, or those of the rules of a file
//! (`prefer service`).

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use nearfar_machine::{Machine, NodeId};
use nearfar_prefer::cgroup::{CgroupError, Group, KeptGroup, KeptGroupReport, Through};
use nearfar_prefer::keeper::OpenProcess;
use nearfar_prefer::near::{self, Home, Visibility};
use nearfar_prefer::service::{self, Control, ServiceError, Surroundings};
use nearfar_prefer::{Keeper, KeeperError, KeeperOptions, KeeperReport, Memory, Targets};
use nearfar_proc::memory_policy::MemoryPolicy;
use nearfar_report::Style;
use nearfar_sources::{Request, Want};
use nearfar_trace::Ended;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{Colour, Format, FormatArgs, one_of, read_live};
use crate::failure::{Failure, Outcome, input};
use crate::output::{self, under};
use crate::signals;
use crate::verb::trace::{end_as, ended};

/// Give tasks a preferred node, on any kernel
///
/// The tasks, their threads and the processes they make run on the node's CPUs whenever one of them can take them, elsewhere
/// while the node is full, and come back when it is not. Memory policy is left alone unless --memory asks for something.
/// Affinities are as before when this ends or is killed. COMMAND's exit code becomes this one's; the report is written to
/// standard error.
#[derive(Args)]
#[command(group = ArgGroup::new("where").required(true).args(["node", "near", "near_visible_gpu"]))]
#[command(group = ArgGroup::new("whom").required(true).args(["pid", "group", "command"]))]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(
    after_long_help = "Examples:\n  nearfar prefer --node 1 -- ./server --port 8080\n  \
                             nearfar prefer --near eth0 --pid 4711 --pid 4712\n  \
                             nearfar prefer --node 0 --memory follow --pid 4711 --seconds 60 --format json"
)]
pub struct Prefer {
    #[command(subcommand)]
    verb: Option<PreferVerb>,
    /// The node they prefer
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// The node of this device: a network card, disk, NVMe controller, GPU or PCI address
    #[arg(long, value_name = "DEVICE")]
    near: Option<String>,
    /// The node of the GPUs that COMMAND may use here: those whose device files may be opened, of which CUDA_VISIBLE_DEVICES,
    /// ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ZE_AFFINITY_MASK may name some
    #[arg(long, conflicts_with_all = ["pid", "group"])]
    near_visible_gpu: bool,
    /// Keep this process (may be repeated), until it has ended or Ctrl-C
    #[arg(long, value_name = "PID", value_parser = crate::args::pid)]
    pid: Vec<i32>,
    #[command(flatten)]
    group: KeptGroupArgs,
    /// Stop after this long
    #[arg(long, value_name = "SECONDS", value_parser = crate::args::seconds, conflicts_with = "command")]
    seconds: Option<f64>,
    /// Where the memory of the tasks is
    #[arg(long, value_enum, value_name = "WHAT")]
    memory: Option<MemoryArg>,
    #[command(flatten)]
    format: FormatArgs,
    /// Write the report into this file instead of to standard error
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Run and keep this
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What else there is.
#[derive(Subcommand)]
enum PreferVerb {
    Service(Service),
}

/// `--memory`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MemoryArg {
    /// Allocated on the node while it has some (only for COMMAND)
    Preferred,
    /// Allocated on the node only (only for COMMAND)
    Bind,
    /// Allocated on every node in turn, page by page: for what all of the machine uses alike (only for COMMAND)
    Interleave,
    /// Moved to the node when the task runs there again
    Follow,
}

/// What was done, in JSON.
#[derive(Serialize)]
struct PreferAnswer<'a> {
    /// How the node was found, with --near.
    #[serde(skip_serializing_if = "Option::is_none")]
    near: Option<&'a Home>,
    #[serde(flatten)]
    kept: &'a KeeperReport,
    /// How COMMAND ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Ended>,
}

impl Prefer {
    /// Whether this is the service, which says what it does without being asked.
    pub fn is_service(&self) -> bool {
        matches!(self.verb, Some(PreferVerb::Service(_)))
    }

    /// Keeps, reports.
    pub fn run(mut self, colour: Colour) -> Outcome {
        if let Some(PreferVerb::Service(service)) = self.verb.take() {
            return service.run(colour);
        }
        let policy = self.policy()?;
        self.output.as_deref().map(output::can_write).transpose()?;
        // Before anything else takes its time: a number may be another process's by then.
        let processes = self.processes()?;
        let want = Want {
            devices: self.near.is_some() || self.near_visible_gpu,
            ..Want::topology()
        };
        let machine = read_live(want)?;
        let (node, near) = self.home(&machine)?;
        let memory = match self.memory {
            Some(MemoryArg::Follow) => Memory::Follow,
            _ => Memory::Untouched,
        };
        let nodes = Some(PathBuf::from("/sys/devices/system/node"));
        let options = KeeperOptions {
            memory,
            observe: true,
            nodes,
            ..KeeperOptions::default()
        };
        if let Some(name) = &self.group.group {
            let kept = keep_group(
                name,
                &self.group,
                node,
                &machine,
                options,
                self.limit()?,
                &signals::cancel_flag(),
            )?;
            return self.write(&kept.text(
                self.format.format,
                &machine,
                near.as_ref(),
                &output::style_of_file(colour),
            )?);
        }
        let (kept, ended) = if self.command.is_empty() {
            (self.adopt(processes, node, &machine, options)?, None)
        } else {
            let (kept, ended) = keep_command(&self.command, policy, node, &machine, options)?;
            (kept, Some(ended))
        };
        self.give(&machine, &kept, near.as_ref(), ended.clone(), colour)?;
        end_as(ended.as_ref())
    }

    fn processes(&self) -> Result<Vec<OpenProcess>, Failure> {
        let open = |&pid: &i32| {
            OpenProcess::open(pid)
                .map_err(|_| failure(KeeperError::NoProcess { pid, ended: false }))
        };
        self.pid.iter().map(open).collect()
    }

    fn policy(&self) -> Result<Option<MemoryPolicy>, Failure> {
        let policy = match self.memory {
            Some(MemoryArg::Preferred) => MemoryPolicy::Preferred,
            Some(MemoryArg::Bind) => MemoryPolicy::Bind,
            Some(MemoryArg::Interleave) => MemoryPolicy::Interleave,
            _ => return Ok(None),
        };
        if self.command.is_empty() {
            return Err(input!(
                "--memory preferred, bind and interleave are for COMMAND: only a process itself can set its memory policy \
                 (set_mempolicy(2)). For one that runs already use --memory follow, which moves its pages"
            ));
        }
        Ok(Some(policy))
    }

    fn home(&self, machine: &Machine) -> Result<(NodeId, Option<Home>), Failure> {
        let home = match &self.near {
            Some(device) => Some(near::find(machine, std::path::Path::new("/sys"), device)),
            None if self.near_visible_gpu => {
                Some(near::of_visible_gpus(machine, &Visibility::HERE))
            }
            None => None,
        };
        if let Some(home) = home.transpose().map_err(Failure::input)? {
            return Ok((home.node, Some(home)));
        }
        let node = NodeId(self.node.unwrap_or_default());
        near::node(machine, node)
            .map(|node| (node, None))
            .map_err(Failure::input)
    }

    fn limit(&self) -> Result<Option<Duration>, Failure> {
        let seconds = self.seconds.map(Duration::try_from_secs_f64).transpose();
        seconds.context("--seconds").map_err(Failure::input)
    }

    /// Until all have ended, the time is over, or Ctrl-C.
    fn adopt(
        &self,
        processes: Vec<OpenProcess>,
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<KeeperReport, Failure> {
        let seconds = self.limit()?;
        let cancel = signals::cancel_flag();
        let keeper = Keeper::start(Targets::Processes(processes), node, machine, options)
            .map_err(failure)?;
        wait_while(|| !keeper.is_idle(), seconds, &cancel);
        keeper.stop().map_err(failure)
    }

    fn give(
        &self,
        machine: &Machine,
        kept: &KeeperReport,
        near: Option<&Home>,
        command: Option<Ended>,
        colour: Colour,
    ) -> Outcome {
        let text = match self.format.format {
            Format::Json => {
                output::json(
                    "prefer/1",
                    Some(&machine.origin),
                    &PreferAnswer {
                        near,
                        kept,
                        command,
                    },
                )? + "\n"
            }
            Format::Table => {
                let style = output::style_of_file(colour);
                let near = near.map(ToString::to_string);
                nearfar_report::prefer::document(
                    kept,
                    near.as_deref(),
                    machine.origin.emulation.as_ref(),
                )
                .to_text(&style)
            }
        };
        self.write(&text)
    }

    fn write(&self, text: &str) -> Outcome {
        match &self.output {
            Some(file) => output::write_answer(file, text),
            None => {
                output::say_part!("{text}");
                Ok(())
            }
        }
    }
}

/// Between two looks at Ctrl-C, the clock and whether anybody is left.
const LOOK: Duration = Duration::from_millis(250);

/// Until it is not so any more, the time is over, or Ctrl-C.
fn wait_while(is_so: impl Fn() -> bool, limit: Option<Duration>, cancel: &AtomicBool) {
    let begun = Instant::now();
    while !cancel.load(Ordering::Relaxed) && is_so() {
        let left = limit.map_or(LOOK, |limit| limit.saturating_sub(begun.elapsed()));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// What was asked for wrongly, and what the system refused.
fn failure(error: KeeperError) -> Failure {
    match error {
        KeeperError::Node(_)
        | KeeperError::NoProcess { .. }
        | KeeperError::Elsewhere { .. }
        | KeeperError::NotByCpuset { .. }
        | KeeperError::Cgroup(
            CgroupError::NoHierarchy
            | CgroupError::NoSuchGroup { .. }
            | CgroupError::Root { .. }
            | CgroupError::Elsewhere { .. },
        ) => Failure::input(error),
        KeeperError::Spawn { program, reason } => Failure::not_started(program.as_ref(), reason),
        _ => Failure::refused(error),
    }
}

/// Runs it to its end. Ctrl-C is the command's affair, as often as it is typed: its terminal sends it to the command as
/// well. What is sent to this process alone (SIGTERM, SIGHUP) is handed on.
fn keep_command(
    words: &[OsString],
    policy: Option<MemoryPolicy>,
    node: NodeId,
    machine: &Machine,
    options: KeeperOptions,
) -> Result<(KeeperReport, Ended), Failure> {
    let Some((program, arguments)) = words.split_first() else {
        unreachable!("clap asks for a command")
    };
    let mut command = Command::new(program);
    command.args(arguments);
    // Before the command is there: neither its end nor a signal for it is missed.
    let signals = Signals::new([SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGHUP]);
    let mut signals = signals
        .context("waiting for signals")
        .map_err(Failure::refused)?;
    let (keeper, mut child) =
        Keeper::spawn(command, policy, node, machine, options).map_err(failure)?;
    let status = wait(&mut child, &mut signals)
        .context("waiting for the command")
        .map_err(Failure::refused)?;
    let kept = keeper.stop().map_err(failure)?;
    Ok((kept, ended(words, status)))
}

fn wait(child: &mut Child, signals: &mut Signals) -> std::io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    for signal in signals.forever() {
        match signal {
            SIGCHLD => {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
            }
            SIGTERM => hand_on(child, Signal::TERM),
            SIGHUP => hand_on(child, Signal::HUP),
            _ => {}
        }
    }
    child.wait()
}

fn hand_on(child: &Child, signal: Signal) {
    // Not waited for yet, so its number is still its own.
    let _ = kill_process(Pid::from_child(child), signal);
}

/// `--group` and what belongs to it.
#[derive(Args)]
struct KeptGroupArgs {
    /// Keep the tasks of this control group and of those below it, by its path as in /proc/PID/cgroup
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Keep the group through this instead of through its cpuset where that can be put back, else its threads
    #[arg(long, value_parser = one_of(MEANS), value_name = "MEANS", requires = "group")]
    through: Option<Through>,
}

/// What --through takes.
const MEANS: &[(&str, &str, Through)] = &[
    (
        "cpuset",
        "Its cpuset; an empty one is left with all CPUs",
        Through::Cpuset,
    ),
    (
        "threads",
        "The affinities of its threads, one by one",
        Through::Threads,
    ),
];

/// What was done to a group.
#[derive(Serialize)]
struct GroupKept {
    /// How the node was found, with --near.
    #[serde(skip_serializing_if = "Option::is_none")]
    near: Option<Home>,
    /// Its path below the root of its hierarchy.
    group: String,
    /// How it was kept, in a sentence.
    how: String,
    /// What was done.
    kept: KeptGroupReport,
}

impl GroupKept {
    /// The report.
    fn text(
        mut self,
        format: Format,
        machine: &Machine,
        near: Option<&Home>,
        style: &Style,
    ) -> Result<String, Failure> {
        self.near = near.cloned();
        let near = near.map(ToString::to_string);
        let near = near.as_deref();
        Ok(match (format, &self.kept) {
            (Format::Json, _) => {
                output::json("prefer-group/1", Some(&machine.origin), &self)? + "\n"
            }
            (Format::Table, KeptGroupReport::Cpuset(report)) => {
                let emulation = machine.origin.emulation.as_ref();
                nearfar_report::prefer::group(&self.group, &self.how, near, report, emulation)
                    .to_text(style)
            }
            (Format::Table, KeptGroupReport::Threads(report)) => {
                let how = format!("control group {}, {}\n", self.group, self.how);
                how + &nearfar_report::prefer::document(
                    report,
                    near,
                    machine.origin.emulation.as_ref(),
                )
                .to_text(style)
            }
        })
    }
}

/// Keeps a group until the time is over, Ctrl-C, or it can be kept no longer.
fn keep_group(
    name: &str,
    arguments: &KeptGroupArgs,
    node: NodeId,
    machine: &Machine,
    options: KeeperOptions,
    limit: Option<Duration>,
    cancel: &AtomicBool,
) -> Result<GroupKept, Failure> {
    let group = Group::find(name).map_err(|error| failure(error.into()))?;
    let keeper =
        KeptGroup::start(&group, node, machine, arguments.through, options).map_err(failure)?;
    let mut how = keeper.how();
    // A group that is gone fills no more: the kernel lets only an empty one go.
    let is_there = || group.directory().is_dir();
    wait_while(|| keeper.is_running() && is_there(), limit, cancel);
    if matches!(keeper, KeptGroup::Threads { .. }) && !is_there() {
        how += "; ended before it was stopped: the group is gone";
    }
    let kept = keeper.stop().map_err(failure)?;
    Ok(GroupKept {
        near: None,
        group: group.name().to_owned(),
        how,
        kept,
    })
}

/// Keep the tasks that a configuration file names on their preferred nodes, until it is ended
///
/// SIGHUP makes it read the file again; a file with a fault changes nothing. SIGTERM and Ctrl-C end it and give every task
/// back the CPUs it had. What happens is said on standard error.
#[derive(Args)]
#[command(
    after_long_help = "The file holds rules, of which the first that matches a task has it:

  scan_seconds = 0.5             # how often to look for new tasks

  [[prefer]]
  name = \"cache\"
  node = 1                       # or near = \"eth0\": the node of a device
  command = \"redis-server*\"      # the task's name or its executable's
  unit = \"redis@*.service\"       # and, or instead: cgroup = \"/system.slice/...\"
  memory = \"untouched\"           # or \"follow\": its pages are moved to the node

Examples:
  nearfar prefer service --check
  nearfar prefer service --config ./prefer.toml"
)]
struct Service {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/nearfar/prefer.toml")]
    config: PathBuf,
    /// Check the configuration and show which tasks it would have now; change nothing
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    format: FormatArgs,
}

impl Service {
    /// Serves until it is ended, or checks.
    fn run(self, colour: Colour) -> Outcome {
        if self.check {
            return self.show(colour);
        }
        let control = control().map_err(Failure::refused)?;
        let machine = || Ok(nearfar_sources::read(&Request::live(want()))?);
        service::run(&self.config, &control, &Surroundings { machine: &machine })
            .map_err(service_failure)
    }

    fn show(&self, colour: Colour) -> Outcome {
        let config = service::load(&self.config).map_err(service_failure)?;
        let machine = read_live(want())?;
        let rules = service::check(&config, &machine).map_err(service_failure)?;
        let document = || nearfar_report::prefer::check(&rules);
        let (origin, answer) = (Some(&machine.origin), under("rules", &rules));
        self.format
            .print(colour, "prefer-service-check/1", origin, &answer, document)?;
        // The service would wait for them; who checks wants to know.
        match rules.iter().find(|rule| rule.node.is_none()) {
            Some(rule) => Err(input!(
                "{}:{}: {}: {}",
                self.config.display(),
                rule.line,
                rule.rule,
                rule.located
            )),
            None => Ok(()),
        }
    }
}

fn want() -> Want {
    Want {
        devices: true,
        ..Want::placement()
    }
}

/// Flags that signals set, and a pipe they are heard by while the service waits. A second Ctrl-C or SIGTERM, 200 ms later
/// or more, ends at once: what is to be put back is on record.
fn control() -> std::io::Result<Control> {
    let (stop, reload) = (Arc::default(), Arc::default());
    signals::cancel_on(&[SIGINT, SIGTERM], &stop)?;
    signal_hook::flag::register(SIGHUP, Arc::clone(&reload))?;
    let wake = signals::pipe_of(&[SIGINT, SIGTERM, SIGHUP])?;
    Ok(Control { stop, reload, wake })
}

fn service_failure(error: ServiceError) -> Failure {
    match error {
        ServiceError::Config(_) | ServiceError::Unreadable { .. } => Failure::input(error),
        _ => Failure::refused(error),
    }
}
