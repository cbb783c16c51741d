//! `nearfar trace nvme`: whose commands took which path.

use std::ffi::OsString;

use clap::Args;
use nearfar_sources::Want;
use nearfar_trace::nvme::{self, Commands, Decoder};
use nearfar_trace::{Plan, Session, Traced, Tracefs};

use super::meanwhile::Meanwhile;
use super::{AnswerArgs, read_machine, refused};
use crate::args::{Colour, seconds};
use crate::failure::{Failure, Outcome};

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
    /// Stop after this long [default: until COMMAND ends or Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "command")]
    seconds: Option<f64>,
    /// Only this subsystem, as the kernel names it
    #[arg(long, value_name = "NAME")]
    subsystem: Option<String>,
    #[command(flatten)]
    pub(super) answer: AnswerArgs,
    /// Trace while this runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Nvme {
    /// Traces, answers, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let machine = read_machine(Want {
            devices: true,
            ..Want::placement()
        })?;
        // A wrong name is said before anything runs.
        nvme::subsystems(&machine, self.subsystem.as_deref()).map_err(Failure::input)?;
        let tracefs = Tracefs::find().map_err(refused)?;
        let format = tracefs
            .tracepoint(nvme::SYSTEM, nvme::EVENT)
            .map_err(refused)?;
        let decoder = Decoder::new(&format).map_err(Failure::refused)?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &[(&format, None)],
            names: true,
            callers_of: None,
        };
        let mut session = Session::open(&plan).map_err(refused)?;
        session.enable().map_err(refused)?;
        let meanwhile = Meanwhile::start(self.seconds, &self.command)?;
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
        self.answer.give(
            "trace-nvme/1",
            &machine.origin,
            &traced,
            colour,
            nearfar_report::trace::nvme,
        )
    }
}
