//! The command `nearfar`: parses the arguments, runs one verb, reports its result.
//!
//! ```text
//! verb.rs (clap) ──► verb/*.rs ──► sources, placement, apply, bench ──► report ──► output
//!                        └── Failure ──► one message on standard error, one exit code
//! ```

// They panic if standard output has no reader: `output` has what does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod child;
mod failure;
mod log;
mod output;
mod progress;
mod recorded;
mod signals;
mod usage;
mod verb;

use std::process::ExitCode;

use nearfar_lab::shell;

use crate::child::Child;

fn main() -> ExitCode {
    // Answers a shell that asks what could be typed next (COMPLETE in the environment), and ends the process.
    clap_complete::CompleteEnv::with_factory(verb::completions::command).complete();
    let outcome = match Child::asked_for(std::env::args_os()) {
        Some(child) => child.run(),
        None => verb::run(usage::read()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
