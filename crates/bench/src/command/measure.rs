//! One run of the command: started where the cell says, let go, watched until it ends.
//!
//! ```text
//! setup_cell   prepare, drop caches   sh -c 'read -r begin && exec COMMAND', on its CPUs, with its memory policy
//! run          begin ── looks ── end                       or, with --load: begin ── ready ── load ── end of the load
//! teardown     SIGTERM for a server   cleanup
//! ```
//!
//! The shell is there before time counts, and is the command from `exec` on: starting a process is not part of a run.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, io};

use nearfar_experiment::{BoxError, Change, Column, Experiment, Resources, RunPlan, Settled};
use nearfar_machine::shell_command;
use nearfar_proc::affinity::Confinement;
use nearfar_proc::memory_policy::PreparedPolicy;
use nearfar_proc::{child, error_text, program, tasks};
use nearfar_runs::{Better, Cell, Metric, MetricValue, metric_name};
use nearfar_trace::counters::CountedFrom;
use regex_lite::Regex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

use super::events::Events;
use super::observe::Observer;
use super::placement::{NUMA_BALANCING, Placement, Usable, balancing};
use super::{DECLARATION, HUGE_PAGES, Parameters, ProgramFile, Sample};
use crate::conditions::{Ticks, cpu_seconds, seconds_of, usage_of};
use crate::program::{KeptOutput, Program, last_number};
use crate::registry::{Arguments, Context, Made, RunError};

/// A server may take so long to be ready, and to end.
const READY_WITHIN: Duration = Duration::from_secs(120);
const END_WITHIN: Duration = Duration::from_secs(10);
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// Between two looks at the cancel flag.
const CANCEL_CHECK: Duration = Duration::from_millis(100);
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// A number in what a run prints.
enum PrintedFigure {
    /// The first group of the last match.
    Match(Regex),
    /// A JSON pointer (RFC 6901).
    Pointer(String),
}

impl PrintedFigure {
    fn of(&self, output: &str) -> Result<f64, String> {
        match self {
            Self::Match(regex) => last_number(regex, output).ok_or_else(|| {
                let regex = regex.as_str();
                format!("no plain number in the output matches --regex {regex:?}")
            }),
            Self::Pointer(pointer) => {
                let json: Value = serde_json::from_str(output).map_err(|error| {
                    format!("--pointer {pointer}: the output is not JSON: {error}")
                })?;
                let found = json.pointer(pointer);
                // What is compared by ratios is not negative.
                let number = found.and_then(Value::as_f64).filter(|it| *it >= 0.0);
                number.ok_or_else(|| match found {
                    Some(_) => {
                        format!("--pointer {pointer}: not a number of 0 or more in the output")
                    }
                    None => format!("--pointer {pointer}: the output has no such value"),
                })
            }
        }
    }
}

/// How it is known that a server is ready.
enum ReadySign {
    /// It accepts connections.
    Port(u16),
    /// Its output.
    Match(Regex),
}

/// The experiment.
pub(super) struct CommandExperiment<'a> {
    parameters: Parameters,
    plan: RunPlan,
    usable: Usable<'a>,
    placements: BTreeMap<Cell, Placement>,
    figure: Option<PrintedFigure>,
    ready: Option<ReadySign>,
    events: Events,
    cancel: &'a AtomicBool,
    /// Of the cell.
    program: Option<Program>,
    load: Option<Program>,
}

