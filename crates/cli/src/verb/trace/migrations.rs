//! `nearfar trace migrations`: who was moved where.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context as _;
use clap::{ArgGroup, Args};
use nearfar_machine::CpuId;
use nearfar_sources::Want;
use nearfar_trace::migrations::{self, Decoder, Formats, Moves, Sharing};
use nearfar_trace::records::Sample;
use nearfar_trace::{Ordered, Plan, Session, Traced, Tracefs, now_ns};

use super::meanwhile::Meanwhile;
use super::{AnswerArgs, read_machine, refused};
use crate::args::Colour;
use crate::failure::{Failure, Outcome};

/// Every migration of some tasks: within a core, a last-level cache, a node, or across nodes
///
/// Follows the processes, their threads and what they make (kernel tracepoint sched:sched_migrate_task on every CPU), until
/// they have ended, the time is over or Ctrl-C. The exit code is that of COMMAND.
#[derive(Args)]
#[command(group = ArgGroup::new("whom").required(true).args(["pid", "command"]))]
#[command(after_long_help = "Examples:\n  nearfar trace migrations --pid 4711 --seconds 30\n  \
                             nearfar trace migrations -- ./probe --counts 100")]
pub struct Migrations {
    /// Trace this process (may be repeated)
    #[arg(long, value_name = "PID")]
    pid: Vec<i32>,
    /// Trace so long [default: until those traced have ended, or Ctrl-C]
    #[arg(long, value_name = "N", conflicts_with = "command")]
    seconds: Option<f64>,
    /// Only the threads there are now: the kernel sorts out all others, which costs least
    #[arg(long, requires = "pid")]
    no_follow: bool,
    #[command(flatten)]
    answer: AnswerArgs,
    /// Run and trace this
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A thread that is there already.
struct Thread {
    tid: i32,
    name: String,
    cpu: Option<CpuId>,
}

impl Migrations {
    /// Traces, answers, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        if !migrations::in_first_pid_namespace() {
            return Err(Failure::refused(anyhow::anyhow!(
                "the kernel's events number tasks otherwise than this container does: trace migrations from outside of it"
            )));
        }
        let machine = read_machine(Want::topology())?;
        let formats = Tracefs::find().and_then(|tracefs| Formats::read(&tracefs)).map_err(refused)?;
        let decoder = Decoder::new(&formats).map_err(Failure::refused)?;
        let following = formats.following();
        let only = self.no_follow.then(|| self.only(&formats)).transpose()?;
        let tracepoints = only.as_ref().map_or(&following[..], |only| &only[..]);
        let plan = Plan { cpus: &machine.cpu_states.online, tracepoints };
        let mut session = Session::open(&plan).map_err(refused)?;
        let begin = now_ns();
        session.enable().map_err(refused)?;
        let mut moves = Moves::new(Sharing::new(&machine), !self.no_follow);
        // Looked up when events are already counted: nobody slips through between the two.
        self.pid.iter().try_for_each(|&pid| adopt(&mut moves, pid, begin))?;
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
        let command = meanwhile.pass(&mut session, &mut |session| {
            session.drain(&mut |_, sample| read(sample, &mut order));
            order.end_round(&mut |time, event| moves.take(time, event));
            moves.any_alive()
        })?;
        let (losses, elapsed) = session.finish(&mut |_, sample| read(sample, &mut order)).map_err(refused)?;
        order.finish(&mut |time, event| moves.take(time, event));
        let answer = moves.finish(now_ns());
        let traced = Traced {
            seconds: elapsed.as_secs_f64(),
            losses,
            cpus_not_traced: session.not_traced().clone(),
            emulated: machine.origin.emulated.clone(),
            command,
            answer,
        };
        self.answer.give("trace-migrations/1", &machine.origin, &traced, colour, nearfar_report::trace::migrations)
    }

    /// Only the threads there are now.
    fn only<'a>(
        &self,
        formats: &'a Formats,
    ) -> Result<[(&'a nearfar_trace::format::Format, Option<String>); 2], Failure> {
        let mut tids = Vec::new();
        for &pid in &self.pid {
            tids.extend(threads(pid)?.into_iter().map(|thread| thread.tid));
        }
        formats.only(&tids).ok_or_else(|| {
            Failure::input(anyhow::anyhow!("{} threads are too many for --no-follow: leave it out", tids.len()))
        })
    }
}

fn adopt(moves: &mut Moves, pid: i32, since_ns: u64) -> Outcome {
    threads(pid)?.iter().for_each(|thread| moves.adopt(thread.tid, &thread.name, thread.cpu, since_ns));
    Ok(())
}

/// The threads of a process, with what is known of them; one that ends meanwhile is left out.
fn threads(pid: i32) -> Result<Vec<Thread>, Failure> {
    let directory = format!("/proc/{pid}/task");
    let listed = std::fs::read_dir(&directory).with_context(|| format!("process {pid}: {directory}"));
    let tids = listed.map_err(Failure::input)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let thread = |tid: i32| {
        let stat = std::fs::read_to_string(Path::new(&directory).join(tid.to_string()).join("stat")).ok()?;
        let (name, cpu) = name_and_cpu(&stat)?;
        Some(Thread { tid, name: name.to_owned(), cpu })
    };
    Ok(tids.filter_map(thread).collect())
}

/// `4711 (a name) S ...`: the name may hold anything, the CPU is the 39th field (proc_pid_stat(5)).
fn name_and_cpu(stat: &str) -> Option<(&str, Option<CpuId>)> {
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once(" (")?;
    let cpu = after.split(' ').nth(36).and_then(|field| field.parse().ok()).map(CpuId);
    Some((name, cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_move_the_fields() {
        let after =
            "S 1 4711 4711 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 3 0 0 0";
        let stat = format!("4711 (a) S (b c) {after}");
        assert_eq!(name_and_cpu(&stat), Some(("a) S (b c", Some(CpuId(3)))));
        assert_eq!(name_and_cpu("4711"), None);
    }
}
