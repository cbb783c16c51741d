//! Cells without a verdict on values: samples failed, or one side has none.

use nearfar_compare::{Attempts, Comparison, FailedCell};
use nearfar_runs::Cell;

use crate::amount::count;
use crate::document::{Align, Document, Table, Text};
use crate::style::Role;

/// At most so many cells with failed samples, or that one side lacks, are listed.
const MAX_CELLS: usize = 12;

/// How many samples of which cells failed, side by side.
pub(super) fn failed(document: &mut Document, comparison: &Comparison) {
    let (baseline, others) = comparison.sides.split_at(1);
    for side in others {
        let cells = comparison.failed_cells.iter();
        let cells: Vec<&FailedCell> = cells.filter(|cell| cell.side == side.name).collect();
        if cells.is_empty() {
            continue;
        }
        let names = format!("B {} with A {}", side.name, baseline[0].name);
        document.heading("failed samples", names);
        let mut table = Table::new(&[
            ("cell", Align::Left),
            ("in A", Align::Right),
            ("in B", Align::Right),
            ("verdict", Align::Left),
        ]);
        for cell in cells.iter().take(MAX_CELLS) {
            let role = cell.regression.map_or(Role::Plain, |_| Role::Far);
            table.row(vec![
                cell_text(&cell.cell).into(),
                of_attempts(cell.a).into(),
                of_attempts(cell.b).into(),
                Text::new(role, of_failed(cell)),
            ]);
        }
        document.table(table);
        more_cells(document, cells.len());
    }
}

/// `8 of 10`.
fn of_attempts(attempts: Attempts) -> String {
    format!("{} of {}", attempts.failed, attempts.total())
}

fn of_failed(cell: &FailedCell) -> String {
    let unusable = match (cell.a.samples, cell.b.samples) {
        (0, 0) => "no usable samples",
        (0, _) => "no usable samples in A",
        (_, 0) => "no usable samples in B",
        _ => "",
    };
    let verdict = cell.regression.map(|_| "failed");
    let parts = verdict.into_iter().chain(Some(unusable));
    parts
        .filter(|it| !it.is_empty())
        .collect::<Vec<_>>()
        .join(": ")
}

fn cell_text(cell: &Cell) -> String {
    let text = cell.to_string();
    if text.is_empty() {
        "all".to_owned()
    } else {
        text
    }
}

fn more_cells(document: &mut Document, cells: usize) {
    if let more @ 1.. = cells.saturating_sub(MAX_CELLS) {
        document.remark(format!("and {more} more; --format json has all"));
    }
}

pub(super) fn one_sided(document: &mut Document, comparison: &Comparison) {
    let alone = &comparison.one_sided;
    if alone.is_empty() {
        return;
    }
    document.heading("on one side only", count(alone.len(), "cell"));
    let mut table = Table::new(&[
        ("only in", Align::Left),
        ("cell", Align::Left),
        ("metrics", Align::Left),
    ]);
    for it in alone.iter().take(MAX_CELLS) {
        table.row(vec![
            it.only_in.as_str().into(),
            cell_text(&it.cell).into(),
            it.metrics.join(", ").into(),
        ]);
    }
    document.table(table);
    more_cells(document, alone.len());
}
