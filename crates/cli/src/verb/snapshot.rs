//! `nearfar snapshot`: captures the machine into one file.

use std::path::PathBuf;

use clap::Args;
use nearfar_sources::{Want, snapshot};

use crate::args::{SourceArgs, TaskArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Capture what the sources read into one file, for --source of any verb
///
/// The file holds no environment and no command lines; of a process only its number, its short name and where it
/// runs and has its memory. Leave even that out with --no-tasks.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar snapshot -o this-server.nearfar\n  nearfar snapshot --no-tasks -o this-server.nearfar\n  \
                             nearfar snapshot -o - | ssh desk nearfar audit --source -"
)]
pub struct Snapshot {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    /// Where to write it; an existing file is replaced, "-" is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl Snapshot {
    /// Reads and writes.
    pub fn run(self) -> Outcome {
        let machine = self.source.read(Want {
            tasks: self.tasks.scope(),
            ..Want::all()
        })?;
        let mut content = Vec::new();
        snapshot::write(&machine, &mut content).map_err(Failure::refused)?;
        output::write_file(&self.output, &content)
    }
}
