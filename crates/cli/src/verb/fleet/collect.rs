//! `nearfar fleet collect`.

use std::path::PathBuf;

use clap::Args;
use nearfar_fleet::Folder;
use nearfar_fleet::dataset::{Collected, DatasetError, collect};
use serde::Serialize;

use super::of_folder;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Put the answers of fleet runs into one dataset of Parquet files
///
/// DuckDB, Polars and Spark read it (docs/fleet.md has queries). A run that is collected again replaces what it had there.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar fleet collect /shared/audit --dataset fleet\n  \
                       nearfar fleet collect week-47 week-48 --dataset fleet --format json"
)]
pub struct Collect {
    /// Folders of runs, as `nearfar fleet run --results` made them
    #[arg(value_name = "DIR", required = true)]
    results: Vec<PathBuf>,
    /// The directory of the dataset, made if it does not exist
    #[arg(long, value_name = "DATASET")]
    dataset: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct Answer {
    collected: Vec<Collected>,
}

impl Collect {
    /// Reads every answer, writes the tables.
    pub fn run(self, colour: Colour) -> Outcome {
        // All are opened before the first is collected: a wrong name changes nothing.
        let folders = self
            .results
            .iter()
            .map(|path| Folder::open(path).map_err(of_folder));
        let folders = folders.collect::<Result<Vec<_>, _>>()?;
        let collected = folders
            .iter()
            .map(|folder| collect(folder, &self.dataset).map_err(of_dataset))
            .collect::<Result<Vec<_>, _>>()?;
        output::print(&match self.format.format {
            Format::Table => {
                nearfar_report::fleet::collected(&collected, &self.dataset.display().to_string())
                    .to_text(&output::style(colour))
            }
            Format::Json => output::json("fleet-collect/1", None, &Answer { collected })?,
        })
    }
}

/// What went wrong with a dataset, by who has to act.
pub fn of_dataset(error: DatasetError) -> Failure {
    match error {
        DatasetError::Folder(error) => of_folder(error),
        DatasetError::File { .. } => Failure::refused(error),
        _ => Failure::input(error),
    }
}
