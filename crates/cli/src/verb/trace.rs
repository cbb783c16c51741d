//! `nearfar trace`: who did what where, as the kernel saw it.

mod samples;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{ArgGroup, Args, Subcommand};
use nearfar_experiment::LabHost;
use nearfar_experiment::traced::TRACE_SOCKET;
use nearfar_machine::{Emulation, Known, Machine, Origin};
use nearfar_sources::Want;
use nearfar_trace::kernel::{self, KernelActivity};
use nearfar_trace::lines;
use nearfar_trace::locks::{self, WaitedLocks, Waits};
use nearfar_trace::migrations::{self, Moves, Sharing};
use nearfar_trace::numa_balancing::MachineCounts;
use nearfar_trace::nvme::{self, Commands};
use nearfar_trace::records::Sample;
use nearfar_trace::symbols::Symbols;
use nearfar_trace::tasks::{self, Thread};
use nearfar_trace::{Ended, Mapping, Ordered, Plan, Session, TraceError, Traced, Tracefs, now_ns};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs, read_live, seconds};
use crate::failure::{Failure, Outcome, input, refused};
use crate::{output, signals};
use samples::{Counting, Samples};

/// Trace NVMe commands, migrations, locks, transfers of lines, or all
#[derive(Subcommand)]
#[command(
    after_long_help = "Examples:\n  nearfar trace nvme --seconds 10\n  nearfar trace nvme --subsystem nvme-subsys0 -- fio job.fio\n  \
                       nearfar trace migrations --pid 4711 --seconds 30\n  \
                       nearfar trace migrations --group system.slice/redis.service --seconds 30\n  \
                       nearfar trace migrations --output moves.json --format json -- ./probe\n  \
                       nearfar trace locks -- fio job.fio\n  nearfar trace kernel -- ./job"
)]
pub enum Trace {
    Nvme(Nvme),
    Migrations(Migrations),
    Locks(Locks),
    Lines(LineTrace),
    Kernel(KernelTrace),
}

/// How the answer is given.
#[derive(Args)]
struct AnswerArgs {
    #[command(flatten)]
    format: FormatArgs,
    /// Write the answer into this file, apart from what the command prints
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// How long the whole machine is traced, and how the answer is given.
#[derive(Args)]
struct MachineArgs {
    /// Stop after this long [default: until COMMAND ends or Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "command")]
    seconds: Option<f64>,
    #[command(flatten)]
    answer: AnswerArgs,
    /// Trace while this runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl MachineArgs {
    /// Starts the command, if there is one.
    fn start(&self, samples: Option<&Samples>) -> Result<Meanwhile, Failure> {
        Meanwhile::start(self.seconds, &self.command, samples)
    }
}

impl Trace {
    /// Traces, answers, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let (Self::Migrations(Migrations { answer, .. })
        | Self::Nvme(Nvme {
            machine: MachineArgs { answer, .. },
            ..
        })
        | Self::Locks(Locks {
            machine: MachineArgs { answer, .. },
        })
        | Self::Lines(LineTrace {
            machine: MachineArgs { answer, .. },
            ..
        })
        | Self::Kernel(KernelTrace {
            machine: MachineArgs { answer, .. },
        })) = &self;
        answer
            .output
            .as_deref()
            .map(output::can_write)
            .transpose()?;
        match self {
            Self::Nvme(verb) => verb.run(colour),
            Self::Migrations(verb) => verb.run(colour),
            Self::Locks(verb) => verb.run(colour),
            Self::Lines(verb) => verb.run(colour),
            Self::Kernel(verb) => verb.run(colour),
        }
    }
}

