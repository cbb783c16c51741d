//! Stored runs: a list of them, and one with what its samples say by cell.

use nearfar_machine::Machine;
use nearfar_runs::export::Imported;
use nearfar_runs::{Better, CellSummary, Detail, Metric, Removed, Run, RunState, Sample, counted};
use serde_json::Value;

use crate::amount::{count, lead, moment};
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};
use crate::summary::Summary;

/// Most different warnings that are shown.
const MOST_DOUBTS: usize = 8;

/// A line a run, newest first.
///
/// `because` says why there is none where there is none.
pub fn list(runs: &[Run], because: &str, style: &Style) -> String {
    if runs.is_empty() {
        return whole(heading(style, "No runs", because));
    }
    let mut grid = Grid::new(&[
        ("run", Side::Right),
        ("begun (UTC)", Side::Left),
        ("experiment", Side::Left),
        ("label", Side::Left),
        ("samples", Side::Right),
        ("state", Side::Left),
        ("host", Side::Left),
        ("kernel", Side::Left),
        ("", Side::Left),
    ])
    .indent(0);
    for run in runs {
        grid.row(vec![
            Cell::new(Role::Subject, run.run.to_string()),
            // The heading says it once: the column has to leave room for names of kernels.
            Cell::from(moment(run.started_at_s.max(0.0) as u64).trim_end_matches(" UTC")),
            Cell::from(&run.experiment),
            Cell::from(run.label.as_deref().unwrap_or("")),
            Cell::from(samples_of(run)),
            Cell::new(role_of(run.state), run.state.to_string()),
            Cell::new(Role::Dim, &run.host),
            Cell::new(Role::Dim, &run.kernel),
            Cell::new(
                Role::Dim,
                if run.emulation.is_some() {
                    "emulated"
                } else {
                    ""
                },
            ),
        ]);
    }
    grid.render(style)
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

/// One run: where and how it was made, and each cell's samples summed up. `machine` is left out where an older or newer
/// program's description of it cannot be read.
pub fn show(
    run: &Run,
    detail: &Detail,
    machine: Option<&Machine>,
    cells: &[CellSummary],
    samples: &[Sample],
    style: &Style,
) -> String {
    let mut out = header(run, detail, machine, style);
    for metric in &detail.metrics {
        let better = match metric.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
        };
        let unit = match metric.unit.as_str() {
            "" => String::new(),
            unit => format!("{unit}; "),
        };
        out.push_str(&heading(
            style,
            &metric.name,
            &format!("{unit}{better}; confidence: 95 % interval of the median"),
        ));
        out.push_str(&table_of(detail, metric, cells, style));
    }
    out.push_str(&warnings(samples, style));
    whole(out)
}

/// Where and how a run was made.
pub fn header(run: &Run, detail: &Detail, machine: Option<&Machine>, style: &Style) -> String {
    let mut grid = Grid::new(&[("", Side::Left), ("", Side::Left)]);
    let mut line = |name: &str, role: Role, text: &str| {
        if !text.is_empty() {
            grid.row(vec![Cell::new(Role::Dim, name), Cell::new(role, text)]);
        }
    };
    line("label", Role::Subject, run.label.as_deref().unwrap_or(""));
    let state = match &run.failure {
        Some(because) => format!("{}: {because}", run.state),
        None => run.state.to_string(),
    };
    line("state", role_of(run.state), &state);
    let when = |at_s: f64| moment(at_s.max(0.0) as u64);
    let ended = run
        .finished_at_s
        .map(|at_s| format!(" to {}", when(at_s)))
        .unwrap_or_default();
    line(
        "made",
        Role::Plain,
        &format!("{}{ended}, nearfar {}", when(run.started_at_s), run.nearfar),
    );
    line(
        "host",
        Role::Plain,
        &format!("{}, {} {}", run.host, run.kernel, detail.kernel_version),
    );
    let unreadable =
        || "not known: its description in the store is damaged, or a newer nearfar's".to_owned();
    line(
        "machine",
        Role::Plain,
        &machine.map_or_else(unreadable, |machine| Summary::of(machine).line()),
    );
    line(
        "emulated",
        Role::Warning,
        &run.emulation
            .as_ref()
            .map_or_else(String::new, ToString::to_string),
    );
    let attempts = format!(
        "{} in {}, seed {}",
        samples_of(run),
        count(detail.plan.len(), "cell"),
        detail.seed
    );
    // Warnings about the whole run stand below; a bare "0 with warnings" would deny them.
    let (own, whole) = match detail.warnings.len() {
        0 => ("", String::new()),
        number => (
            " of their own",
            format!("; {} about the whole run", count(number, "warning")),
        ),
    };
    let text = format!(
        "{attempts}, {} with warnings{own}, {} failed{whole}",
        run.with_warnings, run.failed
    );
    line("samples", Role::Plain, &text);
    line("parameters", Role::Plain, &parameters(&detail.parameters));
    let mut out = heading(style, &format!("Run {}", run.run), &run.title);
    out.push_str(&grid.render(style));
    for warning in &detail.warnings {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Warning, "! "),
            Role::Plain,
            warning,
        ));
    }
    out
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

