//! `nearfar snapshot`: captures the machine into one file.

use std::path::PathBuf;

use clap::Args;
use nearfar_bench::options::ProbeOptions;
use nearfar_bench::timing;
use nearfar_sources::{Want, snapshot};

use crate::args::{SourceArgs, TaskArgs, budget, seconds};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::recorded::presence;
use crate::signals;

/// Capture what the sources read into one file, for --source of any verb
///
/// The file holds no environment and no command lines; of a process its number, short name, user, control group, CPU time, and
/// where it may run, runs and has its memory. Leave even that out with --no-tasks.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar snapshot -o this-server.nearfar\n  nearfar snapshot --no-tasks -o this-server.nearfar\n  \
                             nearfar snapshot --with-timing -o this-server.nearfar\n  \
                             nearfar snapshot -o - | ssh desk nearfar audit --source -"
)]
pub struct Snapshot {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    /// Measure what accesses take here for so long (30, in simulated time 1) and add it: a guest of the snapshot in simulated time then
    /// has these figures
    #[arg(
        long, value_name = "SECONDS", value_parser = seconds, num_args = 0..=1, require_equals = true
    )]
    with_timing: Option<Option<f64>>,
    /// Where to write it; an existing file is replaced, "-" is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl Snapshot {
    /// Reads and writes.
    pub fn run(self) -> Outcome {
        let mut machine = self.source.read(Want {
            tasks: self.tasks.scope(),
            ..Want::all()
        })?;
        if let Some(asked) = self.with_timing {
            let options = ProbeOptions {
                budget: budget(asked, 30.0, &machine),
                cancel: signals::cancel_flag(),
                ..ProbeOptions::default()
            };
            let _presence = presence("nearfar snapshot");
            let measured = timing::measure(&machine, &options).map_err(Failure::refused)?;
            for figure in &measured.unknown {
                output::say!("note: not in the snapshot: {figure}");
            }
            machine.timing = Some(measured.timing);
        }
        let mut content = Vec::new();
        snapshot::write(&machine, &mut content).map_err(Failure::refused)?;
        output::write_file(&self.output, &content)
    }
}
