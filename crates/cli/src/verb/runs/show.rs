//! `nearfar runs show`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use nearfar_machine::Machine;
use nearfar_report::document::Document;
use nearfar_report::runs::{self, Own, OwnError, PublishedFile};
use nearfar_runs::{CellSummary, Detail, Run, RunId, Sample, Store, summarise};
use serde::Serialize;

use super::Which;
use crate::args::{Colour, Format, StoreArgs, of_store};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Show a stored run: its machine and parameters, and the result of each cell
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs show last\n  nearfar runs show 12 --html run-12.html --svg run-12.svg\n  nearfar runs show 12 --format json\n  \
                       nearfar runs show 12 --published figures.csv --format mail"
)]
pub struct Show {
    /// Its number, or "last"
    #[arg(value_name = "RUN")]
    run: Which,
    #[command(flatten)]
    store: StoreArgs,
    /// Write the run also as a page: heat maps of its metrics, every sample, run times against time
    #[arg(long, value_name = "FILE", value_parser = output::named_file())]
    html: Option<PathBuf>,
    /// Write the charts of its primary metric and of its experiment as one picture (SVG)
    #[arg(long, value_name = "FILE", value_parser = output::named_file())]
    svg: Option<PathBuf>,
    /// Compare the order of the run's cells with that of published figures, where its experiment reads such a file: CSV, for bench tags
    /// with the columns scenario, variant, kiops and, if known, sys_percent; for bench scale processes, one_node, two_nodes, ...
    #[arg(long, value_name = "FILE")]
    published: Option<PathBuf>,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t = Form::Table, value_name = "FORMAT")]
    format: Form,
}

/// The formats.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    Table,
    /// For programs; documented in docs/json.md.
    Json,
    /// For issues and commit messages.
    Markdown,
    /// For mails: plain text in 72 columns, with the command to repeat it and what is not claimed.
    Mail,
}

impl From<Format> for Form {
    fn from(format: Format) -> Self {
        match format {
            Format::Table => Self::Table,
            Format::Json => Self::Json,
        }
    }
}

/// A file of published figures.
struct Figures {
    name: String,
    file: File,
}

impl Figures {
    fn open(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let opened = File::open(file).with_context(|| format!("cannot read {name}"));
        let file = opened.map_err(Failure::Input)?;
        Ok(Self { name, file })
    }
}

/// How a run is shown.
pub struct Shape<'a> {
    html: Option<&'a Path>,
    svg: Option<&'a Path>,
    published: Option<Figures>,
    form: Form,
    colour: Colour,
    /// A run that is not kept has no number.
    is_kept: bool,
}

impl Shape<'_> {
    /// As experiments show a run that they made.
    pub fn of(format: Format, colour: Colour, is_kept: bool) -> Self {
        Self {
            html: None,
            svg: None,
            published: None,
            form: format.into(),
            colour,
            is_kept,
        }
    }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<serde_json::Value>,
}

impl Show {
    pub fn run(self, colour: Colour) -> Outcome {
        if self.html.is_some() && self.html == self.svg {
            return Err(Failure::Input(anyhow!("--html and --svg name one file")));
        }
        let published = self.published.as_deref().map(Figures::open).transpose()?;
        let store = self.store.open_existing()?;
        let id = self.run.find(&store)?;
        let shape = Shape {
            html: self.html.as_deref(),
            svg: self.svg.as_deref(),
            published,
            ..Shape::of(Format::Table, colour, true)
        };
        let form = self.format;
        show(&store, id, &Shape { form, ..shape })
    }
}

/// What the run's experiment shows of it; `None` where it shows nothing of its own, or where a newer nearfar wrote it: what the runs
/// of all experiments have can be shown all the same.
pub fn own(
    shown: &runs::Shown<'_>,
    published: Option<PublishedFile<'_>>,
) -> Result<Option<Own>, Failure> {
    match shown.own(published) {
        Err(OwnError::Unreadable(error)) => {
            output::say!("nearfar: {error}; shown as a run of any experiment");
            Ok(None)
        }
        own => own.map_err(Failure::input),
    }
}

/// A stored run, read whole.
pub struct Stored {
    pub run: Run,
    pub detail: Detail,
    samples: Vec<Sample>,
    cells: Vec<CellSummary>,
    machine: Option<Machine>,
}

impl Stored {
    pub fn read(store: &Store, id: RunId) -> Result<Self, Failure> {
        let detail = store.detail(id).map_err(of_store)?;
        let samples = store.samples(id).map_err(of_store)?;
        Ok(Self {
            run: store.run(id).map_err(of_store)?,
            cells: summarise(&detail, &samples),
            machine: store.machine(id).ok(),
            detail,
            samples,
        })
    }

    pub fn shown(&self, is_kept: bool) -> runs::Shown<'_> {
        runs::Shown {
            run: &self.run,
            detail: &self.detail,
            machine: self.machine.as_ref(),
            cells: &self.cells,
            samples: &self.samples,
            is_kept,
        }
    }
}

/// Prints a stored run, and writes its page where a file is named.
pub fn show(store: &Store, id: RunId, shape: &Shape<'_>) -> Outcome {
    let stored = Stored::read(store, id)?;
    let shown = stored.shown(shape.is_kept);
    let figures = shape.published.as_ref();
    let mut file = figures.map(|it| &it.file);
    let published = figures.zip(file.as_mut());
    let published = published.map(|(Figures { name, .. }, input)| PublishedFile { name, input });
    let own = own(&shown, published)?;
    let (text, page, mail, answer, published) = match own {
        Some(own) => (
            Some(own.text),
            own.page,
            Some(own.mail),
            Some(own.json),
            own.published,
        ),
        None => (None, Document::new(), None, None, None),
    };
    if let Some(file) = shape.svg {
        let picture = runs::picture(&shown, page.clone());
        if !picture.has_drawing() {
            return Err(Failure::Input(anyhow!("--svg: run {id} has no charts")));
        }
        output::write_file(file, picture.to_svg().as_bytes())?;
        output::say!("picture: {}", file.display());
    }
    if let Some(file) = shape.html {
        let page = runs::page(&shown, page);
        output::write_file(file, page.to_html().as_bytes())?;
        output::say!("page: {}", file.display());
    }
    if shape.form == Form::Json {
        let json = Shown {
            run: &stored.run,
            detail: &stored.detail,
            summary: &stored.cells,
            answer,
            published,
        };
        let mut json = serde_json::to_value(&json).map_err(Failure::input)?;
        if !shape.is_kept {
            json["run"] = serde_json::Value::Null;
        }
        return output::print(&output::json("runs-show/2", None, &json)?);
    }
    let document = || match &text {
        Some(text) => {
            let mut document = runs::header(&shown);
            document.append(text.clone());
            document
        }
        None => runs::show(&shown),
    };
    output::print(&match shape.form {
        Form::Mail => runs::mail(Document::new(), &shown, mail, None),
        Form::Markdown => document().to_markdown(),
        Form::Table | Form::Json => document().to_text(&output::style(shape.colour)),
    })
}
