//! `nearfar bench`: experiments. What is measured and how is in the crate of that name.

pub mod child;
mod latency;

use clap::{Args, Subcommand};

use crate::args::Colour;
use crate::failure::Outcome;

/// Measure: what far memory costs on this machine
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    experiment: Experiment,
}

/// The experiments.
#[derive(Subcommand)]
enum Experiment {
    Latency(latency::Latency),
}

impl Bench {
    /// Runs the experiment that was asked for.
    pub fn run(self, colour: Colour) -> Outcome {
        match self.experiment {
            Experiment::Latency(experiment) => experiment.run(colour),
        }
    }
}
