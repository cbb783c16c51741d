//! A run of `bench command`: a row for each placement, and which is best.

use nearfar_bench::command::{CPU_TIME, FIGURE, Findings, NEAR_SHARE, findings};
use nearfar_bench::step::Step;
use nearfar_runs::metric_name;
use nearfar_statistics::Interval;
use nearfar_statistics::compare::Verdict;

use crate::compared::{marked, signed};
use crate::document::{Document, Table, cells};
use crate::runs::{BoxError, Layout, Own, Shown, cell_table};
use crate::style::Role;

const NEAR: &str = "near: how much of the memory is on the node of the CPU, by the time that \
                       was used on each node, at the last look";
const METHOD: &str = "Each placement against the first, paired by round: Wilcoxon's signed ranks. The chance of any false alarm is \
                      5 % (Holm). *: significant, =: equivalent";
pub(crate) const UNTIL_CLEAR: &str = "Looked at after 10, 20, 40, ... rounds; what was clear got no more samples. The looks share the false \
                           alarms: 1/2, 1/4, 1/8, ...; an interval leaves out its share of 5 %";

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, BoxError> {
    let (findings, layout) = (findings(shown.detail, shown.samples), shown.layout());
    let said = said(&findings, &layout);
    Own::of(shown, tables(shown, &findings, &layout), said, &findings)
}

fn tables(shown: &Shown<'_>, findings: &Findings, layout: &Layout) -> Document {
    // An interval of a median alone takes the number of samples for one that was decided before.
    let (interval, second) = match findings.is_until_clear {
        true => ("", shown.counts(&findings.metric, "runs")),
        false => (
            "interval: 95 %; ",
            shown.intervals(&findings.metric, "interval"),
        ),
    };
    let caption = format!("medians of runs; {interval}{NEAR}");
    let mut out = Document::titled("Placements", caption);
    layout.remark_in(&mut out);
    let head = match findings.metric.as_str() {
        FIGURE => "figure",
        _ => "time",
    };
    let compared = [shown.medians(&findings.metric, head), second];
    let others = [(CPU_TIME, "CPU time"), (NEAR_SHARE, "near")];
    let others = others.map(|(metric, head)| shown.medians(metric, head));
    let events = shown.detail.parameters["count"].as_str();
    let events = events.into_iter().flat_map(|it| it.split(','));
    // Of a run that was continued with other permissions some samples have the one, and some the other.
    let of_event = |event: &str| [event.trim().to_owned(), format!("{}:u", event.trim())];
    let counted: Vec<String> = events.flat_map(of_event).collect();
    let has = |name: &&String| {
        let name = metric_name(name);
        shown.detail.metrics.iter().any(|it| it.name == name)
    };
    let counted = counted.iter().filter(has);
    let counted = counted.map(|name| shown.medians(&metric_name(name), name));
    let columns = layout.names().map(Some).chain(compared);
    let columns = columns.chain(others).chain(counted);
    out.table(cell_table(shown.cells, columns));
    out
}

fn said(findings: &Findings, layout: &Layout) -> Document {
    let method = match findings.is_until_clear {
        true => format!("{METHOD}. {UNTIL_CLEAR}"),
        false => METHOD.to_owned(),
    };
    let mut out = Document::titled("Findings", method);
    let mut table = Table::of(["placement", "against the first"]);
    for step in &findings.steps {
        let name = Role::Subject.text(layout.varied(&step.b));
        table.row(cells![name, marked(step)]);
    }
    if !table.is_empty() {
        out.table(table);
    }
    match &findings.best {
        Some(best) => {
            let name = Role::Near.text(layout.varied(best));
            out.labelled(Role::Heading.text("largest gain over the first: "), name);
            commands(findings, &mut out);
        }
        None => out.paragraph(none_is_better(findings)),
    }
    out
}

/// How the best placement is made without nearfar and with it.
fn commands(findings: &Findings, out: &mut Document) {
    let Some(commands) = &findings.commands else {
        return;
    };
    if let Some(numactl) = &commands.numactl {
        out.labelled_command("numactl", numactl);
    }
    for line in &commands.unit {
        out.labelled_command("unit", line);
    }
    if let Some(prefer) = &commands.prefer {
        out.labelled_command("nearfar", prefer);
    }
    for setting in &commands.settings {
        out.labelled_command("also", setting);
    }
}

/// That no placement is better than the first, as far as that is known.
fn none_is_better(findings: &Findings) -> String {
    if findings.steps.is_empty() {
        return "The run has one placement, which is compared with nothing.".to_owned();
    }
    let has_few = |step: &&Step| step.verdict().is_none_or(|it| it == Verdict::TooFewSamples);
    if findings.steps.iter().any(|step| has_few(&step)) {
        return format!(
            "Undecided: with {} comparisons a difference takes {} samples of each placement at the least (--samples).",
            findings.steps.len(),
            findings.samples_needed
        );
    }
    let advice = match findings.is_first_unbound {
        true => "do not bind",
        false => "keep the first",
    };
    let of = |share: f64| format!("{} %", signed(100.0 * share));
    let range = findings
        .undecided
        .map_or_else(String::new, |Interval { low, high }| {
            let (low, high) = (of(low), of(high));
            format!(" Those that are not worse are between {low} and {high} of it (95 % each).")
        });
    let needed = findings.steps.iter().filter_map(|step| step.compared.get());
    let needed = needed.filter_map(|it| it.samples_needed).max();
    let range = match needed.filter(|_| findings.is_until_clear) {
        Some(rounds) => format!("{range} Some {rounds} rounds would tell (--samples)."),
        None => range,
    };
    format!("No placement is better than the first by more than chance: {advice}.{range}")
}
