//! Whether the scheduler slows unbound tasks: the verdicts, and the runs below them.

use nearfar_bench::matrix::Row;
use nearfar_bench::probe::Where;

use super::Checkup;
use crate::amount::or;
use crate::document::{Document, Table, Text, cells};
use crate::style::Role::{Heading, Plain};
use crate::unbound;

/// The section; none where nothing was measured at all, which another section says.
pub(super) fn section(checkup: &Checkup, out: &mut Document) {
    let (found, reason) = (checkup.unbound.get(), checkup.unbound_reason());
    if found.is_some() || reason.is_some() {
        out.section("unbound", "Unbound tasks");
    }
    let Some(found) = found else {
        if let Some(reason) = reason {
            out.boxed(format!("Not probed: {reason}"));
        }
        return;
    };
    out.remark(unbound::remark(found));
    for verdict in unbound::verdicts(found) {
        let what = Heading.text(verdict.what);
        out.boxed(what.then(Plain, format!(": {}", verdict.text)));
    }
    let columns = [
        "memory",
        "CPUs",
        ">runs",
        ">median",
        ">95 % interval",
        ">cross-node migrations per run",
    ];
    let mut table = Table::of(columns).caption("Runs by where memory and CPUs were bound");
    found.rows.iter().for_each(|row| table.row(run(row)));
    out.table(table);
    for warning in unbound::warnings(found) {
        out.warning(warning);
    }
}

fn run(row: &Row) -> [Text; 6] {
    let place = |place: Where| or(place.node().map(|node| format!("node {node}")), "unbound");
    let figures = row.seconds.as_ref();
    let interval = figures.and_then(|figures| figures.confidence);
    let moves = row.migrations.get();
    cells![
        place(row.cell.memory_node),
        place(row.cell.cpu_node),
        figures.map_or(0, |figures| figures.samples.len()),
        or(
            figures.map(|figures| format!("{:.3} s", figures.median)),
            "-"
        ),
        or(
            interval.map(|it| format!("{:.3} to {:.3} s", it.low, it.high)),
            "-"
        ),
        or(moves.map(|moves| format!("{:.0}", moves.cross_node)), "-"),
    ]
}