impl AnswerArgs {
    /// Prints the answer, then ends as the traced command did.
    fn give<T: Serialize>(
        &self,
        schema: &str,
        origin: &Origin,
        traced: &Traced<T>,
        colour: Colour,
        document: fn(&Traced<T>) -> nearfar_report::document::Document,
    ) -> Outcome {
        let style = match &self.output {
            Some(_) => output::style_of_file(colour),
            None => output::style(colour),
        };
        let text = match self.format.format {
            Format::Table => document(traced).to_text(&style),
            Format::Json => output::json(schema, Some(origin), traced)?,
        };
        match &self.output {
            Some(file) => output::write_answer(file, &text)?,
            None => output::print(&text)?,
        }
        end_as(traced.command.as_ref())
    }
}

/// Ends as a command did. As shells have it: with the code, or 128 and the signal.
pub(super) fn end_as(command: Option<&Ended>) -> Outcome {
    let code = command.map(|ended| {
        let of_signal = ended.signal.map(|signal| 128 + signal);
        u8::try_from(ended.exit_code.or(of_signal).unwrap_or(255)).unwrap_or(255)
    });
    match code {
        Some(code @ 1..) => Err(Failure::CommandEnded(code)),
        _ => Ok(()),
    }
}

/// How a command ended.
pub(super) fn ended(words: &[OsString], status: ExitStatus) -> Ended {
    let words = words.iter().map(|word| word.to_string_lossy().into_owned());
    Ended {
        command: words.collect(),
        exit_code: status.code(),
        signal: status.signal(),
    }
}

/// What the kernel does not permit, have or do.
fn refused(error: TraceError) -> Failure {
    Failure::refused(error)
}

/// Which CPU's NVMe commands which controller serves, and whether that is the nearest
///
/// Traces every NVMe command of the machine (kernel tracepoint nvme:nvme_setup_cmd) for some time, while a command runs, or
/// until Ctrl-C. Buffered writes are submitted by the kernel's own threads: use direct I/O to see your own. The exit code
/// is that of COMMAND.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar trace nvme --seconds 10\n  nearfar trace nvme --subsystem nvme-subsys0 \
                             -- taskset -c 2 dd if=/dev/nvme0n1 of=/dev/null iflag=direct bs=4k count=10000"
)]
pub struct Nvme {
    /// Only this subsystem, as the kernel names it
    #[arg(long, value_name = "NAME")]
    subsystem: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Nvme {
    /// Traces, answers, prints.
    fn run(self, colour: Colour) -> Outcome {
        let machine = read_live(Want {
            devices: true,
            ..Want::placement()
        })?;
        // A wrong name is said before anything runs.
        nvme::subsystems(&machine, self.subsystem.as_deref()).map_err(Failure::input)?;
        let tracefs = Tracefs::find().map_err(refused)?;
        let format = tracefs
            .tracepoint(nvme::SYSTEM, nvme::EVENT)
            .map_err(refused)?;
        let decoder = nvme::Decoder::new(&format).map_err(Failure::refused)?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &[(&format, None)],
            names: true,
            mappings: false,
            callers_of: None,
        };
        let mut session = Session::open(&plan).map_err(refused)?;
        session.enable().map_err(refused)?;
        let meanwhile = self.machine.start(None)?;
        let mut commands = Commands::new(decoder);
        let command = meanwhile.pass(&mut session, &mut |session| {
            session.drain(&mut |cpu, sample| commands.take(cpu, sample));
            commands.name(|pid| session.name_of(pid));
            true
        })?;
        let finished = session
            .finish(&mut |cpu, sample| commands.take(cpu, sample))
            .map_err(refused)?;
        commands.name(|pid| session.name_of(pid));
        let answer =
            nvme::answer(&commands, &machine, self.subsystem.as_deref()).map_err(Failure::input)?;
        let traced = Traced::new(finished, &machine, command, answer);
        self.machine.answer.give(
            "trace-nvme/1",
            &machine.origin,
            &traced,
            colour,
            nearfar_report::trace::nvme,
        )
    }
}

/// How often traced tasks are looked for whose end was not seen.
const LOOK_FOR_TASKS: Duration = Duration::from_secs(1);

