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
use std::{env, fs, io};

use nearfar_experiment::{BoxError, Change, Column, Experiment, Resources, RunPlan};
use nearfar_machine::shell_command;
use nearfar_proc::affinity::Confinement;
use nearfar_proc::memory_policy::PreparedPolicy;
use nearfar_proc::{child, error_text};
use nearfar_runs::{Cell, Metric, MetricValue};
use regex_lite::Regex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

use super::observe::Observer;
use super::placement::{Placement, Usable};
use super::{BALANCING, DECLARATION, HUGE_PAGES, KEEP, Parameters, Sample};
use crate::conditions::{Ticks, usage_of};
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
                let number = found.and_then(Value::as_f64);
                number.ok_or_else(|| match found {
                    Some(_) => format!("--pointer {pointer}: not a number in the output"),
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
    let parameters: Parameters = arguments.parameters()?;
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
        (None, None) => None,
    };
    let ready = match &parameters.ready {
        Some(text) => Some(match text.parse() {
            Ok(port) => ReadySign::Port(port),
            Err(_) => ReadySign::Match(regex("ready", text)?),
        }),
        None => None,
    };
    let program = parameters.command.first();
    let checked = program.map_or(Err("COMMAND is missing".to_owned()), |it| check_program(it));
    checked.map_err(|reason| RunError::Target(reason.into()))?;
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
    let usable = Usable {
        machine: context.machine,
        allowed: context.allowed_cpus(),
        near,
    };
    let (plan, notes) = super::plan(arguments, &parameters, &usable);
    let mut placements = BTreeMap::new();
    for cell in &plan.cells {
        let placement = usable.of(cell);
        let placement =
            placement.map_err(|reason| RunError::Target(format!("{cell}: {reason}").into()))?;
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
            program: None,
            load: None,
        },
        warnings: Vec::new(),
        notes,
        sample: None,
    })
}

/// That a program is there, as execvp(3) looks for it.
///
/// # Errors
/// That it is not.
fn check_program(name: &str) -> Result<(), String> {
    let is_there = match name.contains('/') {
        true => fs::metadata(name).is_ok_and(|it| it.is_file()),
        false => {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).any(|directory| directory.join(name).is_file())
        }
    };
    match is_there {
        true => Ok(()),
        false => Err(format!("cannot run {name}: there is no such program")),
    }
}

