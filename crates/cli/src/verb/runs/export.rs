//! `nearfar runs export`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nearfar_runs::export::{SCHEMA, Table, Whole, write_csv, write_parquet};
use serde::Serialize;

use super::Which;
use crate::args::{StoreArgs, of_store};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Write stored runs for other programs
///
/// JSON has everything, the machine as well, and `runs import` reads it. CSV and Parquet have a row per sample: what is said of
/// the run, a column a factor, and a column each value of the samples; several runs of different shapes have the
/// columns of all of them.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs export 11 12 --format parquet -o runs.parquet\n  nearfar runs export last --format csv"
)]
pub struct Export {
    /// Their numbers, or "last"
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<Which>,
    /// What is written
    #[arg(long, value_enum, default_value_t = Kind::Json, value_name = "FORMAT")]
    format: Kind,
    /// Where to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

/// The formats.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Everything; documented in docs/json.md.
    Json,
    /// For spreadsheets.
    Csv,
    /// For DuckDB, pandas, Polars, Spark.
    Parquet,
}

#[derive(Serialize)]
struct Exported {
    runs: Vec<Whole>,
}

/// Runs of a store as JSON, for a store's import.
pub fn json(runs: Vec<Whole>) -> Result<String, Failure> {
    output::json(SCHEMA, None, &Exported { runs })
}

impl Export {
    /// Reads and writes.
    pub fn run(self) -> Outcome {
        let store = self.store.open_existing()?;
        let mut numbers = self
            .runs
            .iter()
            .map(|which| which.find(&store))
            .collect::<Result<Vec<_>, _>>()?;
        // A run that is named twice is written once: its samples would else count double.
        let mut known = BTreeSet::new();
        numbers.retain(|number| known.insert(*number));
        let whole = numbers
            .into_iter()
            .map(|number| store.whole(number).map_err(of_store));
        let runs = whole.collect::<Result<Vec<Whole>, Failure>>()?;
        let mut bytes = Vec::new();
        match self.format {
            Kind::Json => {
                bytes = json(runs)?.into_bytes();
                bytes.push(b'\n');
            }
            Kind::Csv => write_csv(&Table::of(&runs).map_err(Failure::input)?, &mut bytes)
                .map_err(Failure::refused)?,
            Kind::Parquet => {
                let table = Table::of(&runs).map_err(Failure::input)?;
                write_parquet(&table, &mut bytes).map_err(Failure::refused)?;
            }
        }
        match &self.output {
            Some(path) => output::write_file(path, &bytes),
            None => output::print_bytes(&bytes),
        }
    }
}
