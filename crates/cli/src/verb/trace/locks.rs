//! `nearfar trace locks`: which kernel locks were waited for, and where.

use std::ffi::OsString;

use clap::Args;
use nearfar_sources::Want;
use nearfar_trace::locks::{self, Decoder, Formats, Symbols, Waits};
use nearfar_trace::{Plan, Session, Traced, Tracefs};

use super::meanwhile::Meanwhile;
use super::{AnswerArgs, read_machine, refused};
use crate::args::{Colour, seconds};
use crate::failure::{Failure, Outcome};

/// Which kernel locks are waited for: how long, how often, in which functions
///
/// Traces every wait of the machine (kernel tracepoints lock:contention_begin and contention_end, Linux 5.19 and later) for
/// some time, while a command runs, or until Ctrl-C. The exit code is that of COMMAND.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar trace locks --seconds 10\n  nearfar trace locks -- fio job.fio"
)]
pub struct Locks {
    /// Stop after this long [default: until COMMAND ends or Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "command")]
    seconds: Option<f64>,
    #[command(flatten)]
    pub(super) answer: AnswerArgs,
    /// Trace while this runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Locks {
    /// Traces, answers, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let machine = read_machine(Want::topology())?;
        let formats = Tracefs::find()
            .and_then(|tracefs| Formats::read(&tracefs))
            .map_err(refused)?;
        let decoder = Decoder::new(&formats).map_err(Failure::refused)?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &formats.tracepoints(),
            names: false,
            callers_of: Some(formats.callers_of()),
        };
        let mut session = Session::open(&plan).map_err(refused)?;
        session.enable().map_err(refused)?;
        let meanwhile = Meanwhile::start(self.seconds, &self.command)?;
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
        self.answer.give(
            "trace-locks/1",
            &machine.origin,
            &traced,
            colour,
            nearfar_report::trace::locks,
        )
    }
}
