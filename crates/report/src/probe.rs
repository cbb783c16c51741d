//! The matrix of the probe as tables and sentences.
//!
//! ```text
//! Answer ──► run times   the published table's columns, median and its interval
//!        ──► migrations  medians a run by class, far share, what NUMA balancing moved
//!        ──► findings    a sentence a question, with its interval or the reason why it is unknown
//!        ──► remarks     what was left out, what was wrong with samples
//! ```

use nearfar_bench::matrix::{
    self, Answer, Contrast, Estimate, FirstTouch, Parameters, Question, Ratio, Row,
};
use nearfar_machine::Known;
use nearfar_statistics::Interval;

use crate::amount::{count, lead, or};
use crate::document::{Align, Axis, Bars, Chart, Document, Plot, Table, Text, cells};
use crate::runs::{BoxError, Own, Shown};
use crate::style::Role;

/// What a stored run of the probe shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, BoxError> {
    let answer = matrix::stored_answer(shown.run, shown.detail, shown.samples)?;
    let text = tables(&answer);
    Ok(Own {
        mail: text.clone(),
        text,
        page: of_page(&answer),
        json: serde_json::to_value(&answer).unwrap_or_default(),
        published: None,
    })
}

/// A whole matrix. The header of its stored run ([`crate::runs::header`]) says how it was made.
pub fn tables(answer: &Answer) -> Document {
    let mut out = Document::titled("Load and settings", "");
    let parameters = &answer.parameters;
    out.paragraph(load(parameters, &answer.load_percent_had));
    if let Some(touch) = parameters.first_touch {
        let from = match touch {
            FirstTouch::Near => "the node that the CPUs are bound to",
            FirstTouch::Far => "another node than the CPUs are bound to",
        };
        out.paragraph(format!(
            "floating memory is first touched from {from}, if they are and no node is preferred"
        ));
    }
    for setting in &parameters.settings {
        let (path, value) = (&setting.path, &setting.value);
        out.paragraph(format!("set for the run: {path} = {value}"));
    }
    out.heading("Run times", "seconds; PNID: preferred node; F: floating");
    out.table(times(&answer.rows));
    out.heading(
        "Migrations",
        "medians per run; far: accesses to another node; keeper: of a CPU",
    );
    out.table(migrations(&answer.rows));
    let mut rows = answer.rows.iter();
    if let Some(reason) = rows.find_map(|row| row.migrations.unknown_reason()) {
        out.warning(format!("migrations: unknown: {reason}"));
    }
    findings(answer, &mut out);
    remarks(answer, &mut out);
    out
}

/// What the page of a stored run shows beyond its metrics.
pub fn of_page(answer: &Answer) -> Document {
    let mut out = Document::new();
    findings(answer, &mut out);
    if let Some(chart) = migrations_chart(answer) {
        out.heading("Migrations", "");
        out.chart(chart);
    }
    remarks(answer, &mut out);
    out
}

/// Migrations a run by class; `None` where they are unknown.
fn migrations_chart(answer: &Answer) -> Option<Chart> {
    let row = |row: &Row| {
        let it = row.migrations.get()?;
        let classes = vec![it.same_core, it.same_cache, it.same_node, it.cross_node];
        Some((key(row).iter().map(Text::plain).collect(), classes))
    };
    let rows: Vec<(Vec<String>, Vec<f64>)> = answer.rows.iter().filter_map(row).collect();
    let totals = rows.iter().map(|(_, classes)| classes.iter().sum());
    let axis = Axis::from_zero("migrations per run", totals);
    (!rows.is_empty()).then(|| Chart {
        title: "Migrations by class".to_owned(),
        about: "Medians per run. The wider apart the CPUs, the darker the part of the bar."
            .to_owned(),
        plot: Plot::Bars(Bars {
            row_heads: KEY.map(str::to_owned).to_vec(),
            axis,
            classes: ["same core", "same cache", "same node", "cross node"]
                .map(str::to_owned)
                .to_vec(),
            rows,
        }),
    })
}