type Tracepoint<'a> = (&'a nearfar_trace::format::Format, Option<String>);

/// Every migration of some tasks: within a core, a last-level cache, a node, or across nodes
///
/// Follows the processes, their threads and what they make (kernel tracepoint sched:sched_migrate_task on every CPU), until
/// they have ended, the time is over or Ctrl-C. The exit code is that of COMMAND.
#[derive(Args)]
#[command(group = ArgGroup::new("whom").required(true).args(["pid", "group", "command"]))]
#[command(
    after_long_help = "Examples:\n  nearfar trace migrations --pid 4711 --seconds 30\n  \
                             nearfar trace migrations --group system.slice/redis.service --seconds 30\n  \
                             nearfar trace migrations -- ./probe --counts 100"
)]
pub struct Migrations {
    /// Trace this process (may be repeated)
    #[arg(long, value_name = "PID", value_parser = crate::args::pid)]
    pid: Vec<i32>,
    /// Trace the tasks in this control group and in those below it: a path, or a name below /sys/fs/cgroup
    #[arg(long, value_name = "GROUP", conflicts_with = "pid")]
    group: Option<String>,
    /// Stop after this long [default: until those traced have ended, or Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "command")]
    seconds: Option<f64>,
    /// Only the threads there are now: the kernel sorts out all others, which costs least
    #[arg(long, conflicts_with = "command")]
    no_follow: bool,
    #[command(flatten)]
    answer: AnswerArgs,
    /// Run and trace this
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Migrations {
    /// Traces, answers, prints.
    fn run(self, colour: Colour) -> Outcome {
        // A wrong name is said before anything is opened. Whom it names is looked up again when events are counted.
        self.threads()?;
        if !migrations::in_first_pid_namespace() {
            return Err(refused(TraceError::Container));
        }
        let machine = read_live(Want::topology())?;
        let formats = Tracefs::find()
            .and_then(|tracefs| migrations::Formats::read(&tracefs))
            .map_err(refused)?;
        let decoder = migrations::Decoder::new(&formats).map_err(Failure::refused)?;
        let tracepoints = if self.no_follow {
            self.only(&formats)?
        } else {
            formats.following()
        };
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &tracepoints,
            names: false,
            mappings: false,
            callers_of: None,
        };
        let mut session = Session::open(&plan).map_err(refused)?;
        let balancing = MachineCounts::read();
        session.enable().map_err(refused)?;
        let begin = now_ns();
        let mut moves = Moves::new(Sharing::new(&machine), !self.no_follow, formats.balancing());
        // Looked up when events are already counted: no event between the two is missed.
        for Thread { tid, name, cpu } in self.threads()? {
            moves.adopt(tid, &name, cpu, begin);
        }
        moves.were_seen_before(now_ns());
        let meanwhile = Meanwhile::start(self.seconds, &self.command, None)?;
        if let Some(pid) = meanwhile.pid() {
            moves.adopt(pid, &self.command[0].to_string_lossy(), None, begin);
        }
        let mut order = Ordered::default();
        let read = |sample: &Sample<'_>, order: &mut Ordered<_>| {
            if let Some(event) = decoder.decode(sample.event) {
                order.push(sample.time_ns, event);
            }
        };
        let mut looked = Instant::now();
        let command = meanwhile.pass(&mut session, &mut |session| {
            session.drain(&mut |_, sample| read(sample, &mut order));
            order.end_round(&mut |time, event| moves.take(time, event));
            // An end that no event told must not keep the trace going.
            if looked.elapsed() >= LOOK_FOR_TASKS {
                moves.end_missing(now_ns(), nearfar_proc::tasks::is_alive);
                looked = Instant::now();
            }
            moves.any_alive()
        })?;
        // Closing the events takes the kernel a quarter of a second, which is no part of the trace, nor is what happens meanwhile.
        let end = now_ns();
        let finished = session
            .finish(&mut |_, sample| read(sample, &mut order))
            .map_err(refused)?;
        order.until(end, &mut |time, event| moves.take(time, event));
        let answer = moves.finish(end, MachineCounts::since_then(balancing));
        let traced = Traced::new(finished, &machine, command, answer);
        self.answer.give(
            "trace-migrations/1",
            &machine.origin,
            &traced,
            colour,
            nearfar_report::trace::migrations,
        )
    }

    /// Only the threads there are now.
    fn only<'a>(&self, formats: &'a migrations::Formats) -> Result<Vec<Tracepoint<'a>>, Failure> {
        let tids: Vec<i32> = self.threads()?.iter().map(|thread| thread.tid).collect();
        let leaders = tids
            .iter()
            .filter_map(|&tid| nearfar_proc::tasks::process_of(tid).ok());
        let tids: Vec<i32> = tids
            .iter()
            .copied()
            .chain(leaders)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        formats.only(&tids).ok_or_else(|| {
            input!(
                "{} threads are too many for --no-follow: leave it out",
                tids.len()
            )
        })
    }

    /// The threads there are of what is to be traced, besides COMMAND.
    fn threads(&self) -> Result<Vec<Thread>, Failure> {
        let mut threads = Vec::new();
        for &pid in &self.pid {
            threads.extend(tasks::of_process(pid).map_err(Failure::input)?);
        }
        if let Some(group) = &self.group {
            threads.extend(tasks::of_cgroup(group).map_err(Failure::input)?);
            if threads.is_empty() {
                return Err(input!(
                    "control group {group}: no task is in it or below it"
                ));
            }
        }
        Ok(threads)
    }
}

