//! The command `nearfar`: parses the arguments, runs one verb, reports its result.
//!
//! ```text
//! command (clap) ──► verb/*.rs ──► sources, placement, apply, bench ──► report ──► output
//!                        └── Failure ──► one message on standard error, one exit code
//! ```

// They panic if standard output has no reader: `output` has what does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod command;
mod complete;
mod failure;
mod log;
mod output;
mod progress;
mod recorded;
mod signals;
mod task_filter;
mod usage;
mod verb;

use std::process::ExitCode;

use nearfar_lab::shell;

use crate::verb::bench::child::Child;
use crate::verb::lease_guard::LeaseGuard;

fn main() -> ExitCode {
    // Answers a shell that asks what could be typed next (COMPLETE in the environment), and ends the process.
    clap_complete::CompleteEnv::with_factory(complete::command).complete();
    let outcome = match (
        Child::asked_for(std::env::args_os()),
        LeaseGuard::asked_for(std::env::args_os()),
    ) {
        (Some(child), _) => child.run(),
        (None, Some(guard)) => guard.run(),
        (None, None) => command::run(usage::read()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
