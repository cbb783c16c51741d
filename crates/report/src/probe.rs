//! The matrix of the probe as tables and sentences.
//!
//! ```text
//! Answer ──► head        what was run, on what machine
//!        ──► run times   the published table's columns, median and its interval
//!        ──► migrations  medians a run by class, far share, what NUMA balancing moved
//!        ──► findings    a sentence a question, with its interval or why the data cannot tell
//!        ──► remarks     what was left out, what was wrong with samples
//! ```

mod sentences;
mod tables;

use nearfar_bench::matrix::{Answer, MatrixCell, Parameters, Sample};

use nearfar_bench::probe::Where;
use nearfar_machine::{Emulation, Known};
use nearfar_runs::Counted;

use crate::Style;
use crate::amount::{bytes, count, lead};
use crate::layout::{heading, paragraph, whole};
use crate::style::Role;

/// All of it.
pub fn matrix(answer: &Answer, style: &Style) -> String {
    let mut out = heading(
        style,
        "Probe matrix",
        &answer
            .emulation
            .as_ref()
            .map_or_else(String::new, ToString::to_string),
    );
    for text in setup(answer) {
        out.push_str(&paragraph(style, 2, (Role::Plain, ""), Role::Plain, &text));
    }
    out.push_str(&results(answer, style));
    whole(out)
}

/// A whole matrix below the header of its stored run ([`crate::runs::header`]), which says how it was made.
pub fn stored(answer: &Answer, style: &Style) -> String {
    let plain = |text: String| paragraph(style, 2, (Role::Plain, ""), Role::Plain, &text);
    let load = load(answer.parameters.load_percent, &answer.load_percent_had);
    let settings: String = std::iter::once(load)
        .chain(settings(answer))
        .map(plain)
        .collect();
    whole(settings + &results(answer, style))
}

fn results(answer: &Answer, style: &Style) -> String {
    let mut out = heading(
        style,
        "Run times",
        "seconds; PNID: preferred node; F: floating",
    );
    out.push_str(&tables::times(&answer.rows, style));
    out.push_str(&heading(
        style,
        "Migrations",
        "medians a run; far: accesses to another node; keeper: of a CPU",
    ));
    out.push_str(&tables::migrations(&answer.rows, style));
    out.push_str(&heading(
        style,
        "Findings",
        "with 95 % intervals; ratios within rounds",
    ));
    for (role, text) in sentences::of(answer) {
        out.push_str(&paragraph(style, 2, (Role::Plain, ""), role, &text));
    }
    out.push_str(&remarks(answer, style));
    out
}

/// One run of one cell.
pub fn once(
    cell: &MatrixCell,
    parameters: &Parameters,
    sample: &Sample,
    warnings: &[String],
    emulation: Option<&Emulation>,
    style: &Style,
) -> String {
    let mut out = heading(
        style,
        "Probe",
        &emulation.map_or_else(String::new, ToString::to_string),
    );
    let plain = |text: &str| paragraph(style, 2, (Role::Plain, ""), Role::Plain, text);
    out.push_str(&plain(&what(parameters)));
    out.push_str(&plain(&load(parameters.load_percent, &sample.load_percent)));
    let probe = &sample.probe;
    let memory = place("memory", cell.memory);
    let cpus = place("CPUs", cell.cpus);
    out.push_str(&plain(&format!(
        "{memory}, {cpus}: {:.3} s, {:.1} ns an access",
        probe.seconds,
        probe.ns_an_access()
    )));
    if let Some(share) = sample.far_share().get() {
        out.push_str(&plain(&format!(
            "{:.1} % of the accesses went to another node",
            share * 100.0
        )));
    }
    out.push_str(&plain(&match &sample.trace {
        Known::Yes(watched) => {
            let moves = &watched.found.migrations;
            format!(
                "{}, {} of them to another node",
                count(moves.total() as usize, "migration"),
                moves.cross_node
            )
        }
        Known::No { unknown_reason } => format!("migrations are not known: {unknown_reason}"),
    }));
    for text in warnings.iter().cloned().chain(sample.warnings()) {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Plain, ""),
            Role::Warning,
            &text,
        ));
    }
    whole(out)
}

