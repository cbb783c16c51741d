//! `nearfar lab doctor`: what the lab finds here, and what mends what is missing.

use clap::Args;
use nearfar_lab::cache::Cache;
use nearfar_lab::doctor;

use super::guest_args::failure;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::Outcome;
use crate::output;

/// Say what the lab needs and finds here, and which command brings what is missing
#[derive(Args)]
pub struct Doctor {
    #[command(flatten)]
    format: FormatArgs,
}

impl Doctor {
    /// Looks, and says so.
    pub fn run(self, colour: Colour) -> Outcome {
        let doctor = doctor::examine(&Cache::of_user().map_err(failure)?);
        output::print(&match self.format.format {
            Format::Json => output::json("lab-doctor/1", None, &doctor)?,
            Format::Table => nearfar_report::doctor::table(&doctor, &output::style(colour)),
        })
    }
}
