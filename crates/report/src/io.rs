//! A run of `bench io`: the published table's shape (I/Os per second, latency, where the time went), and what is significant.

use std::collections::BTreeMap;

use nearfar_bench::io::{COMPARED_FACTORS, Findings, IOPS, findings};
use serde_json::Value;

use crate::compared::finding;
use crate::document::{Document, Table, cells};
use crate::runs::{BoxError, Layout, Own, Shown, cell_table};
use crate::style::Role;

const CAPTION: &str = "medians of samples; interval: 95 %, of the median of I/Os per second; latency: completion, as fio counts it";
const METHOD: &str = "I/Os per second and 99th percentiles, paired by round: Wilcoxon's signed ranks. The chance of any false \
                      alarm is 5 % (Holm).";

/// The columns: metric and heading.
const COLUMNS: [(&str, &str); 9] = [
    ("bytes_per_s", "bandwidth"),
    ("latency_mean_ns", "mean"),
    ("latency_p50_ns", "p50"),
    ("latency_p99_ns", "p99"),
    ("latency_p999_ns", "p99.9"),
    ("user_share", "user"),
    ("system_share", "system"),
    ("nearest_path_share", "nearest path"),
    ("lock_spin_share", "in spinlocks"),
];

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, BoxError> {
    let (findings, layout) = (findings(shown.detail, shown.samples), shown.layout());
    let tables = tables(shown, &layout);
    Own::of(shown, tables, said(&findings, &layout), &findings)
}

fn tables(shown: &Shown<'_>, layout: &Layout) -> Document {
    let mut out = Document::titled("I/O", CAPTION);
    layout.remark_in(&mut out);
    let rate = [
        shown.medians(IOPS, "IOPS"),
        shown.intervals(IOPS, "interval"),
    ];
    let others = COLUMNS.map(|(metric, head)| shown.medians(metric, head));
    let columns = layout.names().map(Some).chain(rate).chain(others);
    out.table(cell_table(shown.cells, columns));
    locks(shown, layout, &mut out);
    let mut samples = shown.samples.iter().filter(|it| it.failed.is_none());
    let command = samples.next().and_then(|it| it.detail.get("command"));
    if let Some(command) = command.and_then(Value::as_str) {
        out.paragraph("The first sample's command, which measures the same without nearfar:");
        out.command(command);
    }
    out
}

/// The lock waits of all samples of a cell by call site, longest first.
fn locks(shown: &Shown<'_>, layout: &Layout, out: &mut Document) {
    const MOST_SITES: usize = 5;
    let mut table = Table::of(["cell", "call site", "kind", ">waits", ">waited s"]);
    for cell in shown.cells {
        let of_cell = shown.samples.iter().filter(|it| it.cell == cell.cell);
        let mut sites: BTreeMap<(String, String), (u64, f64)> = BTreeMap::new();
        for sample in of_cell {
            let found = sample.detail.pointer("/locks/sites");
            for site in found.and_then(Value::as_array).into_iter().flatten() {
                let text = |key: &str| site[key].as_str().unwrap_or_default().to_owned();
                let sum = sites.entry((text("call_site"), text("kind"))).or_default();
                sum.0 += site["waits"].as_u64().unwrap_or(0);
                sum.1 += site["wait_s"].as_f64().unwrap_or(0.0);
            }
        }
        let mut sites: Vec<_> = sites.into_iter().collect();
        sites.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        for ((site, kind), (waits, wait_s)) in sites.into_iter().take(MOST_SITES) {
            table.row(cells![
                Role::Subject.text(layout.varied(&cell.cell)),
                site,
                kind.replace('_', " "),
                waits,
                format!("{wait_s:.4}"),
            ]);
        }
    }
    if !table.is_empty() {
        out.heading("Waits for kernel locks", "of fio, all samples together");
        out.table(table);
    }
}

fn said(findings: &Findings, layout: &Layout) -> Document {
    let mut out = Document::titled("Findings", METHOD);
    if findings.steps.is_empty() {
        out.paragraph(format!(
            "The cells of this run have nothing to be compared with: it takes two levels of {}.",
            COMPARED_FACTORS.join(", ")
        ));
    }
    for step in &findings.steps {
        let [factor, from, to, others] = layout.compared(step);
        let of_cell = match others.is_empty() {
            true => String::new(),
            false => format!(" ({others})"),
        };
        let what = match step.metric.as_str() {
            IOPS => "I/Os per second",
            _ => "99th percentile of latency",
        };
        out.paragraph(finding(
            format!("{factor} from {from} to {to}{of_cell}, {what}"),
            step,
        ));
    }
    out
}
