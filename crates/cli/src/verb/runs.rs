//! `nearfar runs`: what experiments found, kept.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use nearfar_bench::registry::EXPERIMENTS;
use nearfar_machine::{Machine, alternatives};
use nearfar_report::document::Document;
use nearfar_report::runs::{self, Own, OwnError, PublishedFile};
use nearfar_runs::export::{
    HyperfineExport, ImportError, Imported, SCHEMA, Table, Whole, write_csv, write_parquet,
};
use nearfar_runs::{
    CellSummary, Detail, Filter, Run, RunId, Sample, Store, StoreError, now_s, summarise,
};
use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store};
use crate::failure::{Failure, Outcome, input};
use crate::output;
use crate::verb::ab;

/// List, show, export and remove stored runs
#[derive(Subcommand)]
#[command(
    after_long_help = "Examples:\n  nearfar runs list --experiment probe --since 7d\n  nearfar runs show 12\n  \
                       nearfar runs export 11 12 --format parquet -o runs.parquet\n  \
                       nearfar runs export last > run.json; nearfar runs import run.json --store other.db"
)]
pub enum Runs {
    List(List),
    Show(Show),
    Export(Export),
    Import(Import),
    Rm(Rm),
}

impl Runs {
    /// Answers.
    pub fn run(self, colour: Colour) -> Outcome {
        match self {
            Self::List(verb) => verb.run(colour),
            Self::Show(verb) => verb.run(colour),
            Self::Export(verb) => verb.run(),
            Self::Import(verb) => verb.run(colour),
            Self::Rm(verb) => verb.run(colour),
        }
    }
}

/// Which run is meant.
#[derive(Clone, Copy)]
enum Which {
    Number(RunId),
    Last,
}

impl std::str::FromStr for Which {
    type Err = nearfar_runs::RunIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "last" => Ok(Self::Last),
            number => number.parse().map(Self::Number),
        }
    }
}

impl Which {
    fn find_all(all: &[Self], store: &Store) -> Result<Vec<RunId>, Failure> {
        all.iter().map(|which| which.find(store)).collect()
    }

    fn find(self, store: &Store) -> Result<RunId, Failure> {
        match self {
            Self::Number(run) => Ok(run),
            Self::Last => {
                let newest = Filter {
                    limit: Some(1),
                    ..Filter::default()
                };
                let newest = store.list(&newest).map_err(of_store)?;
                let none = || input!("{} holds no run yet", store.path().display());
                newest.first().map(|run| run.run).ok_or_else(none)
            }
        }
    }
}

/// List stored runs, newest first
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs list\n  nearfar runs list --experiment probe --since 7d"
)]
pub struct List {
    /// Only runs of this experiment
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
    /// Only runs with this label
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,
    /// Only runs begun since: a day (2026-11-21, in UTC), or a time ago (90m, 12h, 7d, 2w)
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<f64>,
    /// List at most this many, the newest
    #[arg(long, value_name = "ROWS")]
    limit: Option<u32>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct Listed<'a> {
    store: &'a Path,
    runs: &'a [Run],
}

impl List {
    /// Lists; a store that is not there has no runs.
    fn run(self, colour: Colour) -> Outcome {
        let filter = Filter {
            experiment: self.experiment,
            label: self.label,
            since_s: self.since,
            limit: self.limit,
        };
        let store = self.store;
        let path = store.path()?;
        let place = path.display();
        let (runs, reason) = match Store::open_existing(&path) {
            Ok(store) => {
                let runs = store.list(&filter).map_err(of_store)?;
                let mut reason = String::new();
                if runs.is_empty() {
                    let all = store.list(&Filter::default()).map_err(of_store)?;
                    check_experiment(&all, filter.experiment.as_deref())?;
                    reason = match all.len() {
                        0 => format!("{place} holds no run yet"),
                        others => format!("none of the {others} in {place} was asked for"),
                    };
                }
                (runs, reason)
            }
            // The usual place has nothing yet; a file that was named has to be there.
            Err(error @ StoreError::Absent { .. }) if store.store.is_none() => {
                check_experiment(&[], filter.experiment.as_deref())?;
                (Vec::new(), error.to_string())
            }
            Err(error) => return Err(of_store(error)),
        };
        let document = || nearfar_report::runs::list(&runs, &reason);
        let listed = Listed {
            store: &path,
            runs: &runs,
        };
        self.format
            .print(colour, "runs-list/1", None, &listed, document)
    }
}

/// Fails for the name of an experiment that no run has and this nearfar does not make.
fn check_experiment(all: &[Run], experiment: Option<&str>) -> Outcome {
    let Some(asked) = experiment else {
        return Ok(());
    };
    let shown = EXPERIMENTS
        .iter()
        .map(|entry| &entry.declaration)
        .filter(|declaration| !declaration.is_hidden);
    let mut known: Vec<&str> = all
        .iter()
        .map(|run| run.experiment.as_str())
        .chain(shown.map(|declaration| declaration.name))
        .collect();
    known.sort_unstable();
    known.dedup();
    match known.contains(&asked) {
        true => Ok(()),
        false => Err(input!(
            "there is no experiment {asked:?}; {}",
            alternatives(asked, &known)
        )),
    }
}

