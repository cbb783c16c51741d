//! The command `nearfar`: what was typed goes to one verb, what comes back to one place.
//!
//! ```text
//! args (clap) ──► verb/*.rs ──► sources, placement, apply, bench ──► report ──► output
//!                     └── Failure ──► one message on standard error, one exit code
//! ```

mod args;
mod failure;
mod output;
mod signals;
mod verb;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let command = args::Command::parse();
    match verb::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
