//! `nearfar runs import`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use nearfar_runs::Store;
use nearfar_runs::export::{ImportError, Imported};

use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Add runs that were exported as JSON, on another system or in a guest
///
/// Each gets the next free number. One that is here already is left alone. Of each file all runs are added or none.
#[derive(Args)]
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
        let mut store = self.store.open()?;
        let mut all = Imported::default();
        let added = self.files.iter().try_for_each(|file| {
            let imported = add(&mut store, file)?;
            all.runs.extend(imported.runs);
            all.already.extend(imported.already);
            Ok(())
        });
        // Also before a failure: the files before that one are in.
        if added.is_ok() || all != Imported::default() {
            output::print(&match self.format.format {
                Format::Table => nearfar_report::runs::imported(&all, &output::style(colour)),
                Format::Json => output::json("runs-import/1", None, &all)?,
            })?;
        }
        added
    }
}

/// Adds the runs of one file.
fn add(store: &mut Store, file: &Path) -> Result<Imported, Failure> {
    let name = file.display();
    let json = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()).map(String::into_bytes),
        false => std::fs::read(file),
    };
    let json = json.with_context(|| format!("reading {name}")).map_err(Failure::Input)?;
    store.import(&json).map_err(|error| match error {
        ImportError::Store(error) => of_store(error),
        error => Failure::Input(anyhow::Error::new(error).context(name.to_string())),
    })
}