/// Seconds since 1970 of a day or of a time ago.
fn since(text: &str) -> Result<f64, String> {
    let ago = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let unit = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return None,
        };
        number
            .parse::<u32>()
            .ok()
            .map(|number| now_s() - f64::from(number) * unit)
    };
    ago()
        .or_else(|| day(text))
        .ok_or_else(|| "a day such as 2026-11-21, or a time ago such as 12h or 7d".to_owned())
}

/// When a day of the Gregorian calendar begins, in UTC; for years from 1970 on. Years are counted from March, so that
/// the leap day comes last.
fn day(text: &str) -> Option<f64> {
    let mut parts = text.split('-');
    let mut number = |digits: usize| {
        let part = parts.next().filter(|part| {
            part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit())
        })?;
        part.parse::<i64>().ok()
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    if parts.next().is_some() || year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1..=longest).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days as f64 * 86_400.0)
}

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
    /// with the columns scenario, variant, kiops and, if known, sys_percent; for bench scale processes, one_node, two_nodes, ...;
    /// for bench probe pnid, nb, mem, cpu, and avg or migrations (docs/probe.md)
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
            is_kept,
            ..Self::of_form(format.into(), colour)
        }
    }

    /// A kept run.
    pub fn of_form(form: Form, colour: Colour) -> Self {
        Self {
            html: None,
            svg: None,
            published: None,
            form,
            colour,
            is_kept: true,
        }
    }
}

#[derive(Serialize)]
struct ShownRun<'a> {
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
            return Err(input!("--html and --svg name one file"));
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
            return Err(input!("--svg: run {id} has no charts"));
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
        let json = ShownRun {
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
    let (mut before, mut mail) = (Document::new(), mail);
    if shape.form == Form::Mail && stored.run.experiment == nearfar_report::ab::EXPERIMENT {
        match ab::compared(&store.whole(id).map_err(of_store)?) {
            Ok((compared, kernel)) => {
                let parameters = &stored.detail.parameters;
                let [question, answer] =
                    nearfar_report::ab::letter(parameters, &compared, kernel.as_ref());
                (before, mail) = (question, Some(answer));
            }
            // One that was interrupted may have runs of one side only.
            Err(Failure::Input(error) | Failure::Refused(error)) => {
                output::say!("nearfar: nothing is compared: {error:#}");
            }
            Err(failure) => return Err(failure),
        }
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
        Form::Mail => runs::mail(before, &shown, mail, None),
        Form::Markdown => document().to_markdown(),
        Form::Table | Form::Json => document().to_text(&output::style(shape.colour)),
    })
}

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
    /// Times of commands in the layout of `hyperfine --export-json`.
    Hyperfine,
}

#[derive(Serialize)]
struct Exported {
    runs: Vec<Whole>,
}

/// Runs of a store as JSON, for a store's import.
pub fn export_json(runs: Vec<Whole>) -> Result<String, Failure> {
    output::json(SCHEMA, None, &Exported { runs })
}

impl Export {
    /// Reads and writes.
    pub fn run(self) -> Outcome {
        let store = self.store.open_existing()?;
        let mut numbers = Which::find_all(&self.runs, &store)?;
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
                bytes = export_json(runs)?.into_bytes();
                bytes.push(b'\n');
            }
            Kind::Hyperfine => {
                let file = HyperfineExport::of(&runs).map_err(Failure::input)?;
                serde_json::to_writer_pretty(&mut bytes, &file).map_err(Failure::refused)?;
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

/// What is read of a file, in bytes: some 800,000 samples of the probe, which take two to three times the room while they are read.
const LARGEST: u64 = 1 << 30;

/// Add runs that were exported as JSON, on another system or in a guest, or results of hyperfine, fio, perf stat and mlc
///
/// Each gets the next free number. One that is here already is left alone. Of each file all runs are added or none.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs import run.json\n  nearfar runs import - --store other.db\n  \
                       nearfar runs import hyperfine.json fio.json"
)]
pub struct Import {
    /// What `runs export --format json`, `hyperfine --export-json`, `fio --output-format=json`, `perf stat -j` or Intel's
    /// Memory Latency Checker wrote; "-" for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl Import {
    /// Reads each file, adds its runs, says under which numbers.
    fn run(self, colour: Colour) -> Outcome {
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
            let document = || nearfar_report::runs::imported(&all);
            self.format
                .print(colour, "runs-import/1", None, &all, document)?;
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

/// Remove stored runs and their samples, without confirmation; prints what it removed
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar runs rm 12\n  nearfar runs rm 11 12")]
pub struct Rm {
    /// Their numbers, or "last"
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<Which>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl Rm {
    /// Removes all of them, or none where one is not there.
    fn run(self, colour: Colour) -> Outcome {
        let mut store = self.store.open_existing()?;
        let runs = Which::find_all(&self.runs, &store)?;
        let removed = store.remove(&runs).map_err(of_store)?;
        let document = || nearfar_report::runs::removed(&removed);
        self.format
            .print(colour, "runs-rm/1", None, &removed, document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_times_ago_are_understood() {
        assert_eq!(since("1970-01-01"), Ok(0.0));
        assert_eq!(since("2000-02-29"), Ok(951_782_400.0));
        assert_eq!(since("2026-11-21"), Ok(1_795_219_200.0));
        assert!((since("2h").unwrap() - (now_s() - 7200.0)).abs() < 5.0);
        for wrong in [
            "",
            "d",
            "-1d",
            "7",
            "7x",
            "2026-13-01",
            "2026-02-29",
            "2026-1-1",
            "1969-12-31",
            "2026-11-21-1",
            "é",
        ] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }
}
