//! `nearfar path`: which NVMe path I/O takes from a CPU.

use clap::Args;
use nearfar_machine::CpuId;
use nearfar_placement::path;
use nearfar_sources::Want;

use crate::args::{Colour, FormatArgs, SourceArgs};
use crate::failure::{Failure, Outcome};

/// Show which NVMe path each I/O policy takes from a CPU, and why
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar path --cpu 0 --subsystem nvme-subsys0")]
pub struct Path {
    #[command(flatten)]
    source: SourceArgs,
    /// The CPU that submits the I/O
    #[arg(long, value_name = "C")]
    cpu: u32,
    /// The subsystem as the kernel names it (nvme-subsys0), a controller of it (nvme0), or a namespace (nvme0n1)
    #[arg(long, value_name = "NAME")]
    subsystem: String,
    #[command(flatten)]
    format: FormatArgs,
}

impl Path {
    /// Reads, answers, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let want = Want {
            interrupts: false,
            ..Want::audit()
        };
        let machine = self.source.read(want)?;
        let answer =
            path::paths(&machine, &self.subsystem, CpuId(self.cpu)).map_err(Failure::input)?;
        let document = || nearfar_report::path::document(&answer);
        self.format
            .print(colour, "path/1", Some(&machine.origin), &answer, document)
    }
}
