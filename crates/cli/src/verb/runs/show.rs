//! `nearfar runs show`.

use clap::Args;
use nearfar_bench::matrix;
use nearfar_runs::{CellSummary, Detail, Run, summarise};
use serde::Serialize;

use super::Which;
use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store};
use crate::failure::Outcome;
use crate::output;

/// Show a stored run: where and how it was made, and what its samples say cell by cell
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs show last\n  nearfar runs show 12 --format json"
)]
pub struct Show {
    /// Its number, or "last"
    #[arg(value_name = "RUN")]
    run: Which,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    run: &'a Run,
    #[serde(flatten)]
    detail: &'a Detail,
    summary: &'a [CellSummary],
}

impl Show {
    /// Reads and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let store = self.store.open_existing()?;
        let id = self.run.find(&store)?;
        let run = store.run(id).map_err(of_store)?;
        let (detail, samples) = (
            store.detail(id).map_err(of_store)?,
            store.samples(id).map_err(of_store)?,
        );
        let summary = summarise(&detail.plan, &detail.metrics, &samples);
        if self.format.format == Format::Json {
            let shown = Shown {
                run: &run,
                detail: &detail,
                summary: &summary,
            };
            return output::print(&output::json("runs-show/2", None, &shown)?);
        }
        let style = output::style(colour);
        let machine = store.machine(id).ok();
        if run.experiment == matrix::EXPERIMENT {
            match matrix::stored::answer(&run, &detail, &samples) {
                Ok(answer) => {
                    let header =
                        nearfar_report::runs::header(&run, &detail, machine.as_ref(), &style);
                    return output::print(&format!(
                        "{header}\n{}",
                        nearfar_report::probe::stored(&answer, &style)
                    ));
                }
                // Of a newer nearfar, say: what the runs of all experiments have can be shown all the same.
                Err(error) => output::say!("nearfar: {error}; shown as a run of any experiment"),
            }
        }
        let shown =
            nearfar_report::runs::show(&run, &detail, machine.as_ref(), &summary, &samples, &style);
        output::print(&shown)
    }
}
