//! `nearfar runs import`.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use nearfar_runs::Store;
use nearfar_runs::export::{ImportError, Imported};

use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store};
use crate::failure::{Failure, Outcome};
use crate::output;

/// What is read of a file, in bytes: some 800,000 samples of the probe, which take two to three times the room while they are read.
const LARGEST: u64 = 1 << 30;

/// Add runs that were exported as JSON, on another system or in a guest
///
/// Each gets the next free number. One that is here already is left alone. Of each file all runs are added or none.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs import run.json\n  nearfar runs import - --store other.db"
)]
pub struct Import {
    /// What `runs export --format json` wrote; "-" for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl Import {
    /// Reads each file, adds its runs, says under which numbers.
    pub fn run(self, colour: Colour) -> Outcome {
        let mut store = None;
        let mut all = Imported::default();
        let added = self.files.iter().try_for_each(|file| {
            let name = file.display();
            let json = read(file)
                .with_context(|| format!("cannot read {name}"))
                .map_err(Failure::Input)?;
            // Not before there is something to add: a store that is missing is made.
            let store = match &mut store {
                Some(store) => store,
                None => store.insert(self.store.open()?),
            };
            let imported = add(store, &json, file)?;
            all.runs.extend(imported.runs);
            all.already.extend(imported.already);
            Ok(())
        });
        // Also before a failure: the files before that one are in.
        if added.is_ok() || all != Imported::default() {
            output::print(&match self.format.format {
                Format::Table => {
                    nearfar_report::runs::imported(&all).to_text(&output::style(colour))
                }
                Format::Json => output::json("runs-import/1", None, &all)?,
            })?;
        }
        added
    }
}

/// Adds the runs of one file.
fn add(store: &mut Store, json: &[u8], file: &Path) -> Result<Imported, Failure> {
    store.import(json).map_err(|error| match error {
        ImportError::Store(error) => of_store(error),
        error => Failure::Input(anyhow::Error::new(error).context(file.display().to_string())),
    })
}

/// The bytes of a file or of standard input.
fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    const TOO_LARGE: &str =
        "it has more than a gibibyte, too much to be read at once; export fewer runs into one file";
    let input: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => {
            let file = std::fs::File::open(file)?;
            if file.metadata()?.len() > LARGEST {
                bail!(TOO_LARGE);
            }
            Box::new(file)
        }
    };
    // Devices and pipes say nothing of their length.
    let mut json = Vec::new();
    input.take(LARGEST + 1).read_to_end(&mut json)?;
    if json.len() as u64 > LARGEST {
        bail!(TOO_LARGE);
    }
    Ok(json)
}