/// Makes the experiment that was asked for.
///
/// # Errors
/// A program that is not there, a placement that the machine does not have, an expression that is none.
pub(super) fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<CommandExperiment<'a>>, RunError> {
    let mut parameters: Parameters = arguments.parameters()?;
    let regex = |name: &str, text: &String| {
        Regex::new(text).map_err(|error| arguments.wrong(name, error.to_string()))
    };
    let figure = match (&parameters.regex, &parameters.pointer) {
        (Some(text), _) => {
            let found = regex("regex", text)?;
            if found.captures_len() < 2 {
                let reason = "expected a group for the number, such as 'rate: ([0-9.]+)'";
                return Err(arguments.wrong("regex", reason.to_owned()).into());
            }
            Some(PrintedFigure::Match(found))
        }
        (None, Some(pointer)) => Some(PrintedFigure::Pointer(pointer.clone())),
        (None, None) if parameters.better.is_some() => {
            let reason = "it takes --regex or --pointer: a time is better when it is lower";
            return Err(arguments.wrong("better", reason.to_owned()).into());
        }
        (None, None) => None,
    };
    let ready = match &parameters.ready {
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => match text.parse() {
            Ok(port @ 1..) => Some(ReadySign::Port(port)),
            _ => {
                let reason = "expected a port of 1 to 65535, or an expression";
                return Err(arguments.wrong("ready", reason.to_owned()).into());
            }
        },
        Some(text) => Some(ReadySign::Match(regex("ready", text)?)),
        None => None,
    };
    let events = Events::of(parameters.count.as_deref());
    let events = events.map_err(|reason| arguments.wrong("count", reason))?;
    let target = |reason: String| RunError::Target(reason.into());
    let program = parameters
        .command
        .first()
        .ok_or_else(|| target("COMMAND is missing".to_owned()))?;
    let file = program::find(program).map_err(target)?;
    parameters.file = Some(ProgramFile::of(file));
    let near = match &parameters.near {
        Some(device) => {
            let found = nearfar_prefer::near::find(context.machine, "/sys".as_ref(), device);
            Some(
                found
                    .map_err(|error| arguments.wrong("near", error.to_string()))?
                    .node,
            )
        }
        None => None,
    };
    let usable = Usable::of(context.machine, context.allowed_cpus(), near);
    let (plan, notes) = super::plan(arguments, &parameters, &usable);
    if plan.cells.is_empty() {
        return Err(target(notes.join("; ")));
    }
    let mut placements = BTreeMap::new();
    for cell in &plan.cells {
        let placement = usable.placement(cell);
        let placement = placement.map_err(|reason| target(format!("{cell}: {reason}")))?;
        placements.insert(cell.clone(), placement);
    }
    Ok(Made {
        experiment: CommandExperiment {
            parameters,
            plan,
            usable,
            placements,
            figure,
            ready,
            events,
            cancel: context.cancel,
            program: None,
            load: None,
        },
        warnings: Vec::new(),
        notes,
        sample: None,
    })
}

/// A shell with this script.
fn shell(script: &str, stdin: Stdio) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(stdin);
    shell
}

/// Runs a shell's command to its end; what it leaves in the background ends with the sample.
///
/// # Errors
/// When it fails, with what it says.
fn run_shell(
    option: &str,
    command: &str,
    resources: &mut Resources,
    cancel: &AtomicBool,
) -> Result<(), BoxError> {
    let directory = resources.temporary_directory()?;
    let shell = shell(command, Stdio::null());
    let mut program = Program::start(shell, KeptOutput::Together, &directory, resources)?;
    wait(&mut program, cancel, None)?;
    match program.ended()? {
        Some(ended) if ended.is_success => Ok(()),
        Some(ended) => Err(format!("--{option} {command:?} {}", ended.what).into()),
        None => Err(format!("--{option} {command:?} goes on").into()),
    }
}

/// Waits until a program has ended, and looks at another one, or the same, meanwhile.
///
/// # Errors
/// When `cancel` is set.
fn wait(
    program: &mut Program,
    cancel: &AtomicBool,
    mut observer: Option<&mut Observer<'_>>,
) -> Result<(), BoxError> {
    let pid = program.process.pid();
    let pid = Pid::from_raw(pid).ok_or("a program has number 0")?;
    // It is a child that nothing has waited for, so its number is still its own.
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let mut next = observer
        .as_ref()
        .map(|it| Instant::now() + it.until_next_look());
    loop {
        let left = next.map_or(CANCEL_CHECK, |next| {
            next.saturating_duration_since(Instant::now())
        });
        let left = left.min(CANCEL_CHECK);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if cancel.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        if let (Some(observer), Some(at)) = (&mut observer, next)
            && Instant::now() >= at
        {
            observer.look();
            next = Some(Instant::now() + observer.until_next_look());
        }
    }
}

/// Ends a server, which writes its files and removes its sockets; what is left of it is killed with its lease.
///
/// # Errors
/// The system's answer, or that it does not end.
fn end(program: &mut Program) -> Result<(), BoxError> {
    let pid = Pid::from_raw(program.process.pid()).ok_or("a program has number 0")?;
    let until = Instant::now() + END_WITHIN;
    if program.ended()?.is_none() {
        // It may have ended since.
        let _ = kill_process(pid, Signal::TERM);
    }
    while program.ended()?.is_none() {
        if Instant::now() > until {
            let limit = END_WITHIN.as_secs();
            return Err(format!(
                "the server did not end within {limit} s of SIGTERM, and was killed"
            )
            .into());
        }
        sleep(CHECK_EVERY);
    }
    Ok(())
}

fn is_listening(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, CANCEL_CHECK).is_ok()
}

