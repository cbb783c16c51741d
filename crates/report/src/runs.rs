//! Stored runs: a list of them, one with what its samples say by cell, and the same as the text of a mail: what machine, what was run
//! and how to repeat it, what was found, what is not claimed.

mod cells;
mod own;
mod page;

use nearfar_bench::registry::EXPERIMENTS;
use nearfar_lab::{repeat, shell};
use nearfar_machine::{Emulation, Machine};
use nearfar_runs::export::Imported;
use nearfar_runs::{
    Better, CellSummary, Detail, Metric, MetricSummary, Removed, Run, RunState, RunTarget, Sample,
    counted,
};
use serde_json::Value;

use crate::ab;
use crate::amount::{count, lead, moment, or};
use crate::document::{Document, Table, Text, cells};
use crate::style::{Role, Style};
use crate::summary::Summary;

pub(crate) use cells::{Column, Layout, Written, cell_table};
pub(crate) use own::BoxError;
pub use own::{Own, OwnError, PublishedFile};
pub(crate) use page::heat_map;
pub use page::{page, picture};

/// Instead of a machine whose description cannot be read.
const UNREADABLE: &str = "unknown: its description in the store is damaged, or a newer nearfar's";
/// What the column "confidence" is.
const CONFIDENCE: &str = "confidence: 95 % interval of the median";
/// Most different warnings that are shown.
const MAX_WARNINGS: usize = 8;

/// A line a run, newest first. `reason` says why there is none where there is none.
pub fn list(runs: &[Run], reason: &str) -> Document {
    let mut out = Document::new();
    if runs.is_empty() {
        out.heading("No runs", reason);
        return out;
    }
    let columns = [
        ">run",
        "begun (UTC)",
        "experiment",
        "label",
        ">samples",
        "state",
        "host",
        "kernel",
        "",
    ];
    let mut table = Table::of(columns).caption("Runs").indent(0);
    runs.iter().for_each(|run| table.row(line(run)));
    out.table(table);
    out
}

fn line(run: &Run) -> [Text; 9] {
    // The heading says UTC once: the column has to leave room for names of kernels.
    let when = when(run.started_at_s);
    cells![
        Role::Subject.text(run.run),
        when.trim_end_matches(" UTC"),
        &run.experiment,
        run.label.as_deref().unwrap_or(""),
        samples_of(run),
        role_of(run.state).text(run.state),
        Role::Dim.text(&run.host),
        Role::Dim.text(&run.kernel),
        Role::Dim.text(run.emulation.as_ref().map_or("", |_| "emulated")),
    ]
}

/// `36 of 2304`, or the number alone when there are as many as were wanted: all of them, or fewer of a run that needed no more.
fn samples_of(run: &Run) -> String {
    let good = run.samples - run.failed.min(run.samples);
    let wanted = run.cells.saturating_mul(u64::from(run.samples_per_cell));
    if good == wanted || run.state == RunState::Complete && run.failed == 0 {
        good.to_string()
    } else {
        format!("{good} of {wanted}")
    }
}

fn role_of(state: RunState) -> Role {
    match state {
        RunState::Complete => Role::Local,
        RunState::Running => Role::Notice,
        RunState::Interrupted | RunState::OutOfSight => Role::Warning,
        RunState::Failed => Role::Critical,
    }
}

/// A stored run as its renderers see it.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    pub run: &'a Run,
    pub detail: &'a Detail,
    /// `None` where an older or newer program's description of it cannot be read.
    pub machine: Option<&'a Machine>,
    /// In the order of tables.
    pub cells: &'a [CellSummary],
    /// In the order they were taken.
    pub samples: &'a [Sample],
    /// Whether the run is in a store that stays, where its number finds it.
    pub is_kept: bool,
}

/// One run: where and how it was made, and each cell's samples summed up.
pub fn show(shown: &Shown<'_>) -> Document {
    let mut out = header(shown);
    out.append(tables(shown));
    warnings_of(shown, &mut out);
    out
}

/// A table a metric.
pub fn tables(shown: &Shown<'_>) -> Document {
    let mut out = Document::new();
    for metric in &shown.detail.metrics {
        let written = Written::of(shown, metric);
        let unit = match written.unit {
            "" => String::new(),
            unit => format!("{unit}; "),
        };
        let confidence = match has_intervals(shown, metric) {
            true => format!("; {CONFIDENCE}"),
            false => String::new(),
        };
        out.heading(
            &metric.name,
            format!("{unit}{}{confidence}", better(metric)),
        );
        out.table(table_of(shown, metric));
    }
    out
}