/// Which kernel locks are waited for: how long, how often, in which functions
///
/// Traces every wait of the machine (kernel tracepoints lock:contention_begin and contention_end, Linux 5.19 and later) for
/// some time, while a command runs, or until Ctrl-C. The exit code is that of COMMAND.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar trace locks --seconds 10\n  nearfar trace locks -- fio job.fio"
)]
pub struct Locks {
    #[command(flatten)]
    machine: MachineArgs,
}

impl Locks {
    /// Traces, answers, prints.
    fn run(self, colour: Colour) -> Outcome {
        let machine = read_live(Want::topology())?;
        let formats = Tracefs::find()
            .and_then(|tracefs| locks::Formats::read(&tracefs))
            .map_err(refused)?;
        let decoder = locks::Decoder::new(&formats).map_err(Failure::refused)?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &formats.tracepoints(),
            names: false,
            mappings: false,
            callers_of: Some(formats.callers_of()),
        };
        let mut session = Session::open(&plan).map_err(refused)?;
        session.enable().map_err(refused)?;
        let meanwhile = self.machine.start(None)?;
        let mut waits = Waits::new(decoder);
        let command = meanwhile.pass(&mut session, &mut |session| {
            session.drain(&mut |cpu, sample| waits.take(cpu, sample));
            waits.end_round();
            true
        })?;
        let finished = session
            .finish(&mut |cpu, sample| waits.take(cpu, sample))
            .map_err(refused)?;
        let answer = locks::answer(waits, None, &Symbols::read());
        let traced = Traced::new(finished, &machine, command, answer);
        self.machine.answer.give(
            "trace-locks/1",
            &machine.origin,
            &traced,
            colour,
            nearfar_report::trace::locks,
        )
    }
}