impl CommandExperiment<'_> {
    fn placement(&self, cell: &Cell) -> Result<&Placement, BoxError> {
        let found = self.placements.get(cell);
        found.ok_or_else(|| format!("{cell} is no cell of this run").into())
    }

    /// Starts the command where the cell says; it begins with a line of its standard input.
    fn start(&self, cell: &Cell, resources: &mut Resources) -> Result<Program, BoxError> {
        let placement = self.placement(cell)?;
        let directory = resources.temporary_directory()?;
        let script = r#"read -r begin && exec "$@" </dev/null"#;
        let mut shell = shell(script, Stdio::piped());
        shell.arg("sh").args(&self.parameters.command);
        let confine = placement.cpus.as_ref().map(Confinement::to);
        let policy = placement
            .memory
            .as_ref()
            .map(|(policy, nodes)| policy.on(nodes));
        let without_huge_pages = cell.text(HUGE_PAGES) == "never";
        // SAFETY: between fork and exec only system calls are made, on memory that was prepared before.
        unsafe {
            shell.pre_exec(move || {
                confine
                    .as_ref()
                    .map_or(Ok(()), Confinement::calling_thread)?;
                policy
                    .as_ref()
                    .map_or(Ok(()), PreparedPolicy::calling_thread)?;
                match without_huge_pages && libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0 {
                    true => Err(io::Error::last_os_error()),
                    false => Ok(()),
                }
            });
        }
        let kept = match (&self.ready, &self.parameters.load) {
            (Some(ReadySign::Match(_)), _) => KeptOutput::Together,
            (_, None) if self.figure.is_some() => KeptOutput::Apart,
            _ => KeptOutput::Errors,
        };
        let started = Program::start(shell, kept, &directory, resources);
        started.map_err(|error| format!("cannot start the command with {cell}: {error}").into())
    }

    /// Waits until a server can be loaded.
    fn wait_until_ready(&self, program: &mut Program) -> Result<(), BoxError> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            if let Some(ended) = program.ended()? {
                return Err(format!("the server {}", ended.what).into());
            }
            let is_ready = match &self.ready {
                Some(ReadySign::Port(port)) => is_listening(*port),
                Some(ReadySign::Match(regex)) => regex.is_match(&program.output()?),
                None => true,
            };
            if is_ready {
                return Ok(());
            }
            if self.cancel.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if Instant::now() > until {
                let (limit, lines) = (READY_WITHIN.as_secs(), program.last_lines());
                return Err(format!("the server is not ready within {limit} s{lines}").into());
            }
            sleep(CHECK_EVERY);
        }
    }

    /// The run, from the command's first instruction to its end, or of the load.
    fn measured(
        &self,
        cell: &Cell,
        server: &mut Program,
        load: Option<&mut Program>,
        cancel: &AtomicBool,
    ) -> Result<Sample, BoxError> {
        let placement = self.placement(cell)?.clone();
        let pid = server.process.pid();
        // The shell that waits has used some time.
        let of_shell = tasks::run_time(pid).map_or(0.0, |it| it.run_ns as f64 / 1e9);
        let (ticks, before) = (Ticks::now(), cpu_seconds(libc::RUSAGE_CHILDREN) + of_shell);
        let system_s = || seconds_of(usage_of(libc::RUSAGE_CHILDREN).ru_stime);
        let system_before = system_s();
        let mut observer =
            Observer::new(pid, &placement, &self.usable.allowed, self.usable.machine);
        if load.is_some() {
            self.events.begin()?;
        }
        let begun = Instant::now();
        let (measured, name) = match load {
            Some(load) => {
                load.begin()?;
                // What the server did until now is not part of the run.
                observer.look();
                observer.forget_times();
                wait(load, cancel, Some(&mut observer))?;
                (
                    load,
                    format!(
                        "--load {:?}",
                        self.parameters.load.as_deref().unwrap_or_default()
                    ),
                )
            }
            None => {
                server.begin()?;
                wait(server, cancel, Some(&mut observer))?;
                (&mut *server, shell_command(&self.parameters.command))
            }
        };
        let elapsed_s = begun.elapsed().as_secs_f64();
        let ended = measured.ended()?.ok_or("it goes on")?;
        if !ended.is_success && !self.parameters.ignore_failure {
            return Err(format!("{name} {}", ended.what).into());
        }
        let counts = self.events.counts();
        let output = match self.figure {
            Some(_) => measured.output()?,
            None => String::new(),
        };
        let figure = self.figure.as_ref().map(|figure| figure.of(&output));
        let is_server = self.parameters.load.is_some();
        if is_server {
            observer.look();
            if let Some(ended) = server.ended()? {
                return Err(format!("the server {} before its load did", ended.what).into());
            }
        }
        let left = observer.left();
        let left = (!is_server && left > 0).then(|| {
            format!(
                "{left} processes of the command went on after it had ended, and were not measured"
            )
        });
        let (seen, counts) = (observer.finish()?, counts?);
        let stolen = Ticks::now().stolen_since(&ticks, self.usable.allowed.iter());
        let cpu_s = match is_server {
            true => seen.cpu_s.values().sum(),
            false => (cpu_seconds(libc::RUSAGE_CHILDREN) - before).max(0.0),
        };
        let system_s = (!is_server).then(|| (system_s() - system_before).min(cpu_s));
        Ok(Sample {
            elapsed_s,
            cpu_s,
            system_s,
            figure: figure.transpose()?,
            is_higher_better: self.parameters.better.as_deref() == Some("higher"),
            counts: counts.known(),
            seen,
            commands: placement.commands(&self.parameters.command, cell),
            warnings: stolen
                .into_iter()
                .map(|it| it.to_string())
                .chain(left)
                .chain(counts.warning())
                .collect(),
        })
    }
}