fn place(of: &str, place: Where) -> String {
    match place {
        Where::Node(node) => format!("{of} bound to node {node}"),
        Where::Floating => format!("{of} floating"),
    }
}

/// What the probe does.
fn what(parameters: &Parameters) -> String {
    let Parameters {
        pattern,
        bytes: size,
        counts,
        steps,
        huge_pages,
        ..
    } = parameters;
    let pages = if *huge_pages { ", huge pages" } else { "" };
    let (rounds, accesses) = (
        count(*counts as usize, "round"),
        if *steps == 1 { "access" } else { "accesses" },
    );
    format!(
        "{pattern} over {}{pages}; {rounds} of {steps} {accesses} a run",
        bytes(*size)
    )
}

/// What load was asked for, and what it had: beside the probe less than was asked for, and beside others still less.
fn load(percent: f64, had: &Known<f64>) -> String {
    let had = had
        .get()
        .map(|had| format!("; it had {had:.1} % of the CPUs"))
        .unwrap_or_default();
    match percent > 0.0 {
        true => format!("load: one pinned process on each CPU, {percent} % of it{had}"),
        false => {
            "no load: alone on an idle machine the probe says little about scheduling".to_owned()
        }
    }
}

/// What was run, in sentences.
fn setup(answer: &Answer) -> Vec<String> {
    let mut said = vec![
        what(&answer.parameters),
        load(answer.parameters.load_percent, &answer.load_percent_had),
    ];
    let (there, wanted) = answer.progress();
    let cells = count(answer.rows.len(), "cell");
    said.push(match there == wanted {
        true => format!(
            "{cells}, {} each, in random order within each round",
            count(answer.samples_wanted as usize, "sample")
        ),
        false => format!("{cells}; {there} of {wanted} samples are there"),
    });
    said.extend(settings(answer));
    said.extend(answer.run.iter().map(|run| format!("stored as run {run}")));
    said
}

fn settings(answer: &Answer) -> impl Iterator<Item = String> {
    let settings = answer.parameters.settings.iter();
    settings.map(|setting| format!("set for the run: {} = {}", setting.path, setting.value))
}

/// That run times have others' work in them.
fn crowded(answer: &Answer) -> String {
    let load = answer.parameters.load_percent;
    let had = answer.load_percent_had.get().filter(|_| load > 0.0);
    let had = had.map(|had| format!("the load had {had:.1} % of the CPUs instead of {load} %"));
    let waited = answer.waited_share.get().map(|share| {
        format!(
            "the probe waited for a CPU {:.0} % of the time",
            share * 100.0
        )
    });
    let said = had
        .into_iter()
        .chain(waited)
        .collect::<Vec<_>>()
        .join(" and ");
    format!(
        "{said} (medians): others worked on these CPUs, too, and run times are longer for it; repeat when they are quiet"
    )
}

/// What was left out and what was wrong.
fn remarks(answer: &Answer, style: &Style) -> String {
    let left_out = answer
        .parameters
        .left_out
        .iter()
        .map(|left| format!("not measured: {}, because {}", left.what, left.because));
    let samples = |counted: &Counted| count(counted.samples, "sample");
    let warnings = answer
        .warnings
        .iter()
        .map(|warning| lead(warning, "sample", "") + &warning.what);
    let crowded = answer.is_crowded().then(|| crowded(answer));
    let failed = answer.rows.iter().flat_map(|row| {
        row.failed.iter().map(|failed| {
            format!(
                "{} of cell {} failed: {}",
                samples(failed),
                row.cell,
                failed.what
            )
        })
    });
    let said: Vec<String> = left_out
        .chain(failed)
        .chain(warnings)
        .chain(crowded)
        .collect();
    if said.is_empty() {
        return String::new();
    }
    let mut out = heading(style, "Remarks", "");
    for text in said {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Plain, ""),
            Role::Warning,
            &text,
        ));
    }
    out
}
