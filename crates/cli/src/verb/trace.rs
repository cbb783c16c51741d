//! `nearfar trace`: who did what where, as the kernel saw it.

mod locks;
mod meanwhile;
mod migrations;
mod nvme;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nearfar_machine::Origin;
use nearfar_sources::{Request, Want};
use nearfar_trace::{Ended, TraceError, Traced};
use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Trace NVMe commands, migrations and lock contention
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar trace nvme --seconds 10\n  nearfar trace nvme --subsystem nvme-subsys0 -- fio job.fio\n  \
                       nearfar trace migrations --pid 4711 --seconds 30\n  \
                       nearfar trace migrations --group system.slice/redis.service --seconds 30\n  \
                       nearfar trace migrations --output moves.json --format json -- ./probe\n  \
                       nearfar trace locks -- fio job.fio"
)]
pub struct Trace {
    #[command(subcommand)]
    verb: TraceVerb,
}

#[derive(Subcommand)]
enum TraceVerb {
    Nvme(nvme::Nvme),
    Migrations(migrations::Migrations),
    Locks(locks::Locks),
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

impl Trace {
    /// Traces, answers, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let (TraceVerb::Nvme(nvme::Nvme { answer, .. })
        | TraceVerb::Migrations(migrations::Migrations { answer, .. })
        | TraceVerb::Locks(locks::Locks { answer, .. })) = &self.verb;
        answer
            .output
            .as_deref()
            .map(output::can_write)
            .transpose()?;
        match self.verb {
            TraceVerb::Nvme(verb) => verb.run(colour),
            TraceVerb::Migrations(verb) => verb.run(colour),
            TraceVerb::Locks(verb) => verb.run(colour),
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
            Some(_) => nearfar_report::Style {
                colour: colour == Colour::Always,
                ..Default::default()
            },
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
        match traced.command.as_ref().map(exit_code) {
            Some(code @ 1..) => Err(Failure::CommandEnded(code)),
            _ => Ok(()),
        }
    }
}

/// As shells have it: the code, or 128 and the signal.
pub(super) fn exit_code(ended: &Ended) -> u8 {
    let code = ended
        .exit_code
        .or(ended.signal.map(|signal| 128 + signal))
        .unwrap_or(255);
    u8::try_from(code).unwrap_or(255)
}

/// The running system, with that much of it.
fn read_machine(want: Want) -> Result<nearfar_machine::Machine, Failure> {
    nearfar_sources::read(&Request::live(want)).map_err(Failure::input)
}

/// What the kernel does not permit, have or do.
fn refused(error: TraceError) -> Failure {
    Failure::refused(error)
}
