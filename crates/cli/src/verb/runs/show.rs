//! `nearfar runs show`.

use std::path::{Path, PathBuf};

use clap::Args;
use nearfar_report::document::Document;
use nearfar_report::runs;
use nearfar_runs::{CellSummary, Detail, Run, RunId, Store, summarise};
use serde::Serialize;

use super::Which;
use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Show a stored run: its machine and parameters, and the result of each cell
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs show last\n  nearfar runs show 12 --html run-12.html\n  nearfar runs show 12 --format json"
)]
pub struct Show {
    /// Its number, or "last"
    #[arg(value_name = "RUN")]
    run: Which,
    #[command(flatten)]
    store: StoreArgs,
    /// Write the run also as a page: heat maps of its metrics, every sample, run times against time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
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
    /// What the experiment adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<serde_json::Value>,
}

impl Show {
    pub fn run(self, colour: Colour) -> Outcome {
        if self.html.as_deref() == Some(Path::new("-")) {
            return Err(Failure::Input(anyhow::anyhow!(
                "--html -: standard output has the table; name a file for the page"
            )));
        }
        let store = self.store.open_existing()?;
        let id = self.run.find(&store)?;
        show(
            &store,
            id,
            self.html.as_deref(),
            self.format.format,
            colour,
            true,
        )
    }
}

/// Prints a stored run, and writes its page where a file is named. A run that is not kept has no number.
pub fn show(
    store: &Store,
    id: RunId,
    html: Option<&Path>,
    format: Format,
    colour: Colour,
    is_kept: bool,
) -> Outcome {
    let run = store.run(id).map_err(of_store)?;
    let (detail, samples) = (
        store.detail(id).map_err(of_store)?,
        store.samples(id).map_err(of_store)?,
    );
    let summary = summarise(&detail.plan, &detail.metrics, &samples);
    let machine = store.machine(id).ok();
    let shown = runs::Shown {
        run: &run,
        detail: &detail,
        machine: machine.as_ref(),
        cells: &summary,
        samples: &samples,
        is_kept,
    };
    // What the runs of all experiments have can be shown also where a newer nearfar wrote the rest.
    let own = shown.own().and_then(|own| {
        own.inspect_err(|error| output::say!("nearfar: {error}; shown as a run of any experiment"))
            .ok()
    });
    let (text, page, answer) = match own {
        Some(own) => (Some(own.text), own.page, Some(own.json)),
        None => (None, Document::new(), None),
    };
    if let Some(file) = html {
        let page = runs::page(&shown, page);
        output::write_file(file, page.to_html().as_bytes())?;
        output::say!("page: {}", file.display());
    }
    if format == Format::Json {
        let json = Shown {
            run: &run,
            detail: &detail,
            summary: &summary,
            answer,
        };
        let mut json = serde_json::to_value(&json).map_err(Failure::input)?;
        if !is_kept {
            json["run"] = serde_json::Value::Null;
        }
        return output::print(&output::json("runs-show/2", None, &json)?);
    }
    let document = match text {
        Some(text) => {
            let mut document = runs::header(&shown);
            document.append(text);
            document
        }
        None => runs::show(&shown),
    };
    output::print(&document.to_text(&output::style(colour)))
}