/// Which direction of a metric is better.
pub(crate) fn better(metric: &Metric) -> &'static str {
    match metric.better {
        Better::Lower => "lower is better",
        Better::Higher => "higher is better",
    }
}

/// Where and how a run was made.
pub fn header(shown: &Shown<'_>) -> Document {
    let (run, detail) = (shown.run, shown.detail);
    let state = match &run.failure {
        Some(reason) => format!("{}: {reason}", run.state),
        None => run.state.to_string(),
    };
    let ended = run.finished_at_s;
    let ended = or(ended.map(|at_s| format!(" to {}", when(at_s))), "");
    let mut made = format!("{}{ended}", when(run.started_at_s));
    if !run.nearfar.is_empty() {
        made += &format!(", nearfar {}", run.nearfar);
    }
    let emulated = Role::Warning.text(or(run.emulation.as_ref(), ""));
    let host = match detail.targets.is_empty() {
        true => format!("{}, {} {}", run.host, run.kernel, detail.kernel_version),
        // The kernels of the run are those of its targets.
        false => run.host.clone(),
    };
    let mut out = match shown.is_kept {
        true => Document::titled(format!("Run {}", run.run), &run.title),
        false => Document::titled(format!("{} (not stored)", run.title), ""),
    };
    let facts = [
        ("label", Role::Subject.text(or(run.label.as_ref(), ""))),
        ("state", role_of(run.state).text(state)),
        ("made", made.into()),
        ("host", host.into()),
        ("machine", machine_line(shown.machine).into()),
        ("emulated", emulated),
        ("samples", attempts(run, detail).into()),
        ("parameters", parameters(&detail.parameters).into()),
    ];
    out.facts(facts.into_iter().chain(targets(detail)));
    detail.warnings.iter().for_each(|it| out.warning(it));
    out
}

/// Results of other programs do not all say when they were measured.
fn when(at_s: f64) -> String {
    match at_s > 0.0 {
        true => moment(at_s as u64),
        false => "unknown".to_owned(),
    }
}

fn machine_line(machine: Option<&Machine>) -> String {
    machine.map_or_else(|| UNREADABLE.to_owned(), |it| Summary::of(it).line())
}

/// `8 samples of each of 3 cells`.
fn samples_of_each(shown: &Shown<'_>) -> String {
    let samples = count(shown.run.samples_per_cell as usize, "sample");
    format!(
        "{samples} of each of {}",
        count(shown.detail.plan.len(), "cell")
    )
}

/// The machines that took the samples, a row each.
fn targets(detail: &Detail) -> impl Iterator<Item = (&'static str, Text)> {
    detail.targets.iter().map(|target| {
        let machine = serde_json::from_value::<Machine>(target.machine.clone()).ok();
        let machine = machine_line(machine.as_ref());
        let levels = match target.levels.to_string() {
            text if text.is_empty() => text,
            text => format!("{text}: "),
        };
        let kernel = &target.host.kernel;
        ("target", format!("{levels}{kernel}, {machine}").into())
    })
}

fn attempts(run: &Run, detail: &Detail) -> String {
    // Warnings about the whole run stand below; a bare "0 with warnings" would deny them.
    let whole = match detail.warnings.len() {
        0 => String::new(),
        number => format!("; {} about the run", count(number, "warning")),
    };
    format!(
        "{} in {}, seed {}, {} with warnings, {} failed{whole}",
        samples_of(run),
        count(detail.plan.len(), "cell"),
        detail.seed,
        run.with_warnings,
        run.failed
    )
}

