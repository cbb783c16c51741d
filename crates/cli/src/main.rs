//! The command `nearfar`: what was typed goes to one verb, what comes back to one place.
//!
//! ```text
//! command (clap) ──► verb/*.rs ──► sources, placement, apply, bench ──► report ──► output
//!                        └── Failure ──► one message on standard error, one exit code
//! ```

mod args;
mod command;
mod failure;
mod output;
mod signals;
mod verb;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let command = command::Command::parse();
    match command::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
