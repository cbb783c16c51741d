//! `nearfar topo`: shows the machine.

use clap::{Args, ValueEnum};
use nearfar_placement::pairs;
use nearfar_sources::{TaskScope, Want, hwloc_xml, snapshot};

use crate::args::{Colour, SourceArgs, TaskArgs};
use crate::failure::{Outcome, input};
use crate::output;

/// Show nodes, distances, CPUs, caches and devices
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar topo\n  nearfar topo --source kunpeng --format svg > kunpeng.svg\n  \
                             nearfar topo --source mail.txt\n  nearfar topo --pairs\n  nearfar topo --fake 2U --format hwloc-xml | lstopo --if xml -i -"
)]
pub struct Topo {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    /// How the machine is shown
    #[arg(long, value_enum, default_value_t = TopoFormat::Table, value_name = "FORMAT")]
    format: TopoFormat,
    /// Show which network card is nearest to which GPU and disk, and what they share: a PCI bridge, the host bridge or the
    /// node (as a table or JSON)
    #[arg(long)]
    pairs: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TopoFormat {
    /// For people
    Table,
    /// Everything that is known, for programs
    Json,
    /// For lstopo and everything else that reads hwloc's XML
    HwlocXml,
    /// For graphviz
    Dot,
    /// A picture
    Svg,
}

impl Topo {
    /// Reads and shows.
    pub fn run(self, colour: Colour) -> Outcome {
        let mut want = Want {
            tasks: self.tasks.scope(),
            names: true,
            ..Want::all()
        };
        if self.format != TopoFormat::Json {
            want.interrupt_counts = false;
            // Only JSON shows processes. Those that are named are read nevertheless: they have to be there.
            if want.tasks == TaskScope::All {
                want.tasks = TaskScope::None;
            }
        }
        if self.pairs && !matches!(self.format, TopoFormat::Table | TopoFormat::Json) {
            return Err(input!(
                "--pairs is a table or JSON: leave --format out, or add --format json"
            ));
        }
        let machine = self.source.read(want)?;
        if self.pairs {
            let (pairs, paths) = (pairs::nearest_cards(&machine), pairs::gpu_paths(&machine));
            return output::print(&match self.format {
                TopoFormat::Json => {
                    let answer = serde_json::json!({ "pairs": pairs, "paths": paths });
                    output::json("pairs/1", Some(&machine.origin), &answer)?
                }
                _ => {
                    let document = nearfar_report::topo::pairs(&machine, &pairs, &paths);
                    document.to_text(&output::style(colour))
                }
            });
        }
        output::print(&match self.format {
            TopoFormat::Table => {
                nearfar_report::topo::document(&machine).to_text(&output::style(colour))
            }
            TopoFormat::Json => output::json(snapshot::TOPO_SCHEMA, None, &machine)?,
            TopoFormat::HwlocXml => hwloc_xml::render(&machine),
            TopoFormat::Dot => nearfar_report::topo::dot(&machine),
            TopoFormat::Svg => nearfar_report::topo::svg(&machine),
        })
    }
}
