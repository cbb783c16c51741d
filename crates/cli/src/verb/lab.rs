//! `nearfar lab`: machines in software, with real kernels.

mod cache;
mod counts;
mod doctor;
pub mod guest_args;
mod kernels;
mod machines;
mod run;
mod status;

use clap::{Args, Subcommand};

use crate::args::{Colour, FormatArgs};
use crate::failure::Outcome;

/// Boot a described NUMA machine as a guest and run commands in it
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab run --machine kunpeng --scale cpus=2,memory=512M -- nearfar topo\n  \
                       nearfar lab run --machine two-node --delay auto -- nearfar bench latency\n  \
                       nearfar lab shell --machine snapshot-of-a-server.nearfar --scale cpus=2,memory=512M\n  \
                       nearfar lab kernels get 6.12"
)]
pub struct Lab {
    #[command(subcommand)]
    verb: LabVerb,
}

#[derive(Subcommand)]
enum LabVerb {
    /// List the machines that --machine and --source take by name
    #[command(
        after_long_help = "Examples:\n  nearfar lab machines\n  nearfar lab machines --format json"
    )]
    Machines(FormatArgs),
    Run(run::Run),
    Shell(run::Shell),
    Kernels(kernels::Kernels),
    Cache(cache::CacheVerbs),
    Doctor(doctor::Doctor),
}

impl Lab {
    /// Does what was asked of the lab.
    pub fn run(self, colour: Colour) -> Outcome {
        match self.verb {
            LabVerb::Machines(format) => machines::list(&format, colour),
            LabVerb::Run(verb) => verb.run(),
            LabVerb::Shell(verb) => verb.run(),
            LabVerb::Kernels(verb) => verb.run(colour),
            LabVerb::Cache(verb) => verb.run(colour),
            LabVerb::Doctor(verb) => verb.run(colour),
        }
    }
}
