//! `nearfar lab run` and `nearfar lab shell`: a guest for one command, or to look around in.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::Args;
use nearfar_lab::LabError;
use nearfar_lab::cache::Cache;
use nearfar_lab::delay::TimeSpec;
use nearfar_lab::guest::{Exec, Guest, PreparedGuest, Signals, Streams, command_line};

use super::counts;
use super::guest_args::{GuestArgs, booted, failure};
use super::status::Status;
use crate::failure::{Failure, Outcome};
use crate::{output, shell, signals};

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
    watch: Option<counts::Watch>,
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
        .map(|(file, region)| counts::Watch::start(region, file, prepared.emulation()));
    let exit = guest.exec(exec, streams, &signals)?;
    Ok(Ended {
        code: exit.code,
        watch,
        guest,
    })
}