/// `bytes=1073741824 load=60`, by name; what is no single value is left to JSON.
fn parameters(parameters: &Value) -> String {
    let Value::Object(members) = parameters else {
        return parameters.to_string();
    };
    let one = |(name, value): (&String, &Value)| match value {
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        Value::String(text) => Some(format!("{name}={text}")),
        scalar => Some(format!("{name}={scalar}")),
    };
    members.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

/// Whether a cell of the metric has an interval.
fn has_intervals(shown: &Shown<'_>, metric: &Metric) -> bool {
    let cells = shown.cells.iter();
    let mut figures = cells.filter_map(|cell| cell.metric(&metric.name));
    figures.any(|figures| figures.confidence.is_some())
}

/// Every figure of a metric, a line a cell.
fn table_of<'a>(shown: &Shown<'a>, metric: &'a Metric) -> Table {
    type Figure = fn(&MetricSummary) -> Option<f64>;
    let (name, written) = (&metric.name, Written::of(shown, metric));
    let figures: [(&str, Figure); 5] = [
        ("avg", |it| Some(it.moments?.mean)),
        ("max", |it| Some(it.moments?.max)),
        ("min", |it| Some(it.moments?.min)),
        ("stdev", |it| it.moments?.stdev),
        ("median", |it| it.median),
    ];
    let figures = figures
        .map(|(head, figure)| shown.column(name, head, move |it| Some(written.text(figure(it)?))));
    let others = [
        shown.intervals(name, "confidence"),
        shown.column(name, "samples", |it| Some(it.samples.to_string())),
        Some(Column::counted("warnings", Role::Warning, |it| {
            it.with_warnings
        })),
        Some(Column::counted("failed", Role::Critical, |it| it.failed)),
    ];
    let factors = shown.detail.factors.iter();
    let factors = factors.map(|it| {
        Some(Column::named(&it.name, Role::Subject, move |cell| {
            cell.text(&it.name)
        }))
    });
    let table = cell_table(shown.cells, factors.chain(figures).chain(others));
    table.caption(format!("{}, by cell", written.title()))
}

/// What was wrong with samples, the most frequent first, and why some failed.
pub(crate) fn warnings_of(shown: &Shown<'_>, out: &mut Document) {
    let samples = shown.samples.iter();
    let failed = counted(samples.clone().filter_map(|it| it.failed.as_deref()));
    let warnings = counted(samples.flat_map(|it| &it.warnings).map(String::as_str));
    let failed = failed.iter().map(|it| (Role::Critical, " failed", it));
    let warnings = warnings
        .iter()
        .map(|it| (Role::Warning, " with warnings", it));
    let all: Vec<_> = failed.chain(warnings).collect();
    if all.is_empty() {
        return;
    }
    out.heading("Warnings", "");
    for (role, how, counted) in all.iter().take(MAX_WARNINGS) {
        out.labelled(role.text(lead(counted, "sample", how)), &counted.what);
    }
    out.more(
        all.len(),
        MAX_WARNINGS,
        "; `nearfar runs export` has all of them",
    );
}

/// What was removed.
pub fn removed(removed: &Removed) -> Document {
    let mut out = Document::new();
    for run in &removed.runs {
        let label = or(run.label.as_ref().map(|label| format!(" \"{label}\"")), "");
        let samples = count(usize::try_from(run.samples).unwrap_or(usize::MAX), "sample");
        let begun = when(run.started_at_s);
        let (number, experiment) = (run.run, &run.experiment);
        let text = format!("removed run {number}: {experiment}{label} of {begun}, {samples}");
        out.indented(0, "", text);
    }
    out
}

/// What an import added.
pub fn imported(imported: &Imported) -> Document {
    let mut out = Document::new();
    for run in &imported.runs {
        out.indented(0, "", format!("imported as run {run}"));
    }
    for run in &imported.already {
        out.indented(0, "", format!("already here as run {run}"));
    }
    out
}

/// Columns that a mail shows without wrapping, also when it is quoted.
const MAIL_COLUMNS: usize = 72;

/// The mail: `before`, then the run; `of_experiment` is what its experiment shows of it, `None` for a table a metric. `repeated_by`
/// is a command that repeats the run, in place of the one that follows from what was stored.
pub fn mail(
    before: Document,
    shown: &Shown<'_>,
    of_experiment: Option<Document>,
    repeated_by: Option<String>,
) -> String {
    let mut out = before;
    out.facts(mail_facts(shown));
    let is_derived = repeated_by.is_none();
    let command = repeated_by.or_else(|| command(shown));
    if let Some(command) = &command {
        out.heading("To repeat it", "");
        out.command(command);
    }
    match of_experiment {
        Some(document) => out.append(document),
        None => out.append(tables(shown)),
    }
    not_claimed(shown, is_derived && command.is_some(), &mut out);
    let style = Style {
        colour: false,
        width: MAIL_COLUMNS,
    };
    out.to_text(&style)
}