/// What the cells say about the questions of the matrix.
fn findings(answer: &Answer, out: &mut Document) {
    out.heading("Findings", "with 95 % intervals; ratios within rounds");
    for (role, text) in sentences(answer) {
        out.paragraph(Text::new(role, text));
    }
}

/// What load was asked for, and what it had: the probe and other tasks take their share of it.
fn load(parameters: &Parameters, had: &Known<f64>) -> String {
    let percent = parameters.load_percent;
    if percent <= 0.0 {
        return "no load: alone on an idle machine the probe says little about scheduling"
            .to_owned();
    }
    let had = had.get();
    let had = had.map(|had| format!("; it had {had:.1} % of the CPUs"));
    let had = or(had, "");
    let period_ms = parameters.load_period_s * 1e3;
    format!("load: one pinned process on each CPU, {percent} % of each {period_ms} ms{had}")
}

/// That run times have others' work in them.
fn crowded(answer: &Answer) -> String {
    let load = answer.parameters.load_percent;
    let had = answer.load_percent_had.get().filter(|_| load > 0.0);
    let had = had.map(|had| format!("the load had {had:.1} % of the CPUs instead of {load} %"));
    let waited = answer.waited_share.get().map(|share| share * 100.0);
    let waited = waited.map(|it| format!("the probe waited for a CPU {it:.0} % of the time"));
    let said: Vec<String> = had.into_iter().chain(waited).collect();
    let said = said.join(" and ");
    format!(
        "{said} (medians): others worked on these CPUs, too, and run times are longer for it; repeat when they are quiet"
    )
}

/// What was left out and what was wrong.
fn remarks(answer: &Answer, out: &mut Document) {
    let left_out = answer.parameters.left_out.iter();
    let left_out = left_out.map(|it| format!("not measured: {}: {}", it.what, it.reason));
    let failed = answer.rows.iter().flat_map(|row| {
        let failed = row.failed.iter();
        failed.map(|failed| {
            let samples = count(failed.samples, "sample");
            format!("{samples} of cell {} failed: {}", row.cell, failed.what)
        })
    });
    let warnings = answer.warnings.iter();
    let warnings = warnings.map(|warning| lead(warning, "sample", "") + &warning.what);
    let crowded = answer.is_crowded().then(|| crowded(answer));
    let all = left_out.chain(failed).chain(warnings).chain(crowded);
    let all: Vec<String> = all.collect();
    if !all.is_empty() {
        out.heading("Remarks", "");
        all.into_iter().for_each(|text| out.warning(text));
    }
}

/// The published heads of the columns that name a cell.
const KEY: [&str; 5] = ["row", "PNID", "NB", "Mem", "CPU"];

/// The published table's columns, then the median, its interval and the number of samples something was wrong with.
fn times(rows: &[Row]) -> Table {
    let heads = [
        "avg",
        "max",
        "min",
        "stdev",
        "median",
        "95 % interval",
        "n",
        "warnings",
        "failed",
    ];
    let mut table = by_cell(&heads).caption("Run times");
    let digits = digits(rows);
    let seconds = |value: f64| format!("{value:.digits$}");
    for row in rows {
        let failed = some(row.failed.iter().map(|failed| failed.samples).sum());
        let Some((moments, figures)) = row.moments.as_ref().zip(row.seconds.as_ref()) else {
            let none = [Role::Warning.text("none")];
            let cells = key(row).into_iter().chain(none);
            table.row(cells.chain(vec![Text::default(); 7]).chain([failed]));
            continue;
        };
        let interval = figures.confidence;
        let interval = interval.map(|it| format!("{} to {}", seconds(it.low), seconds(it.high)));
        table.row(key(row).into_iter().chain(cells![
            seconds(moments.mean),
            seconds(moments.max),
            seconds(moments.min),
            or(moments.stdev.map(seconds), ""),
            Role::Subject.text(seconds(figures.median)),
            or(interval, "from 6 samples on"),
            figures.samples.len(),
            some(row.with_warnings),
            failed,
        ]));
    }
    table
}

