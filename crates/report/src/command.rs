//! A run of `bench command`: a row for each placement, and which is best.

use nearfar_bench::command::{CPU_TIME, FIGURE, Findings, NEAR_SHARE, findings};
use nearfar_statistics::Interval;

use crate::compared::{marked, signed};
use crate::document::{Document, Table, cells};
use crate::runs::{BoxError, Layout, Own, Shown, cell_table};
use crate::style::Role;

const CAPTION: &str = "medians of runs; interval: 95 %; near: how much of the memory is on the node of the CPU, by the time that \
                       was used on each node, at the last look";
const METHOD: &str = "Each placement against the first, paired by round: Wilcoxon's signed ranks. The chance of any false alarm is \
                      5 % (Holm). *: significant, =: equivalent";

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, BoxError> {
    let (findings, layout) = (findings(shown.detail, shown.samples), shown.layout());
    let said = said(&findings, &layout);
    Own::of(shown, tables(shown, &findings, &layout), said, &findings)
}

fn tables(shown: &Shown<'_>, findings: &Findings, layout: &Layout) -> Document {
    let mut out = Document::titled("Placements", CAPTION);
    layout.remark_in(&mut out);
    let head = match findings.metric.as_str() {
        FIGURE => "figure",
        _ => "time",
    };
    let compared = [
        shown.medians(&findings.metric, head),
        shown.intervals(&findings.metric, "interval"),
    ];
    let others = [(CPU_TIME, "CPU time"), (NEAR_SHARE, "near")];
    let others = others.map(|(metric, head)| shown.medians(metric, head));
    let columns = layout.names().map(Some).chain(compared).chain(others);
    out.table(cell_table(shown.cells, columns));
    out
}

fn said(findings: &Findings, layout: &Layout) -> Document {
    let mut out = Document::titled("Findings", METHOD);
    let mut table = Table::of(["placement", "against the first"]);
    for step in &findings.steps {
        let name = Role::Subject.text(layout.varied(&step.b));
        table.row(cells![name, marked(step)]);
    }
    if !table.is_empty() {
        out.table(table);
    }
    match (&findings.best, findings.is_best_significant) {
        (Some(best), true) => {
            out.paragraph(Role::Near.text(format!("best: {}", layout.varied(best))));
            if let Some(commands) = &findings.commands {
                out.labelled_command("numactl(8)", &commands.numactl);
                if !commands.unit.is_empty() {
                    out.labelled_command("systemd, [Service]", commands.unit.join(" "));
                }
                if let Some(prefer) = &commands.prefer {
                    out.labelled_command("moves as needed", prefer);
                }
            }
        }
        (Some(_), false) if !findings.steps.is_empty() => {
            out.paragraph(no_difference(findings.range))
        }
        _ => out.paragraph("The run has one placement, which is compared with nothing."),
    }
    out
}

/// That no placement is better, and what can be excluded.
fn no_difference(range: Option<Interval>) -> String {
    let of = |share: f64| format!("{} %", signed(100.0 * share));
    match range {
        Some(Interval { low, high }) => format!(
            "No placement is better than the first by more than chance: do not bind. All are between {} and {} of it (95 % each); more \
             samples narrow this down.",
            of(low),
            of(high)
        ),
        None => "No placement is better than the first by more than chance; there are too few runs to say how large a difference can be."
            .to_owned(),
    }
}