fn table_of(detail: &Detail, metric: &Metric, cells: &[CellSummary], style: &Style) -> String {
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
    let factors = detail
        .factors
        .iter()
        .map(|factor| (factor.name.as_str(), Side::Left));
    let columns: Vec<_> = factors
        .chain(figures.map(|name| (name, Side::Right)))
        .collect();
    let mut grid = Grid::new(&columns);
    let largest = cells
        .iter()
        .filter_map(|cell| cell.metric(&metric.name)?.moments)
        .map(|moments| moments.max.abs())
        .fold(0.0, f64::max);
    let decimals = decimals(largest);
    let number =
        |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.decimals$}"));
    let unless_zero = |number: usize| {
        if number == 0 {
            String::new()
        } else {
            number.to_string()
        }
    };
    for cell in cells {
        let level = |name: &str| {
            cell.cell
                .level(name)
                .map_or_else(String::new, ToString::to_string)
        };
        let mut row: Vec<Cell> = detail
            .factors
            .iter()
            .map(|factor| Cell::new(Role::Subject, level(&factor.name)))
            .collect();
        let figures = cell.metric(&metric.name);
        let moments = figures.and_then(|figures| figures.moments);
        row.extend([
            Cell::from(number(moments.map(|moments| moments.mean))),
            Cell::from(number(moments.map(|moments| moments.max))),
            Cell::from(number(moments.map(|moments| moments.min))),
            Cell::from(number(moments.and_then(|moments| moments.stdev))),
            Cell::from(number(figures.and_then(|figures| figures.median))),
            Cell::from(
                figures
                    .and_then(|figures| figures.confidence)
                    .map_or_else(String::new, |range| {
                        format!("{:.decimals$} to {:.decimals$}", range.low, range.high)
                    }),
            ),
            Cell::from(figures.map_or(0, |figures| figures.samples).to_string()),
            Cell::new(Role::Warning, unless_zero(cell.with_warnings)),
            Cell::new(Role::Critical, unless_zero(cell.failed)),
        ]);
        grid.row(row);
    }
    grid.render(style)
}

/// Digits behind the point so that the largest figure of a table has four that mean something.
fn decimals(largest: f64) -> usize {
    if largest <= 0.0 {
        return 3;
    }
    (3 - largest.log10().floor() as i32).clamp(0, 9) as usize
}

/// What was wrong with samples, the most frequent first, and why some failed.
fn warnings(samples: &[Sample], style: &Style) -> String {
    let failed = counted(samples.iter().filter_map(|sample| sample.failed.as_deref()));
    let with_warnings = counted(
        samples
            .iter()
            .flat_map(|sample| &sample.warnings)
            .map(String::as_str),
    );
    if failed.is_empty() && with_warnings.is_empty() {
        return String::new();
    }
    let mut out = heading(style, "Warnings", "");
    let failed = failed
        .iter()
        .map(|counted| (Role::Critical, " failed", counted));
    let said: Vec<_> = failed
        .chain(
            with_warnings
                .iter()
                .map(|counted| (Role::Warning, " with warnings", counted)),
        )
        .collect();
    for (role, how, counted) in said.iter().take(MOST_DOUBTS) {
        out.push_str(&paragraph(
            style,
            2,
            (*role, &lead(counted, "sample", how)),
            Role::Plain,
            &counted.what,
        ));
    }
    if let Some(more) = said.len().checked_sub(MOST_DOUBTS).filter(|&more| more > 0) {
        let text = format!("and {more} more; `nearfar runs export` has all of them");
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, &text));
    }
    out
}

/// What was removed.
pub fn removed(removed: &Removed, style: &Style) -> String {
    let mut out = String::new();
    for run in &removed.runs {
        let label = run
            .label
            .as_ref()
            .map(|label| format!(" \"{label}\""))
            .unwrap_or_default();
        let text = format!(
            "removed run {}: {}{label} of {}, {}",
            run.run,
            run.experiment,
            moment(run.started_at_s.max(0.0) as u64),
            count(usize::try_from(run.samples).unwrap_or(usize::MAX), "sample")
        );
        out.push_str(&paragraph(style, 0, (Role::Plain, ""), Role::Plain, &text));
    }
    out
}

/// What an import added.
pub fn imported(imported: &Imported, style: &Style) -> String {
    let mut out = String::new();
    let mut line =
        |text: String| out.push_str(&paragraph(style, 0, (Role::Plain, ""), Role::Plain, &text));
    imported
        .runs
        .iter()
        .for_each(|run| line(format!("imported as run {run}")));
    imported
        .already
        .iter()
        .for_each(|run| line(format!("already here as run {run}")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits_that_mean_something() {
        assert_eq!(
            [21.41, 0.002, 1234.0, 5e-7, 0.0].map(decimals),
            [2, 6, 0, 9, 3]
        );
    }
}
