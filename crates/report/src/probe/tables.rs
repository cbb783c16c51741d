//! The two tables: run times, and migrations.

use nearfar_bench::matrix::Row;
use nearfar_machine::Known;

use crate::Style;
use crate::layout::{Cell, Grid, Side};
use crate::style::Role;

/// The published table's columns, then the median, its interval and the number of samples something was wrong with.
pub(super) fn times(rows: &[Row], style: &Style) -> String {
    let columns = [
        ("row", Side::Right),
        ("PNID", Side::Right),
        ("NB", Side::Right),
        ("Mem", Side::Right),
        ("CPU", Side::Right),
        ("avg", Side::Right),
        ("max", Side::Right),
        ("min", Side::Right),
        ("stdev", Side::Right),
        ("median", Side::Right),
        ("95 % interval", Side::Left),
        ("n", Side::Right),
        ("warnings", Side::Right),
        ("failed", Side::Right),
    ];
    let mut grid = Grid::new(&columns);
    let digits = digits(rows);
    let seconds = |value: f64| format!("{value:.digits$}");
    for row in rows {
        let mut cells = key(row);
        let Some((moments, figures)) = row.moments.as_ref().zip(row.seconds.as_ref()) else {
            cells.push(Cell::new(Role::Warning, "none"));
            cells.extend(vec![Cell::default(); 7]);
            cells.push(some(failures(row)));
            grid.row(cells);
            continue;
        };
        let interval = figures
            .confidence
            .map(|c| format!("{} to {}", seconds(c.low), seconds(c.high)));
        cells.extend(
            [moments.mean, moments.max, moments.min].map(|value| Cell::from(seconds(value))),
        );
        cells.push(moments.stdev.map_or_else(String::new, seconds).into());
        cells.push(Cell::new(Role::Subject, seconds(figures.median)));
        cells.push(
            interval
                .unwrap_or_else(|| "from 6 samples on".to_owned())
                .into(),
        );
        cells.push(figures.samples.len().to_string().into());
        cells.push(some(row.with_warnings));
        cells.push(some(failures(row)));
        grid.row(cells);
    }
    grid.render(style)
}

/// Medians of the migrations a run, and what goes with them.
pub(super) fn migrations(rows: &[Row], style: &Style) -> String {
    let columns = [
        ("row", Side::Right),
        ("PNID", Side::Right),
        ("NB", Side::Right),
        ("Mem", Side::Right),
        ("CPU", Side::Right),
        ("core", Side::Right),
        ("cache", Side::Right),
        ("node", Side::Right),
        ("cross node", Side::Right),
        ("far %", Side::Right),
        ("NB pages", Side::Right),
        ("keeper %", Side::Right),
    ];
    let mut grid = Grid::new(&columns);
    let unknown = || Cell::new(Role::Dim, "?");
    for row in rows {
        let mut cells = key(row);
        match &row.migrations {
            Known::Yes(m) => {
                let all = [m.same_core, m.same_cache, m.same_node, m.cross_node];
                cells.extend(all.map(|number| Cell::from(number.to_string())));
            }
            Known::No { .. } => cells.extend([unknown(), unknown(), unknown(), unknown()]),
        }
        cells.push(
            row.far_share
                .get()
                .map_or_else(unknown, |share| format!("{:.1}", share * 100.0).into()),
        );
        cells.push(
            row.pages_migrated
                .get()
                .map_or_else(Cell::default, |pages| {
                    if *pages > 0.0 {
                        pages.to_string().into()
                    } else {
                        Cell::default()
                    }
                }),
        );
        cells.push(row.keeper_cpu_share.map_or_else(Cell::default, |share| {
            format!("{:.2}", share * 100.0).into()
        }));
        grid.row(cells);
    }
    let mut out = grid.render(style);
    if let Some(because) = rows.iter().find_map(|row| row.migrations.unknown_reason()) {
        let text = format!("migrations are not known: {because}");
        out.push_str(&crate::layout::paragraph(
            style,
            2,
            (Role::Plain, ""),
            Role::Warning,
            &text,
        ));
    }
    out
}

/// The columns that name the cell.
fn key(row: &Row) -> Vec<Cell> {
    let cell = &row.cell;
    let nb = u8::from(cell.policy.numa_balancing);
    let texts = [
        row.row.to_string(),
        cell.pnid().to_string(),
        nb.to_string(),
        cell.memory.to_string(),
        cell.cpus.to_string(),
    ];
    texts.map(Cell::from).to_vec()
}

fn failures(row: &Row) -> usize {
    row.failed.iter().map(|failed| failed.samples).sum()
}

/// A number, or nothing for none, so that a column without any is left out.
fn some(number: usize) -> Cell {
    if number == 0 {
        Cell::default()
    } else {
        Cell::new(Role::Warning, number.to_string())
    }
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
