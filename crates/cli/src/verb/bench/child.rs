//! `nearfar bench child`: what nearfar starts itself as, to be a probe or a load. Not for people: it is hidden from help,
//! man pages and completions, and described where its callers are (nearfar_bench).

use clap::{Args, Subcommand};
use nearfar_bench::probe::ServeError;
use nearfar_bench::{load, probe};

use crate::failure::{Failure, Outcome};

/// One run of a probe, or the load on one CPU, as standard input describes it
#[derive(Args)]
pub struct Child {
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand)]
enum Work {
    /// One run of the probe
    Probe,
    /// The load on one CPU
    Load,
}

impl Child {
    /// Works until it is done or its caller hangs up.
    pub fn run(self) -> Outcome {
        let served = match self.work {
            Work::Probe => probe::serve(),
            Work::Load => load::serve(),
        };
        served.map_err(|error| match error {
            ServeError::BadSpec(_) => Failure::input(error),
            ServeError::Refused { .. } => Failure::refused(error),
            ServeError::Unheard => Failure::OutputClosed,
        })
    }
}