impl Experiment for CommandExperiment<'_> {
    type Sample = Sample;

    fn name(&self) -> &str {
        DECLARATION.name
    }

    fn title(&self) -> String {
        let command = shell_command(&self.parameters.command);
        match &self.parameters.load {
            Some(load) => format!("{command}, under {load}"),
            None => command,
        }
    }

    fn plan(&self) -> RunPlan {
        self.plan.clone()
    }

    fn settled(&self) -> Option<Settled> {
        self.parameters.until_clear.then_some(super::settled)
    }

    fn columns() -> Vec<Column<Sample>> {
        super::columns()
    }

    fn further(sample: &Sample) -> Vec<(Metric, MetricValue)> {
        let metric = |value: f64| (super::figure_metric(sample.is_higher_better), value.into());
        let counted = |(event, count): &(String, f64)| {
            let metric = Metric::real(metric_name(event), "", Better::Lower);
            (metric, (*count).into())
        };
        let figure = sample.figure.map(metric).into_iter();
        figure.chain(sample.counts.iter().map(counted)).collect()
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let change = |value| Change::sysctl(NUMA_BALANCING, value);
        balancing(cell).map(change).into_iter().collect()
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let first = self.plan.cells.first().cloned().unwrap_or_default();
        // A server does not end by itself, and is loaded only once it is measured.
        let runs = match &self.parameters.load {
            Some(_) => 0,
            None => self.parameters.warmup,
        };
        for _ in 0..runs {
            let mut program = self.start(&first, resources)?;
            program.begin()?;
            wait(&mut program, self.cancel, None)?;
            let ended = program.ended()?.ok_or("the warm-up goes on")?;
            if !ended.is_success && !self.parameters.ignore_failure {
                let command = shell_command(&self.parameters.command);
                return Err(format!("the warm-up of {command} {}", ended.what).into());
            }
        }
        Ok(())
    }

    fn setup_cell(&mut self, cell: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        if let Some(prepare) = &self.parameters.prepare {
            run_shell("prepare", prepare, resources, self.cancel)?;
        }
        if self.parameters.drop_caches {
            rustix::fs::sync();
            let dropped = fs::write(DROP_CACHES, "3\n");
            dropped.map_err(|error| format!("{DROP_CACHES}: {}", error_text(&error)))?;
        }
        if let Some(ReadySign::Port(port)) = self.ready
            && is_listening(port)
        {
            return Err(
                format!("another program listens on port {port}, and would be measured").into(),
            );
        }
        let mut program = self.start(cell, resources)?;
        let pid = program.process.pid();
        let from = match self.parameters.load {
            Some(_) => CountedFrom::Begin,
            None => CountedFrom::Exec,
        };
        self.events.open(pid, from)?;
        if let Some(load) = &self.parameters.load {
            program.begin()?;
            self.wait_until_ready(&mut program)?;
            let directory = resources.temporary_directory()?;
            let script = format!("read -r begin && {{ {load}\n}} </dev/null");
            let shell = shell(&script, Stdio::piped());
            let load = Program::start(shell, KeptOutput::Apart, &directory, resources)?;
            self.load = Some(load);
        }
        self.program = Some(program);
        Ok(())
    }

    fn teardown_cell(&mut self, _: &Cell) -> Result<(), BoxError> {
        self.load = None;
        if let Some(mut program) = self
            .program
            .take()
            .filter(|_| self.parameters.load.is_some())
        {
            end(&mut program)?;
        }
        match &self.parameters.cleanup {
            Some(cleanup) => {
                let said = child::output("sh", &["-c", cleanup]);
                said.map(drop)
                    .map_err(|error| format!("--cleanup: {error}").into())
            }
            None => Ok(()),
        }
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        let mut program = self.program.take().ok_or("the command was not started")?;
        let mut load = self.load.take();
        let sample = self.measured(cell, &mut program, load.as_mut(), cancel);
        self.program = Some(program);
        sample
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings.clone()
    }
}
