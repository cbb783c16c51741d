//! `nearfar checkup`: the main job. Topology, audit, a short probe; one screen and one page.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nearfar_bench::latency::{self, LatencyMatrix, LatencyOptions};
use nearfar_machine::{Known, Machine};
use nearfar_placement::audit::{self, AuditOptions};
use nearfar_report::checkup::Made;
use nearfar_sources::Want;

use crate::args::{Colour, Format, FormatArgs, SourceArgs, TaskArgs};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::signals;

/// Check the machine up: what it is, what is far on it, how much slower far memory is
///
/// Asks for nothing and changes nothing. Prints one screen and writes one HTML page that needs no network. The probe
/// measures memory latency for some seconds, which only makes sense on the running system.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar checkup\n  nearfar checkup --html /var/www/this-server.html\n  nearfar \
                             checkup --source customer.nearfar"
)]
pub struct Checkup {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    /// Where the page is written; an existing file is replaced
    #[arg(long, value_name = "FILE", default_value = "nearfar-checkup.html")]
    html: PathBuf,
    /// Write no page
    #[arg(long, conflicts_with = "html")]
    no_html: bool,
    /// How long to measure memory latency, in seconds; 0 for not at all
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    probe: f64,
    #[command(flatten)]
    format: FormatArgs,
}

impl Checkup {
    /// Reads, audits, measures, prints, writes.
    pub fn run(self, colour: Colour) -> Outcome {
        let budget = Duration::try_from_secs_f64(self.probe).ok().filter(|budget| budget.as_secs() <= 3600);
        let budget = budget.ok_or_else(|| Failure::Input(anyhow::anyhow!("--probe takes 0 to 3600 seconds")))?;
        let machine = self.source.read(Want { tasks: self.tasks.scope(), names: true, ..Want::all() })?;
        let checkup = nearfar_report::checkup::Checkup {
            audit: audit::audit(&machine, &AuditOptions::default()),
            probe: probe(&machine, budget)?,
            made: made(),
            machine,
        };
        if !self.no_html {
            output::write_file(&self.html, nearfar_report::checkup::page(&checkup).as_bytes())?;
        }
        match self.format.format {
            Format::Json => output::print(&output::json("checkup/1", None, &checkup)?),
            Format::Table => {
                output::print(&nearfar_report::checkup::screen(&checkup, &output::style(colour)))?;
                match self.no_html {
                    true => Ok(()),
                    false => output::print(&format!("\nThe whole of it as a page: {}", self.html.display())),
                }
            }
        }
    }
}

/// How this checkup was made: as it was typed, so that it can be repeated.
fn made() -> Made {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let command: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Made {
        command: format!("nearfar {}", command.join(" ")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at_s: now.ok().map(|since| since.as_secs()),
    }
}

/// Measures where that makes sense, and says why where it does not.
fn probe(machine: &Machine, budget: Duration) -> Result<Known<LatencyMatrix>, Failure> {
    if budget.is_zero() {
        return Ok(Known::no("--probe 0 asked for no measurement"));
    }
    let cancel = signals::cancel_flag();
    match latency::measure(machine, &LatencyOptions { budget, cancel, ..LatencyOptions::default() }) {
        Ok(matrix) => Ok(Known::Yes(matrix)),
        Err(latency::ProbeError::Cancelled) => Err(Failure::refused(latency::ProbeError::Cancelled)),
        Err(error) => Ok(Known::no(error.to_string())),
    }
}
