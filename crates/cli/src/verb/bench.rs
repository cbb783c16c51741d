//! `nearfar bench`: experiments. What is measured and how is in the crate of that name.

pub mod child;
mod guests;
mod latency;
mod registered;

use clap::{Args, Subcommand};

use crate::args::Colour;
use crate::failure::Outcome;

/// Measure what distance costs: memory, tasks, I/O, requests, locks, tags
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar bench latency\n  nearfar bench probe --seconds 2 --samples 8"
)]
pub struct Bench {
    #[command(subcommand)]
    experiment: Experiment,
}

/// The experiments.
#[derive(Subcommand)]
enum Experiment {
    Latency(latency::Latency),
    #[command(flatten)]
    Registered(registered::Registered),
}

impl Bench {
    /// Runs the experiment that was asked for.
    pub fn run(self, colour: Colour) -> Outcome {
        match self.experiment {
            Experiment::Latency(experiment) => experiment.run(colour),
            Experiment::Registered(experiment) => experiment.run(colour),
        }
    }
}