/// Which functions get cache lines that other CPUs have, and which lines, in a guest of the lab
///
/// The emulation counts each line that goes from CPU to CPU: no sampling, no hardware counter. For a guest with delays
/// (nearfar lab run --delay auto), and all that runs in it for some time, while a command runs, or until Ctrl-C. The exit
/// code is that of COMMAND.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab run --machine two-node --delay auto -- nearfar trace lines -- ./job"
)]
pub struct LineTrace {
    /// Also trace the waits for kernel locks, to name the locks in lines; that slows contended locks down
    #[arg(long)]
    locks: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

impl LineTrace {
    /// Traces, answers, prints.
    fn run(self, colour: Colour) -> Outcome {
        let machine = read_live(Want::topology())?;
        if let Some(reason) = not_counted(&machine) {
            return Err(refused!(
                "{reason}; a guest with delays does: \
                 nearfar lab run --delay auto -- nearfar trace lines -- COMMAND"
            ));
        }
        let tracefs = Tracefs::find().map_err(refused)?;
        // Programs that start say where they are mapped.
        let starts = tracefs.tracepoint("sched", "sched_process_exec");
        let starts = starts.map_err(refused)?;
        let mut tracepoints = vec![(&starts, None)];
        let formats = self.locks.then(|| locks::Formats::read(&tracefs));
        let formats = formats.transpose().map_err(refused)?;
        let decoder = formats.as_ref().map(locks::Decoder::new);
        let mut waited = decoder
            .transpose()
            .map_err(Failure::refused)?
            .map(WaitedLocks::new);
        tracepoints.extend(formats.iter().flat_map(locks::Formats::tracepoints));
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &tracepoints,
            names: false,
            mappings: true,
            callers_of: formats.as_ref().map(locks::Formats::callers_of),
        };
        let mut session = Session::open(&plan).map_err(refused)?;
        session.enable().map_err(refused)?;
        let counted = CountedLines::begin().map_err(Failure::refused)?;
        let meanwhile = self.machine.start(None)?;
        let mut take = |cpu, sample: &Sample<'_>| {
            if let Some(waited) = &mut waited {
                waited.take(cpu, sample);
            }
        };
        let command = meanwhile.pass(&mut session, &mut |session| {
            session.drain(&mut take);
            true
        })?;
        let transfers = counted.transfers().map_err(Failure::refused)?;
        let finished = session.finish(&mut take).map_err(refused)?;
        let mappings = counted.mappings(&session);
        let answer = lines::answer(&transfers, &Symbols::read(), &mappings, waited.as_ref());
        let traced = Traced::new(finished, &machine, command, answer);
        self.machine.answer.give(
            "trace-lines/1",
            &machine.origin,
            &traced,
            colour,
            nearfar_report::trace::lines,
        )
    }
}

/// Why there are no transfers of lines; `None` where the host of this guest counts them.
fn not_counted(machine: &Machine) -> Option<&'static str> {
    let has_no_delays = |it: &Emulation| it.guest().is_some_and(|guest| guest.delays.is_none());
    match &machine.origin.emulation {
        None => Some("hardware does not count which lines go from CPU to CPU"),
        Some(it) if has_no_delays(it) => Some("a guest without delays does not count lines"),
        Some(_) => None,
    }
}

/// Lines that go from CPU to CPU in this guest from now on, counted by its host.
struct CountedLines {
    host: LabHost,
    mark: String,
    mapped: BTreeSet<Mapping>,
}

impl CountedLines {
    /// Those from now on.
    fn begin() -> anyhow::Result<Self> {
        let host = LabHost::default();
        Ok(Self {
            mapped: lines::mapped_now(),
            mark: host.ask("lines")?,
            host,
        })
    }

    /// Those until now.
    fn transfers(&self) -> anyhow::Result<lines::Transfers> {
        let transfers = self.host.ask(&format!("lines {}", self.mark))?;
        serde_json::from_str(&transfers).context("the host's answer about lines")
    }

    /// What was mapped where since the begin.
    fn mappings(self, session: &Session) -> BTreeSet<Mapping> {
        let later = session.mappings().iter().cloned();
        self.mapped.into_iter().chain(later).collect()
    }
}

