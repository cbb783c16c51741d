//! `nearfar lab doctor`: what the lab finds here, and what fixes what is missing.

use clap::{Args, ValueEnum};
use nearfar_lab::cache::Cache;
use nearfar_lab::doctor::{self, State};

use super::guest_args::failure;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Say what the lab needs and finds here, and which command brings what is missing
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab doctor\n  nearfar lab doctor --fail-on missing"
)]
pub struct Doctor {
    /// Exit with 1 when a part is in this state or a worse one
    #[arg(long, value_enum, value_name = "STATE")]
    fail_on: Option<FailOn>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// The lab works without it, with a consequence that is named
    Degraded,
    /// What needs it does not work
    Missing,
}

impl FailOn {
    fn state(self) -> State {
        match self {
            Self::Degraded => State::Degraded,
            Self::Missing => State::Missing,
        }
    }
}

impl Doctor {
    /// Prints what the lab needs and whether it is here.
    pub fn run(self, colour: Colour) -> Outcome {
        let doctor = doctor::examine(&Cache::of_user().map_err(failure)?);
        output::print(&match self.format.format {
            Format::Json => output::json("lab-doctor/1", None, &doctor)?,
            Format::Table => {
                nearfar_report::lab::doctor(&doctor).to_text(&output::style(colour))
            }
        })?;
        match self
            .fail_on
            .is_some_and(|bad| doctor.items.iter().any(|item| item.state >= bad.state()))
        {
            true => Err(Failure::AskedToFail),
            false => Ok(()),
        }
    }
}
