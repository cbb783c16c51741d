//! Whether the scheduler hurts floating tasks: the verdicts, and the runs below them.

use nearfar_bench::matrix::Row;
use nearfar_bench::probe::Where;

use super::Checkup;
use crate::document::{Align, Document, Table, Text};
use crate::floating;
use crate::style::Role;

/// The section; none where nothing was measured at all, which another section says.
pub(super) fn section(checkup: &Checkup, out: &mut Document) {
    let (found, reason) = (checkup.floating.get(), checkup.not_floated());
    if found.is_some() || reason.is_some() {
        out.section("floating", "Floating tasks");
    }
    let Some(found) = found else {
        if let Some(reason) = reason {
            out.boxed(format!("Not probed: {reason}"));
        }
        return;
    };
    out.remark(floating::remark(found));
    for verdict in floating::verdicts(found) {
        let what = Text::new(Role::Heading, verdict.what);
        out.boxed(what.then(Role::Plain, format!(": {}", verdict.text)));
    }
    let mut table = Table::new(&[
        ("memory", Align::Left),
        ("CPUs", Align::Left),
        ("runs", Align::Right),
        ("median", Align::Right),
        ("95 % interval", Align::Right),
        ("cross-node migrations a run", Align::Right),
    ])
    .caption("Runs by where memory and CPUs were bound");
    found.rows.iter().for_each(|row| table.row(run(row)));
    out.table(table);
    floating::warnings(found)
        .into_iter()
        .for_each(|warning| out.warning(warning));
}

fn run(row: &Row) -> Vec<Text> {
    let place = |place: Where| {
        place
            .node()
            .map_or_else(|| "floating".to_owned(), |node| format!("node {node}"))
    };
    let figures = row.seconds.as_ref();
    let or_none = |text: Option<String>| Text::from(text.unwrap_or_else(|| "-".to_owned()));
    let interval = figures.and_then(|figures| figures.confidence);
    let moves = row.migrations.get();
    vec![
        place(row.cell.memory_node).into(),
        place(row.cell.cpu_node).into(),
        figures
            .map_or(0, |figures| figures.samples.len())
            .to_string()
            .into(),
        or_none(figures.map(|figures| format!("{:.3} s", figures.median))),
        or_none(interval.map(|it| format!("{:.3} to {:.3} s", it.low, it.high))),
        or_none(moves.map(|moves| format!("{:.0}", moves.cross_node))),
    ]
}