/// What the kernel does: lock waits, line transfers, migrations, NVMe commands, interrupts, CPU time, counters
///
/// All in one list, of the whole machine for some time, while a command runs, or until Ctrl-C. nearfar ab --trace compares
/// two kernels by it. What this machine does not have is unknown with its reason: transfers of lines are counted in guests
/// of the lab only, lock waits from Linux 5.19 on. The exit code is that of COMMAND.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar trace kernel --seconds 10\n  nearfar trace kernel -- fio job.fio\n  \
                       nearfar lab run --machine two-node --delay auto -- nearfar trace kernel -- ./job"
)]
pub struct KernelTrace {
    #[command(flatten)]
    machine: MachineArgs,
}

impl KernelTrace {
    /// Traces, answers, prints.
    fn run(self, colour: Colour) -> Outcome {
        let machine = read_live(Want {
            devices: true,
            interrupts: true,
            ..Want::topology()
        })?;
        let formats = Tracefs::find().and_then(|tracefs| kernel::Formats::read(&tracefs));
        let formats = formats.map_err(refused)?;
        let mut events = kernel::Events::new(&formats, &machine).map_err(Failure::refused)?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &formats.tracepoints(),
            names: false,
            mappings: true,
            callers_of: formats.callers_of(),
        };
        let mut session = Session::open(&plan).map_err(refused)?;
        session.enable().map_err(refused)?;
        let lines = match not_counted(&machine) {
            None => Known::from_result(CountedLines::begin()),
            Some(reason) => Known::no(reason),
        };
        let mut samples = match self.machine.command.is_empty() {
            true => None,
            false => Some(Samples::listen()?),
        };
        events.begin().map_err(refused)?;
        let meanwhile = self.machine.start(samples.as_ref())?;
        let mut failure = None;
        let command = meanwhile.pass(&mut session, &mut |session| {
            session.drain(&mut |cpu, sample| events.take(cpu, sample));
            events.end_round();
            if let Some(samples) = &mut samples {
                let followed = samples.follow(|change| {
                    if change == Counting::FirstBegins {
                        // All that was before does not count.
                        events =
                            kernel::Events::new(&formats, &machine).map_err(Failure::refused)?;
                    }
                    match change {
                        Counting::FirstBegins | Counting::Begins => events.begin().map_err(refused),
                        Counting::Ends => ended_now(session, &mut events),
                    }
                });
                failure = failure.take().or(followed.err());
            }
            true
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        // Of a command without samples.
        ended_now(&mut session, &mut events)?;
        let lines = lines.and_then(|counted| {
            Known::from_result(counted.transfers()).map(|transfers| (counted, transfers))
        });
        let finished = session.finish(&mut |_, _| {}).map_err(refused)?;
        let symbols = Symbols::read();
        let lines = lines.map(|(counted, transfers)| {
            lines::answer(&transfers, &symbols, &counted.mappings(&session), None)
        });
        let seconds = events.passed().as_secs_f64();
        let answer = KernelActivity {
            samples: samples.map_or(0, |samples| samples.taken),
            ..events.finish(lines, &symbols)
        };
        let mut traced = Traced::new(finished, &machine, command, answer);
        // Without what came before and after the command, or its samples.
        traced.seconds = seconds;
        self.machine.answer.give(
            "trace-kernel/1",
            &machine.origin,
            &traced,
            colour,
            nearfar_report::trace::kernel,
        )
    }
}

/// Ends an interval, and takes the rest of its events: the kernel may write some late, which is waited for.
fn ended_now(session: &mut Session, events: &mut kernel::Events) -> Outcome {
    events.end().map_err(refused)?;
    let settled = session.settle(&mut |cpu, sample| events.take(cpu, sample));
    settled.map_err(refused)?;
    events.settled();
    Ok(())
}

/// The longest time between two looks at the rings, the clock and Ctrl-C. A ring that fills, or a command that ends, is
/// noticed at once.
const LOOK: Duration = Duration::from_millis(100);
/// How long a command has to end by itself after Ctrl-C, which its terminal sends to it as well.
const GRACE: Duration = Duration::from_secs(2);

/// When a trace ends, apart from Ctrl-C.
struct Meanwhile {
    seconds: Option<Duration>,
    running: Option<Running>,
    /// Becomes readable when an experiment tells of a sample.
    told: Option<OwnedFd>,
    cancel: Arc<AtomicBool>,
}

struct Running {
    words: Vec<OsString>,
    child: Child,
    /// Becomes readable when the command ends; none before Linux 5.3.
    end: Option<OwnedFd>,
    asked_to_end: Option<Instant>,
}

impl Meanwhile {
    /// Starts the command, if there is one. From now on Ctrl-C ends the trace and not this process.
    /// Of a command with `samples`, experiments in it tell them.
    fn start(
        seconds: Option<f64>,
        command: &[OsString],
        samples: Option<&Samples>,
    ) -> Result<Self, Failure> {
        let seconds = seconds.map(Duration::try_from_secs_f64).transpose();
        let seconds = seconds.context("--seconds").map_err(Failure::input)?;
        let cancel = signals::cancel_flag();
        let running = command.split_first().map(|(program, arguments)| {
            let mut started = Command::new(program);
            started.args(arguments);
            started.envs(samples.map(|samples| (TRACE_SOCKET, samples.path())));
            let started = started.spawn();
            let child = started.map_err(|error| Failure::not_started(program, error))?;
            let end = pidfd_open(pid(&child), PidfdFlags::empty()).ok();
            Ok(Running {
                words: command.to_vec(),
                child,
                end,
                asked_to_end: None,
            })
        });
        let told = samples.map(|it| it.told.try_clone());
        Ok(Self {
            seconds,
            running: running.transpose()?,
            told: told.transpose().map_err(Failure::refused)?,
            cancel,
        })
    }

