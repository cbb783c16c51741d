//! `nearfar fleet`: one verb on many hosts, and which host differs.

mod apply;
mod collect;
mod on_host;
mod run;
mod show;
mod targets;

use clap::{Args, Subcommand};

use crate::args::Colour;
use crate::failure::{Failure, Outcome};

/// Run a verb on many hosts, and show which differs from those like it
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
                       nearfar fleet run --engine slurm --partition db --results /shared/db -- checkup --format json\n  \
                       nearfar fleet run --resume --results /shared/db\n  \
                       nearfar fleet collect /shared/db --dataset fleet\n  \
                       nearfar fleet show --dataset fleet --html fleet.html")]
pub struct Fleet {
    #[command(subcommand)]
    verb: FleetVerb,
}

#[derive(Subcommand)]
enum FleetVerb {
    Run(run::Run),
    Collect(collect::Collect),
    Show(show::Show),
    Apply(apply::Apply),
    Rollback(apply::Rollback),
    Targets(targets::Targets),
    #[command(hide = true)]
    OnHost(on_host::OnHost),
}

impl Fleet {
    /// Answers.
    pub fn run(self, colour: Colour) -> Outcome {
        match self.verb {
            FleetVerb::Run(verb) => verb.run(colour),
            FleetVerb::Collect(verb) => verb.run(colour),
            FleetVerb::Show(verb) => verb.run(colour),
            FleetVerb::Apply(verb) => verb.run(colour),
            FleetVerb::Rollback(verb) => verb.run(colour),
            FleetVerb::Targets(verb) => verb.run(),
            FleetVerb::OnHost(verb) => verb.run(),
        }
    }
}

/// What went wrong, by who has to act.
fn by_who_has_to_act(error: nearfar_fleet::FleetError) -> Failure {
    match error {
        nearfar_fleet::FleetError::Folder(error) => of_folder(error),
        error => Failure::refused(error),
    }
}

fn of_folder(error: nearfar_fleet::FolderError) -> Failure {
    use nearfar_fleet::FolderError;
    match error {
        FolderError::File { ref reason, .. } if reason.kind() != std::io::ErrorKind::NotFound => {
            Failure::refused(error)
        }
        FolderError::InUse { .. } => Failure::refused(error),
        _ => Failure::input(error),
    }
}