/// Medians of the migrations a run, and what goes with them.
fn migrations(rows: &[Row]) -> Table {
    let heads = [
        "core",
        "cache",
        "node",
        "cross node",
        "far %",
        "NB pages",
        "keeper %",
    ];
    let mut table = by_cell(&heads).caption("Migrations");
    let unknown = || Role::Dim.text("?");
    for row in rows {
        let moves = match row.migrations.get() {
            Some(it) => [it.same_core, it.same_cache, it.same_node, it.cross_node].map(Text::from),
            None => [unknown(), unknown(), unknown(), unknown()],
        };
        let far = row.far_share.get().map(|it| format!("{:.1}", it * 100.0));
        let keeper = row.keeper_cpu_share.map(|it| format!("{:.2}", it * 100.0));
        table.row(key(row).into_iter().chain(moves).chain(cells![
            far.map_or_else(unknown, Text::from),
            or(row.pages_migrated.get().filter(|it| **it > 0.0), ""),
            or(keeper, ""),
        ]));
    }
    table
}

/// A table whose first columns name the cell.
fn by_cell(heads: &[&str]) -> Table {
    let align = |head: &str| match head {
        "95 % interval" => Align::Left,
        _ => Align::Right,
    };
    let heads = KEY.iter().chain(heads);
    let heads: Vec<_> = heads.map(|head| (*head, align(head))).collect();
    Table::new(&heads)
}

/// The columns that name the cell.
fn key(row: &Row) -> [Text; 5] {
    let cell = &row.cell;
    cells![
        row.row,
        cell.preferred_number(),
        u8::from(cell.policy.numa_balancing),
        cell.memory_node,
        cell.cpu_node,
    ]
}

/// A number, or nothing for none, so that a column without any is left out.
fn some(number: usize) -> Text {
    Role::Warning.text(or(Some(number).filter(|it| *it > 0), ""))
}

/// Decimals with which the shortest run time of the table has three figures and more.
fn digits(rows: &[Row]) -> usize {
    let least = rows
        .iter()
        .filter_map(|row| row.moments.as_ref())
        .map(|m| m.min)
        .fold(f64::INFINITY, f64::min);
    match least {
        _ if least >= 100.0 => 2,
        _ if least >= 1.0 => 3,
        _ if least >= 0.01 => 4,
        _ if least >= 1e-4 => 6,
        _ => 9,
    }
}

/// The published machine's ratio of other-node to same-node binding, for comparison.
const PUBLISHED: &str = "published for a two-socket Xeon Platinum 8167M under 60 % load: 1.24";

/// A sentence a question, then the regression.
fn sentences(answer: &Answer) -> Vec<(Role, String)> {
    let mut said: Vec<(Role, String)> = answer.findings.contrasts.iter().map(contrast).collect();
    if said.is_empty() {
        let text = "the cells of this run have nothing to be compared with: it takes cells on the same and on another \
                    node, or with and without NUMA balancing or a preferred node";
        said.push((Role::Dim, text.to_owned()));
    }
    let explained = &answer.findings.explained;
    said.push(cost(
        "each cross-node migration",
        "what a cross-node migration",
        &explained.migration_s,
        amounts,
    ));
    said.push(cost(
        "running far all the time",
        "what running far",
        &explained.far_share,
        percentages,
    ));
    let within = match explained.within_rounds {
        true => " within a round",
        false => "",
    };
    said.extend(explained.r2.map(|r2| {
        let (percent, samples) = (r2 * 100.0, explained.samples);
        let text = format!(
            "both together explain {percent:.0} % of how run times differ{within} ({samples} samples; least squares)"
        );
        (Role::Dim, text)
    }));
    said
}