    /// The command's process.
    fn pid(&self) -> Option<i32> {
        self.running
            .as_ref()
            .map(|running| running.child.id().cast_signed())
    }

    /// Calls `round` again and again until the command has ended, the time is over, `round` has enough (false) or
    /// Ctrl-C. Says how the command ended.
    fn pass(
        mut self,
        session: &mut Session,
        round: &mut dyn FnMut(&mut Session) -> bool,
    ) -> Result<Option<Ended>, Failure> {
        let begin = Instant::now();
        loop {
            let left = self.seconds.map_or(LOOK, |seconds| {
                seconds.saturating_sub(begin.elapsed()).min(LOOK)
            });
            let end = self
                .running
                .as_ref()
                .and_then(|running| running.end.as_ref());
            let wakes = end.iter().copied().chain(&self.told);
            let wakes: Vec<_> = wakes.map(OwnedFd::as_fd).collect();
            session.wait(left, &wakes).map_err(refused)?;
            let enough = !round(session);
            let cancelled = self.cancel.load(Ordering::Relaxed);
            match &mut self.running {
                Some(running) => {
                    if let Some(status) = running
                        .child
                        .try_wait()
                        .context("waiting")
                        .map_err(Failure::refused)?
                    {
                        return Ok(Some(ended(&running.words, status)));
                    }
                    if cancelled {
                        running.ask_to_end();
                    }
                }
                None if cancelled
                    || enough
                    || self
                        .seconds
                        .is_some_and(|seconds| begin.elapsed() >= seconds) =>
                {
                    return Ok(None);
                }
                None => {}
            }
        }
    }
}

impl Running {
    /// Once, after a delay.
    fn ask_to_end(&mut self) {
        let now = Instant::now();
        match self.asked_to_end {
            None => self.asked_to_end = Some(now + GRACE),
            Some(patience) if now >= patience => {
                // It may have ended by itself; `try_wait` has not seen it, so its number is still its own.
                let _ = kill_process(pid(&self.child), Signal::TERM);
                self.asked_to_end = Some(now + GRACE);
            }
            Some(_) => {}
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}