/// Runs a shell's command to its end.
///
/// # Errors
/// When it fails, with what it says.
fn run_shell(option: &str, command: &str) -> Result<(), BoxError> {
    let said = child::output("sh", &["-c", command]);
    said.map(drop)
        .map_err(|error| format!("--{option}: {error}").into())
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
    let pid = i32::try_from(program.process.pid())?;
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
/// The system's answer.
fn end(program: &mut Program) -> Result<(), BoxError> {
    let pid =
        Pid::from_raw(i32::try_from(program.process.pid())?).ok_or("a program has number 0")?;
    let until = Instant::now() + END_WITHIN;
    if program.ended()?.is_none() {
        // It may have ended since.
        let _ = kill_process(pid, Signal::TERM);
    }
    while program.ended()?.is_none() && Instant::now() < until {
        sleep(CHECK_EVERY);
    }
    Ok(())
}

/// CPU time of all children that have ended, in seconds.
fn children_s() -> f64 {
    let usage = usage_of(libc::RUSAGE_CHILDREN);
    let times = [usage.ru_utime, usage.ru_stime];
    times
        .map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
        .iter()
        .sum()
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
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"read -r begin && exec "$@" </dev/null"#, "sh"]);
        shell.args(&self.parameters.command).stdin(Stdio::piped());
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
        let is_read = match &self.ready {
            Some(ready) => matches!(ready, ReadySign::Match(_)),
            None => self.figure.is_some() && self.parameters.load.is_none(),
        };
        let kept = if is_read {
            KeptOutput::All
        } else {
            KeptOutput::Errors
        };
        let started = Program::start(shell, kept, &directory, resources);
        started.map_err(|error| format!("cannot start the command with {cell}: {error}").into())
    }

    /// Waits until a server can be loaded.
    fn wait_until_ready(&self, program: &mut Program, cancel: &AtomicBool) -> Result<(), BoxError> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            if let Some(ended) = program.ended()? {
                return Err(format!("the server {}", ended.what).into());
            }
            let is_ready = match &self.ready {
                Some(ReadySign::Port(port)) => {
                    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                    TcpStream::connect_timeout(&address, CANCEL_CHECK).is_ok()
                }
                Some(ReadySign::Match(regex)) => regex.is_match(&program.output()?),
                None => true,
            };
            if is_ready {
                return Ok(());
            }
            if cancel.load(Ordering::Relaxed) {
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
        let pid = i32::try_from(server.process.pid())?;
        let (ticks, before) = (Ticks::now(), children_s());
        let mut observer =
            Observer::new(pid, &placement, &self.usable.allowed, self.usable.machine);
        let begun = Instant::now();
        let is_server = load.is_some();
        let measured = match load {
            Some(load) => {
                load.begin()?;
                // What the server did until now is not part of the run.
                observer.look();
                observer.forget_times();
                wait(load, cancel, Some(&mut observer))?;
                load
            }
            None => {
                server.begin()?;
                wait(server, cancel, Some(&mut observer))?;
                &mut *server
            }
        };
        let elapsed_s = begun.elapsed().as_secs_f64();
        if is_server {
            observer.look();
        }
        let ended = measured.ended()?.ok_or("it goes on")?;
        if !ended.is_success && !self.parameters.ignore_failure {
            return Err(
                format!("{} {}", shell_command(&self.parameters.command), ended.what).into(),
            );
        }
        let output = measured.output()?;
        let figure = self.figure.as_ref().map(|figure| figure.of(&output));
        let seen = observer.finish()?;
        let stolen = Ticks::now().stolen_since(&ticks, self.usable.allowed.iter());
        Ok(Sample {
            elapsed_s,
            cpu_s: match is_server {
                true => seen.cpu_s.values().sum(),
                false => children_s() - before,
            },
            figure: figure.transpose()?,
            is_higher_better: self.parameters.better.as_deref() == Some("higher"),
            seen,
            commands: placement.commands(&self.parameters.command),
            warnings: stolen.into_iter().map(|it| it.to_string()).collect(),
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

    fn columns() -> Vec<Column<Sample>> {
        super::columns()
    }

    fn further(sample: &Sample) -> Vec<(Metric, MetricValue)> {
        let metric = |value: f64| (super::figure_metric(sample.is_higher_better), value.into());
        sample.figure.map(metric).into_iter().collect()
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let value = match cell.text(BALANCING).as_str() {
            KEEP => return Vec::new(),
            "on" => "1",
            _ => "0",
        };
        vec![Change::sysctl("kernel.numa_balancing", value)]
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let never = AtomicBool::new(false);
        let first = self.plan.cells.first().cloned().unwrap_or_default();
        // A server does not end by itself, and is loaded only once it is measured.
        let runs = match &self.parameters.load {
            Some(_) => 0,
            None => self.parameters.warmup,
        };
        for _ in 0..runs {
            let mut program = self.start(&first, resources)?;
            program.begin()?;
            wait(&mut program, &never, None)?;
            program.ended()?;
        }
        Ok(())
    }

    fn setup_cell(&mut self, cell: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        let never = AtomicBool::new(false);
        if let Some(prepare) = &self.parameters.prepare {
            run_shell("prepare", prepare)?;
        }
        if self.parameters.drop_caches {
            rustix::fs::sync();
            let dropped = fs::write(DROP_CACHES, "3\n");
            dropped.map_err(|error| format!("{DROP_CACHES}: {}", error_text(&error)))?;
        }
        let mut program = self.start(cell, resources)?;
        if let Some(load) = &self.parameters.load {
            program.begin()?;
            self.wait_until_ready(&mut program, &never)?;
            let directory = resources.temporary_directory()?;
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("read -r begin && {{ {load}\n}}")]);
            shell.stdin(Stdio::piped());
            self.load = Some(Program::start(
                shell,
                KeptOutput::All,
                &directory,
                resources,
            )?);
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
            Some(cleanup) => run_shell("cleanup", cleanup),
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
