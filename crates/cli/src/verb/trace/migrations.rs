//! `nearfar trace migrations`: who was moved where.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use nearfar_sources::Want;
use nearfar_trace::migrations::{self, Decoder, Formats, Moves, Sharing};
use nearfar_trace::numa_balancing::MachineCounts;
use nearfar_trace::records::Sample;
use nearfar_trace::tasks::{self, Thread};
use nearfar_trace::{Ordered, Plan, Session, TraceError, Traced, Tracefs, now_ns};

use super::meanwhile::Meanwhile;
use super::{AnswerArgs, read_machine, refused};
use crate::args::{Colour, seconds};
use crate::failure::{Failure, Outcome};

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
    pub(super) answer: AnswerArgs,
    /// Run and trace this
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Migrations {
    /// Traces, answers, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        // A wrong name is said before anything is opened. Whom it names is looked up again when events are counted.
        self.threads()?;
        if !migrations::in_first_pid_namespace() {
            return Err(refused(TraceError::Container));
        }
        let machine = read_machine(Want::topology())?;
        let formats = Tracefs::find()
            .and_then(|tracefs| Formats::read(&tracefs))
            .map_err(refused)?;
        let decoder = Decoder::new(&formats).map_err(Failure::refused)?;
        let tracepoints = if self.no_follow {
            self.only(&formats)?
        } else {
            formats.following()
        };
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &tracepoints,
            names: false,
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
        let meanwhile = Meanwhile::start(self.seconds, &self.command)?;
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
    fn only<'a>(&self, formats: &'a Formats) -> Result<Vec<Tracepoint<'a>>, Failure> {
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
            Failure::input(anyhow::anyhow!(
                "{} threads are too many for --no-follow: leave it out",
                tids.len()
            ))
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
                return Err(Failure::input(anyhow::anyhow!(
                    "control group {group}: no task is in it or below it"
                )));
            }
        }
        Ok(threads)
    }
}
