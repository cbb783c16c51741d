//! `nearfar runs`: what experiments found, kept.

pub(super) mod export;
mod import;
mod list;
mod rm;
pub(super) mod show;

use clap::{Args, Subcommand};
use nearfar_runs::RunId;

use crate::args::{Colour, of_store};
use crate::failure::{Failure, Outcome};

/// List, show, export and remove stored runs
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs list --experiment probe --since 7d\n  nearfar runs show 12\n  \
                       nearfar runs export 11 12 --format parquet -o runs.parquet\n  \
                       nearfar runs export last > run.json; nearfar runs import run.json --store other.db"
)]
pub struct Runs {
    #[command(subcommand)]
    verb: RunsVerb,
}

#[derive(Subcommand)]
enum RunsVerb {
    List(list::List),
    Show(show::Show),
    Export(export::Export),
    Import(import::Import),
    Rm(rm::Rm),
}

impl Runs {
    /// Answers.
    pub fn run(self, colour: Colour) -> Outcome {
        match self.verb {
            RunsVerb::List(verb) => verb.run(colour),
            RunsVerb::Show(verb) => verb.run(colour),
            RunsVerb::Export(verb) => verb.run(),
            RunsVerb::Import(verb) => verb.run(colour),
            RunsVerb::Rm(verb) => verb.run(colour),
        }
    }
}

/// Which run is meant.
#[derive(Clone, Copy)]
enum Which {
    Number(RunId),
    Last,
}

impl std::str::FromStr for Which {
    type Err = nearfar_runs::RunIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "last" {
            Ok(Self::Last)
        } else {
            text.parse().map(Self::Number)
        }
    }
}

impl Which {
    fn find(self, store: &nearfar_runs::Store) -> Result<RunId, Failure> {
        match self {
            Self::Number(run) => Ok(run),
            Self::Last => {
                let newest = nearfar_runs::Filter {
                    limit: Some(1),
                    ..Default::default()
                };
                let newest = store
                    .list(&newest)
                    .map_err(of_store)?
                    .first()
                    .map(|run| run.run);
                newest.ok_or_else(|| {
                    Failure::Input(anyhow::anyhow!(
                        "{} holds no run yet",
                        store.path().display()
                    ))
                })
            }
        }
    }
}