fn contrast(contrast: &Contrast) -> (Role, String) {
    let (subject, object) = sides(contrast.question);
    match &contrast.ratio {
        Known::Yes(ratio) => {
            let (role, text) = compared(subject, object, ratio);
            match contrast.question {
                Question::OtherNode => (role, format!("{text}; {PUBLISHED}")),
                _ => (role, text),
            }
        }
        Known::No { unknown_reason } => {
            let text = format!("{subject}, against {object}: unknown: {unknown_reason}");
            (Role::Dim, text)
        }
    }
}

fn compared(subject: &str, object: &str, ratio: &Ratio) -> (Role, String) {
    let median = ratio.median;
    let Some(Interval { low, high }) = ratio.confidence else {
        let rounds = count(ratio.rounds, "round");
        let text = format!(
            "{subject}: {median:.3} times the time of {object} in {rounds}; six would give an interval"
        );
        return (Role::Dim, text);
    };
    let times = format!("{median:.3} times ({low:.3} to {high:.3})");
    let text = match (ratio.is_significant(), median > 1.0) {
        (true, true) => format!("{subject}: {times} the time of {object}"),
        (true, false) => format!("{subject}: {times} the time of {object}, faster"),
        (false, _) => format!("{subject}: no significant difference from {object}, {times}"),
    };
    (Role::Plain, text)
}

/// What is compared with what.
fn sides(question: Question) -> (&'static str, &'static str) {
    const SAME: &str = "memory and CPUs bound to one node";
    match question {
        Question::OtherNode => ("CPUs bound to another node than the memory", SAME),
        Question::UnboundCpus => ("CPUs floating, memory bound", SAME),
        Question::AllUnbound => ("memory and CPUs floating", SAME),
        Question::BalancingUnboundMemory => {
            ("NUMA balancing on, memory floating", "the same with it off")
        }
        Question::BalancingBoundMemory => (
            "NUMA balancing on, memory bound and CPUs floating",
            "the same with it off",
        ),
        Question::PreferredToBound => ("the memory's node preferred, CPUs floating", SAME),
        Question::PreferredToNone => (
            "the memory's node preferred, CPUs floating",
            "the same without a preferred node",
        ),
    }
}

/// What something cost, in a unit, value and ends of the interval; why it is unknown.
fn cost(
    what: &str,
    question: &str,
    cost: &Known<Estimate>,
    written: impl Fn([f64; 3]) -> ([String; 3], &'static str),
) -> (Role, String) {
    let reason = match cost {
        Known::Yes(cost) => {
            let Interval { low, high } = cost.confidence;
            let ([value, low, high], unit) = written([cost.value, low, high]);
            if cost.is_significant() {
                let text = format!("{what} cost {value} {unit} ({low} to {high})");
                return (Role::Plain, text);
            }
            format!("the estimate, {value} {unit}, may as well be none ({low} to {high})")
        }
        Known::No { unknown_reason } => unknown_reason.to_string(),
    };
    (Role::Dim, format!("{question} cost: unknown: {reason}"))
}

/// In one unit, with the digits that mean something.
fn amounts(seconds: [f64; 3]) -> ([String; 3], &'static str) {
    let (factor, unit) = match seconds.map(f64::abs).into_iter().fold(0.0, f64::max) {
        1.0.. => (1.0, "s"),
        1e-3.. => (1e3, "ms"),
        _ => (1e6, "us"),
    };
    let text = |amount: f64| match amount.abs() {
        100.0.. => format!("{amount:.0}"),
        _ => format!("{amount:.1}"),
    };
    (seconds.map(|it| text(it * factor)), unit)
}

fn percentages(shares: [f64; 3]) -> ([String; 3], &'static str) {
    (shares.map(|share| format!("{:.1}", share * 100.0)), "%")
}
