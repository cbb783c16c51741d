//! Stored runs: a list of them, and one with what its samples say by cell.

mod factors;
mod mail;
mod over_time;
mod own;
mod page;
mod written;

use nearfar_machine::Machine;
use nearfar_runs::export::Imported;
use nearfar_runs::{
    Better, CellSummary, Detail, Factor, Metric, Removed, Run, RunState, Sample, counted,
};
use serde_json::Value;

use crate::amount::{count, lead, moment, or};
use crate::document::{Align, Document, Table, Text, cells};
use crate::style::Role;
use crate::summary::Summary;

pub(crate) use factors::Layout;
pub use mail::mail;
pub(crate) use own::Against;
pub use own::{Own, OwnError, PublishedFile};
pub(crate) use page::heat_map;
pub use page::{page, picture};
pub(crate) use written::Written;

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
    let when = moment(run.started_at_s.max(0.0) as u64);
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

/// `36 of 2304`, or the number alone when there are as many as were wanted.
fn samples_of(run: &Run) -> String {
    let good = run.samples - run.failed.min(run.samples);
    let wanted = run.cells.saturating_mul(u64::from(run.samples_per_cell));
    if good == wanted {
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
        let better = match metric.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
        };
        let unit = match written.unit {
            "" => String::new(),
            unit => format!("{unit}; "),
        };
        let confidence = match has_intervals(shown, metric) {
            true => format!("; {CONFIDENCE}"),
            false => String::new(),
        };
        out.heading(&metric.name, format!("{unit}{better}{confidence}"));
        out.table(table_of(shown, metric));
    }
    out
}

/// Where and how a run was made.
pub fn header(shown: &Shown<'_>) -> Document {
    let (run, detail) = (shown.run, shown.detail);
    let state = match &run.failure {
        Some(reason) => format!("{}: {reason}", run.state),
        None => run.state.to_string(),
    };
    let when = |at_s: f64| moment(at_s.max(0.0) as u64);
    let ended = run
        .finished_at_s
        .map(|at_s| format!(" to {}", when(at_s)))
        .unwrap_or_default();
    let machine = match shown.machine {
        Some(machine) => Summary::of(machine).line(),
        None => UNREADABLE.to_owned(),
    };
    let made = format!("{}{ended}, nearfar {}", when(run.started_at_s), run.nearfar);
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
        ("machine", machine.into()),
        (
            "emulated",
            Role::Warning.text(or(run.emulation.as_ref(), "")),
        ),
        ("samples", attempts(run, detail).into()),
        ("parameters", parameters(&detail.parameters).into()),
    ];
    out.facts(facts.into_iter().chain(targets(detail)));
    detail.warnings.iter().for_each(|it| out.warning(it));
    out
}

/// The machines that took the samples, a row each.
fn targets(detail: &Detail) -> impl Iterator<Item = (&'static str, Text)> {
    detail.targets.iter().map(|target| {
        let machine = serde_json::from_value(target.machine.clone());
        let machine = machine.map_or_else(
            |_| UNREADABLE.to_owned(),
            |machine| Summary::of(&machine).line(),
        );
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
fn table_of(shown: &Shown<'_>, metric: &Metric) -> Table {
    let figures = [
        "avg",
        "max",
        "min",
        "stdev",
        "median",
        "confidence",
        "samples",
        "warnings",
        "failed",
    ];
    let factors = shown.detail.factors.iter();
    let factors = factors.map(|factor| (factor.name.as_str(), Align::Left));
    let figures = figures.map(|name| (name, Align::Right));
    let columns: Vec<_> = factors.chain(figures).collect();
    let written = Written::of(shown, metric);
    let mut table = Table::new(&columns).caption(format!("{}, by cell", written.title()));
    for cell in shown.cells {
        let level = |factor: &Factor| Role::Subject.text(or(cell.cell.level(&factor.name), ""));
        let factors = shown.detail.factors.iter().map(level);
        table.row(factors.chain(figures_of(cell, &written)));
    }
    table
}

fn figures_of(cell: &CellSummary, written: &Written<'_>) -> [Text; 9] {
    let number = |value: Option<f64>| or(value.map(|value| written.text(value)), "");
    let unless_zero =
        |role: Role, number: usize| role.text(or(Some(number).filter(|it| *it > 0), ""));
    let figures = cell.metric(written.name());
    let moments = figures.and_then(|figures| figures.moments);
    let interval = figures.and_then(|figures| figures.confidence);
    let interval = interval.map(|it| written.interval(it.low, it.high));
    cells![
        number(moments.map(|moments| moments.mean)),
        number(moments.map(|moments| moments.max)),
        number(moments.map(|moments| moments.min)),
        number(moments.and_then(|moments| moments.stdev)),
        number(figures.and_then(|figures| figures.median)),
        or(interval, ""),
        figures.map_or(0, |figures| figures.samples),
        unless_zero(Role::Warning, cell.with_warnings),
        unless_zero(Role::Critical, cell.failed),
    ]
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
    let hidden = all.len().saturating_sub(MAX_WARNINGS);
    out.more(hidden, "; `nearfar runs export` has all of them");
}

/// What was removed.
pub fn removed(removed: &Removed) -> Document {
    let mut out = Document::new();
    for run in &removed.runs {
        let label = or(run.label.as_ref().map(|label| format!(" \"{label}\"")), "");
        let samples = count(usize::try_from(run.samples).unwrap_or(usize::MAX), "sample");
        let begun = moment(run.started_at_s.max(0.0) as u64);
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