fn mail_facts<'a>(shown: &Shown<'a>) -> impl Iterator<Item = (&'static str, Text)> + use<'a> {
    let (run, detail) = (shown.run, shown.detail);
    let emulated = or(run.emulation.as_ref(), "");
    let kernel = match detail.targets.is_empty() {
        true => format!("Linux {} {}", run.kernel, detail.kernel_version),
        // Those of its targets are named with them.
        false => String::new(),
    };
    let (samples, when) = (samples_of_each(shown), when(run.started_at_s));
    let samples = format!("{samples} ({when}), nearfar {}", run.nearfar);
    let facts = [
        ("machine", machine_line(shown.machine).into()),
        ("emulated", emulated.into()),
        ("kernel", kernel.trim().into()),
        ("experiment", run.title.as_str().into()),
        ("samples", samples.into()),
    ];
    facts.into_iter().chain(targets(detail))
}

/// The command that makes a run as this one, in guests as its own; `None` for an experiment that the registry does not have.
fn command(shown: &Shown<'_>) -> Option<String> {
    if let Some(words) = ab::command(shown) {
        return Some(shell::words(words.into_iter().map(Into::into)));
    }
    let mut declarations = EXPERIMENTS.iter().map(|entry| &entry.declaration);
    let declaration = declarations.find(|it| it.name == shown.run.experiment)?;
    let mut words = Vec::new();
    let guest = shown.run.emulation.as_ref().and_then(Emulation::guest);
    let is_in_guest = shown.detail.targets.is_empty() && guest.is_some();
    if let Some(guest) = guest.filter(|_| is_in_guest) {
        words.extend(["nearfar", "lab", "run"].map(str::to_owned));
        let options = repeat::options(guest).into_iter();
        words.extend(options.map(|(key, value)| format!("--{key}={value}")));
        words.extend(["--results=results", "--"].map(str::to_owned));
    }
    words.extend(declaration.command(shown.run, shown.detail));
    words.extend(guest_words(&shown.detail.targets));
    // What a guest stores elsewhere ends with it.
    words.extend(is_in_guest.then(|| "--store=/results/runs.db".to_owned()));
    Some(shell::words(words.into_iter().map(Into::into)))
}

/// `--guest KEY=VALUE` of the guests that took the samples: what is the same in all of them once, what is varied as it was given.
fn guest_words(targets: &[RunTarget]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for target in targets {
        let guest = target.emulation.as_ref().and_then(Emulation::guest);
        let options = guest.map(repeat::options).unwrap_or_default().into_iter();
        // Simulated time is the default of some experiments.
        let host_time = guest.filter(|it| it.simulated_time.is_none());
        let options = options.chain(host_time.map(|_| ("time", "host".to_owned())));
        let same = options.filter(|(key, _)| target.levels.level(key).is_none());
        let same = same.map(|(key, value)| format!("--guest={key}={value}"));
        let varied = target.levels.levels();
        let varied = varied.map(|(key, level)| format!("--guest={key}={level}"));
        for word in same.chain(varied) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    words
}

/// What the figures do not say.
fn not_claimed(shown: &Shown<'_>, has_derived_command: bool, out: &mut Document) {
    let (run, detail) = (shown.run, shown.detail);
    out.heading("Not claimed", "");
    if run.emulation.is_some() || detail.targets.iter().any(|it| it.emulation.is_some()) {
        out.paragraph(
            "How fast a real machine is: the delays of this one are modelled. Orders and ratios are of this model.",
        );
    }
    if run.experiment != ab::EXPERIMENT {
        out.paragraph(
            "What differs from boot to boot: all samples are of one run, and so are the intervals.",
        );
    }
    if run.state != RunState::Complete {
        out.paragraph(format!("That the run is complete: it is {}.", run.state));
    }
    if run.failed + run.with_warnings > 0 {
        out.paragraph(format!(
            "That all samples are sound: {} failed, {} have warnings; `nearfar runs show {}` has them.",
            run.failed, run.with_warnings, run.run
        ));
    }
    let is_unknown = |it: &Option<Emulation>| it.as_ref().is_some_and(|it| it.guest().is_none());
    let mut emulated = detail.targets.iter().map(|it| &it.emulation);
    // That of a run in several guests is a summary of theirs.
    let is_unknown_here = detail.targets.is_empty() && is_unknown(&run.emulation);
    if has_derived_command && (is_unknown_here || emulated.any(is_unknown)) {
        out.paragraph("That the command above is whole: how the guest was started was not stored.");
    }
}
